"""cplm eval memory: arithmetic for configs and checkpoints, and the loss of each checkpoint."""

import math

import pytest
from eval_support import evaluate, exported, results, train_pair
from hf_support import ROOT, torch
from test_eval_perplexity import CONTEXT, direct_loss_sum, windows


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return train_pair(tmp_path_factory.mktemp("pair"))


def test_frontier_of_checkpoints(pair, tmp_path):
    told = results(
        "memory", tmp_path, pair / "vanilla", pair / "cplm", "--data", f"{pair}/data/validation/*.h5",
        "--context", CONTEXT, "--sequences", 7,
    )  # fmt: skip
    for subject in told["subjects"]:
        model = exported(pair, subject["head"])
        expected = direct_loss_sum(model, windows(pair, 7)) / (7 * CONTEXT)
        assert subject["loss"] == pytest.approx(expected, rel=1e-9)
        assert subject["perplexity"] == pytest.approx(math.exp(expected), rel=1e-9)
        [row] = subject["rows"]
        # A sliding layer with a window of 6 and a full one, 2 key heads of 8; D = 32.
        assert row["keys_and_values"] == (6 + CONTEXT) * 2 * 2 * 8 * 2
        assert row["copy_keys"] == (CONTEXT * 32 * 2 if subject["head"] == "cplm" else 0)
        assert row["length"] == CONTEXT
    assert told["data"]["counted_tokens"] == 7 * CONTEXT


def test_caches_are_those_of_transformers(pair, tmp_path):
    """Numbers of keys and values that the exported model's own cache holds after a text."""
    told = results("memory", tmp_path, pair / "cplm", "--lengths", 17, "--bytes-per-number", 8)
    model = exported(pair, "cplm")
    with torch.no_grad():
        cache = model(torch.ones(1, 17, dtype=torch.long), use_cache=True).past_key_values
    # transformers keeps one position less than the window, as the next one is seen besides.
    sliding, full, copy = (layer.keys for layer in cache.layers)
    numbers = 2 * (sliding[:, :, :1].numel() * 6 + full.numel())
    [row] = told["subjects"][0]["rows"]
    assert row["keys_and_values"] == 8 * numbers
    assert row["copy_keys"] == 8 * copy.numel()


def test_configs_without_weights(tmp_path):
    names = ("full-vanilla", "sliding-cplm", "hybrid-cplm", "full-cplm")
    configs = [ROOT / f"configs/1.7b-{name}.yaml" for name in names]
    told = results("memory", tmp_path, *configs, "--lengths", 4096)
    full, sliding, hybrid, copying = (subject["rows"][0] for subject in told["subjects"])
    assert 1 / sliding["of_first"] == pytest.approx(12.00, abs=0.005)
    assert 1 / hybrid["of_first"] == pytest.approx(3.15, abs=0.005)
    assert copying["documents_of_cache"] == pytest.approx(1 / 49)
    assert copying["documents_of_keys_and_values"] == pytest.approx(1 / 48)
    assert full["of_full_vanilla"] == 1
    table = evaluate("memory", *configs, "--lengths", 4096)
    assert "1/12.00" in table and "1/3.15" in table and "1/49.00" in table


def test_windows_by_arithmetic(tmp_path):
    config = ROOT / "configs/135m-sliding-cplm.yaml"
    told = results("memory", tmp_path, config, "--windows", "32,64,1024", "--lengths", "512,65536")
    rows = told["subjects"][0]["rows"]
    assert [(row["window"], row["length"]) for row in rows] == [
        (w, length) for w in (32, 64, 1024) for length in (512, 65536)
    ]
    assert "--windows" in evaluate("memory", config, "--windows", 32, "--data", "x.h5", expect=2)
    again = results("memory", tmp_path, config, "--windows", "1024,64,32,64", "--lengths", "65536,512,512")
    assert again == told


def test_settings_that_would_change_nothing_are_refused():
    full, sliding = (ROOT / f"configs/135m-{name}-cplm.yaml" for name in ("full", "sliding"))
    for arguments in (("--context", 64), ("--per-document",), ("--sequences", 2), ("--batch", 2)):
        assert "requires --data" in evaluate("memory", sliding, *arguments, expect=2)
    assert "--windows: are of sliding layers" in evaluate("memory", full, "--windows", 32, expect=2)


def test_recurrent_states_have_a_part_of_their_own(tmp_path):
    config = ROOT / "configs/135m-recurrent-cplm.yaml"
    results("memory", tmp_path, config, "--lengths", 4096)
    picture = (tmp_path / "memory.svg").read_text()
    assert "recurrent states" in picture and "keys and values" not in picture
