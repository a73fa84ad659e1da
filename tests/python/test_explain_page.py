"""The page of `cplm generate --explain`, in a headless browser with real keys, mouse and touch."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from browser import Browser, find_browser
from explain_data import MARK, PAGE, explanation, page_of, page_template, words

needs_browser = pytest.mark.skipif(
    find_browser() is None, reason="no Chromium here: scripts/setup --reference installs one"
)
SHOWN = "document.querySelector('#facts').hidden ? '' : document.querySelector('#facts').innerText"
CHOSEN = "Number(document.querySelector('.token.chosen')?.dataset.index ?? -1)"
IS_PINNED = "document.querySelector('.token.pinned') !== null"
NUM_ARROWS = "document.querySelectorAll('#arrows path').length"
ANNOUNCED = "document.querySelector('#announcement').textContent"


def token(index):
    return f"[data-index='{index}']"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    one = Browser(find_browser(), tmp_path_factory.mktemp("profile"))
    yield one
    one.close()


@pytest.fixture
def show(browser, tmp_path):
    """Opens a page with the data, and finds no error of its scripts at the end."""

    def opened(data, **options):
        path = tmp_path / "page.html"
        path.write_text(page_of(data), encoding="utf-8", newline="")
        browser.open(path, **options)
        return browser

    yield opened
    assert browser.errors == []


def with_prediction(data, index, **changes):
    """The data with another prediction of a token."""
    data["predictions"][index - 1] |= changes
    return data


def test_the_template_is_whole_and_asks_for_nothing():
    template = page_template()
    assert template.count(MARK) == 1 and "@include" not in template
    assert set(re.findall(r"\w+://[^\"'\s]+", template)) == {"http://www.w3.org/2000/svg"}


def test_cmake_puts_the_same_page_into_a_string(tmp_path):
    cmake = shutil.which("cmake", path=Path(sys.executable).parent) or shutil.which("cmake")
    header = tmp_path / "template.h"
    script = PAGE.parents[2] / "cmake" / "EmbedPage.cmake"
    command = [cmake, f"-DPAGE={PAGE}", f"-DHEADER={header}", "-DSYMBOL=kPage", "-P", script]
    subprocess.run(command, check=True, timeout=60)
    before, page, after = re.split(r'R"cplm_page\(|\)cplm_page"', header.read_text(encoding="utf-8"))
    assert page == page_template()
    assert before.endswith("inline constexpr char kPage[] = ") and after.startswith(";\n")


def test_two_thousand_tokens_stay_under_two_megabytes():
    assert len(page_of(explanation(words(2000))).encode()) < 2_000_000


@needs_browser
def test_every_token_is_on_the_page_and_nothing_is_loaded(show):
    texts = words(4000)
    browser = show(explanation(texts))
    browser.wait_for("document.querySelectorAll('.token').length === 4000")
    assert browser.evaluate("document.querySelector('#text').textContent") == "".join(texts)
    assert browser.evaluate("performance.getEntriesByType('resource').length") == 0
    facts = browser.evaluate("document.querySelector('#model-facts').textContent")
    assert facts.startswith("cplm head, sliding backbone, step 1,000, mode natural, 4,000 tokens, 4 given")


@needs_browser
def test_pointing_at_a_token_shows_what_it_was_copied_from(show):
    sources = [[3, 0.7], [9, 0.2], [11, 0.05]]
    data = with_prediction(
        explanation(words(60)), 12, log_prob=-0.5, copy_gate=0.8, sink=0.05, copy_weight=0.76,
        sources=sources, lm=[[1, 0.25]], cp=[[2, 0.9]], mixture=[[3, 0.125]])
    browser = show(data)
    browser.move_mouse(*browser.middle(token(12)))
    shown = browser.evaluate(SHOWN)
    for part in ("60.7 %", "surprise 0.72 bits", "committed", "0.800", "0.050", "0.760", "@3", "0.700",
                 "LM head", "␣word1", "25.0 %", "Copy-paste head", "90.0 %", "Mixture", "12.5 %"):
        assert part in shown
    assert browser.evaluate(NUM_ARROWS) == 3
    widths = browser.evaluate(
        "[...document.querySelectorAll('#arrows path')].map((one) => Number(one.getAttribute('stroke-width')))")
    assert widths == sorted(widths) and widths[0] < widths[2]
    assert browser.evaluate("document.querySelectorAll('.token.source').length") == 3
    # An arrow begins at its source and ends at the token.
    start = browser.evaluate("(() => { const p = document.querySelector('#arrows path:nth-of-type(3)');"
                             "const at = p.getPointAtLength(0).matrixTransform(p.getScreenCTM());"
                             "return [at.x, at.y] })()")
    x, y = browser.middle(token(3))
    assert abs(start[0] - x) < 3 and y - 25 < start[1] < y
    browser.move_mouse(5, 5)
    assert browser.evaluate(SHOWN) == "" and browser.evaluate(NUM_ARROWS) == 0


@needs_browser
def test_the_sink_is_told_by_colour_and_by_dashes(show):
    data = explanation(words(60))
    for index, sink in ((20, 0.0), (21, 0.5), (22, 1.0)):
        with_prediction(data, index, copy_gate=0.9, sink=sink, copy_weight=0, sources=[[2, 0.9]])
    browser = show(data)
    found = {}
    for index in (20, 21, 22):
        browser.move_mouse(*browser.middle(token(index)))
        style = "getComputedStyle(document.querySelector('#arrows path'))"
        found[index] = browser.evaluate(f"[{style}.stroke, {style}.strokeDasharray]")
    red, green = ([int(part) for part in re.findall(r"\d+", found[index][0])] for index in (22, 20))
    assert green[1] > 2 * green[0] and red[0] > 2 * red[1]
    assert found[20][1] == "none" and len({dashes for _, dashes in found.values()}) == 3


@needs_browser
def test_a_click_pins_and_escape_releases(show):
    browser = show(explanation(words(200)))
    browser.click(token(30))
    assert browser.evaluate(CHOSEN) == 30 and browser.evaluate(IS_PINNED)
    browser.move_mouse(*browser.middle(token(50)))
    assert browser.evaluate(CHOSEN) == 30
    browser.click(token(50))
    assert browser.evaluate(CHOSEN) == 50 and browser.evaluate(IS_PINNED)
    browser.press("Escape")
    assert not browser.evaluate(IS_PINNED) and browser.evaluate(CHOSEN) == 50  # it has the focus
    browser.press("Escape")
    assert browser.evaluate(CHOSEN) == -1 and browser.evaluate(NUM_ARROWS) == 0


@needs_browser
def test_keys_move_pin_and_release(show):
    browser = show(explanation(words(300)))
    for _ in range(20):  # through the tools above the text
        browser.press("Tab")
        if browser.evaluate("document.activeElement.classList.contains('token')"):
            break
    assert browser.evaluate(CHOSEN) == 0
    assert "nothing predicts it" in browser.evaluate(SHOWN)
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert browser.evaluate(outline) == "solid"
    for key, chosen in (("ArrowLeft", 0), ("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", 299),
                        ("ArrowRight", 299), ("ArrowDown", 299), ("Home", 0), ("ArrowUp", 0)):
        browser.press(key)
        assert browser.evaluate(CHOSEN) == chosen, key
    tops = [browser.middle(token(0))[1]]
    for _ in range(3):
        browser.press("ArrowDown")
        tops.append(browser.middle(".token.chosen")[1])
    assert tops == sorted(set(tops)) and tops[3] - tops[0] < 200
    for _ in range(3):
        browser.press("ArrowUp")
    assert browser.middle(".token.chosen")[1] == tops[0]
    browser.press("End")
    browser.press("Enter")
    browser.press("ArrowLeft")
    assert browser.evaluate(CHOSEN) == 299 and browser.evaluate(IS_PINNED)
    assert browser.evaluate("Number(document.activeElement.dataset.index)") == 298
    browser.wait_for(f"{ANNOUNCED}.startsWith('Pinned: token 299')")
    browser.press("Escape")
    assert browser.evaluate(CHOSEN) == 298
    browser.wait_for(f"/token 298, .*: probability .* copy weight .*, gate .*, sink/.test({ANNOUNCED})")


@needs_browser
def test_a_tap_pins_in_sight_of_the_panel(show):
    browser = show(explanation(words(400)), width=390, height=800, is_phone=True)
    assert browser.evaluate("document.scrollingElement.scrollWidth") <= 390
    browser.tap(token(40))
    assert browser.evaluate(CHOSEN) == 40 and browser.evaluate(IS_PINNED)
    panel_top = browser.evaluate("document.querySelector('#panel').getBoundingClientRect().top")
    assert 0 < browser.middle(token(40))[1] < panel_top
    browser.tap(token(40))
    assert browser.evaluate(CHOSEN) == -1 and not browser.evaluate(IS_PINNED)
    browser.tap(token(40))
    browser.tap("#release")
    assert browser.evaluate(CHOSEN) == -1


@needs_browser
def test_hostile_tokens_stay_text(show):
    texts = ["<|endoftext|>", "</script><script>window.broken=1</script>", "<!--", "<img src=x onerror=broken=1>",
             "]]>", "@EXPLAIN_JSON@", "$&", "\\u003c", '"', "'", "&amp;", "\0", "\u202e", "\u2028", "\ufffd",
             "", " ", "\t", "\r\n", "\u200d", "é", "日本", "😀", "שלום", "x" * 3000, "\x1b[31m", "__proto__"]
    browser = show(explanation(texts, prompt_tokens=0))
    assert browser.evaluate("typeof window.broken") == "undefined"
    shown = browser.evaluate("[...document.querySelectorAll('.token')].map((one) => one.textContent)")
    invisible = {"\0", "\u202e", "\u2028"}
    assert shown == [
        "" if text in invisible else text.replace("\r", "").replace("\x1b", "") for text in texts]
    marks = browser.evaluate("[...document.querySelectorAll('.mark')].map((one) => one.dataset.shown)")
    assert marks == ["␀", "<202E>", "<2028>", "∅", "⇥", "␍", "⏎", "␛"]
    for index in range(len(texts)):
        browser.evaluate(f"document.querySelector(\"{token(index)}\").scrollIntoView({{block: 'center'}})")
        browser.evaluate(f"document.querySelector(\"{token(index)}\").click()")
        assert browser.evaluate(CHOSEN) == index
    assert browser.evaluate("document.scrollingElement.scrollWidth") <= 1200


@needs_browser
def test_the_search_finds_text_across_tokens(show):
    browser = show(explanation(["A", " cat", "alog", ".", "\n", "Cat", " CATALOG"] * 3))
    browser.click("#search")
    browser.type("catalog")
    told = "document.querySelector('#search-count').textContent"
    assert browser.evaluate(told) == "6 found"
    assert browser.evaluate("document.querySelectorAll('.token.found').length") == 9
    browser.press("Enter")
    assert browser.evaluate(told) == "1 of 6 found" and browser.evaluate(CHOSEN) == 1
    browser.press("Enter", modifiers=8)  # with Shift
    assert browser.evaluate(told) == "6 of 6 found" and browser.evaluate(CHOSEN) == 20
    browser.click("#search-next")
    assert browser.evaluate(CHOSEN) == 1
    browser.click("#search")
    browser.type("zzz")
    assert browser.evaluate(told) == "0 found"


@needs_browser
def test_all_arrows_of_short_texts(show):
    browser = show(explanation(words(40)))
    browser.click("#all-arrows")
    assert browser.evaluate(NUM_ARROWS) > 20
    browser.click(token(12))
    assert browser.evaluate(NUM_ARROWS) < 17
    browser.press("Escape")
    browser.press("Escape")
    assert browser.evaluate(NUM_ARROWS) > 20
    browser.click("#all-arrows")
    assert browser.evaluate(NUM_ARROWS) == 0
    assert show(explanation(words(500))).evaluate("document.querySelector('#all-arrows').disabled")


@needs_browser
def test_arrows_follow_when_the_text_is_laid_out_anew(show):
    data = with_prediction(explanation(words(100)), 60, copy_gate=0.9, sink=0.0, sources=[[5, 0.9]])
    browser = show(data)
    browser.click(token(60))
    before = browser.evaluate("document.querySelector('#arrows path').getAttribute('d')")
    browser.call("Emulation.setDeviceMetricsOverride", width=950, height=800, deviceScaleFactor=1, mobile=False)
    browser.wait_for(f"document.querySelector('#arrows path').getAttribute('d') !== '{before}'")


@needs_browser
def test_shading_by_copy_weight_by_surprise_or_not(show):
    data = explanation(words(20))
    with_prediction(data, 6, copy_weight=1.0, log_prob=0.0)
    with_prediction(data, 7, copy_weight=0.0, log_prob=-50.0)
    browser = show(data)
    weights = "[6, 7, 0].map((one) => Number(document.querySelectorAll('.token')[one].style.getPropertyValue('--w')))"
    choose = "(() => {{ const s = document.querySelector('#shade'); s.value = '{}'; s.dispatchEvent(new Event('change')) }})()"
    assert browser.evaluate(weights) == [0.9, 0, 0]
    browser.evaluate(choose.format("surprise"))
    assert browser.evaluate(weights) == [0, 0.9, 0]
    browser.evaluate(choose.format("none"))
    assert browser.evaluate(weights) == [0, 0, 0]


@needs_browser
def test_a_vanilla_model_has_no_copy_parts(show):
    browser = show(explanation(words(50), is_vanilla=True))
    browser.move_mouse(*browser.middle(token(20)))
    shown = browser.evaluate("document.body.innerText")
    assert "LM head" in shown and "surprise" in shown
    for part in ("sink", "gate", "Copied", "Copy-paste", "Mixture", "All arrows", "copy weight"):
        assert part not in shown
    assert "mode" not in browser.evaluate("document.querySelector('#model-facts').innerText")
    assert browser.evaluate(NUM_ARROWS) == 0


@needs_browser
def test_dark_and_light(show):
    background = "getComputedStyle(document.body).backgroundColor"
    data = explanation(words(20))
    light = show(data, scheme="light").evaluate(background)
    browser = show(data, scheme="dark")
    dark = browser.evaluate(background)
    assert light != dark
    browser.click("#theme")
    assert browser.evaluate(background) == light
    browser.click("#theme")
    assert browser.evaluate(background) == dark


@needs_browser
@pytest.mark.parametrize("number", [0, 1, 2])
def test_texts_of_hardly_any_token(show, number):
    browser = show(explanation(words(number), prompt_tokens=min(number, 1)))
    assert browser.evaluate("document.querySelectorAll('.token').length") == number
    if number:
        browser.click(token(number - 1))
        assert browser.evaluate(CHOSEN) == number - 1


@needs_browser
def test_a_probability_of_zero_and_no_source(show):
    data = with_prediction(explanation(words(20)), 9, log_prob=float("-inf"), sources=[])
    browser = show(data)
    browser.click(token(9))
    shown = browser.evaluate(SHOWN)
    assert "0 %" in shown and "surprise infinite" in shown and "no position has 0.005" in shown


@needs_browser
@pytest.mark.parametrize(("content", "reason"), [
    ("{", "the data of this page cannot be read"),
    ('{"format": "other"}', "expected data of format cplm-explain-1, found other"),
])
def test_data_that_cannot_be_shown_are_told(browser, tmp_path, content, reason):
    path = tmp_path / "page.html"
    path.write_text(page_template().replace(MARK, content), encoding="utf-8")
    browser.open(path)
    failure = browser.evaluate("document.querySelector('#failure').innerText")
    assert failure.startswith("This page cannot be shown: ") and reason in failure


@needs_browser
@pytest.mark.parametrize("golden, copies", [("full_cplm_saturated", True), ("full_vanilla", False)])
def test_the_programs_own_page(browser, tmp_path, golden, copies):
    """From weights to arrows: golden weights explained by the program."""
    hf_support = pytest.importorskip("hf_support", reason="needs scripts/setup --reference")
    if not (hf_support.BUILD / "cplm").exists():
        pytest.skip("needs the cplm program")
    checkpoint = tmp_path / "model"
    hf_support.checkpoint_of(hf_support.ROOT / f"tests/golden/{golden}.safetensors", checkpoint)
    for page in (tmp_path / "page.html", tmp_path / "page.json"):
        hf_support.cplm("generate", checkpoint, "--ids", "3,5,3,7,9,3", "--max-new-tokens", 40,
                        "--temperature", 1, "--explain", page)
    predictions = json.loads(page.read_text())["predictions"]
    index = max(range(len(predictions)), key=lambda i: len(predictions[i]["sources"]))
    browser.open(tmp_path / "page.html")
    browser.wait_for("document.querySelectorAll('.token').length === 46")
    browser.move_mouse(*browser.middle(token(index + 1)))
    assert ("Copy-paste head" in browser.evaluate(SHOWN)) == copies
    assert browser.evaluate(NUM_ARROWS) == len(predictions[index]["sources"])
    assert (browser.evaluate(NUM_ARROWS) > 0) == copies
    assert "6 given" in browser.evaluate("document.querySelector('#model-facts').textContent")
    assert browser.errors == []
