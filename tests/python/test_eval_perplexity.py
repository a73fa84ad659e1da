"""cplm eval perplexity against direct sums over the exported models' log-probabilities."""

import math

import h5py
import numpy
import pytest
from eval_support import evaluate, exported, log_probs, results, train_pair
from hf_support import torch
from text_pair import tokenizer_of, train_text_pair

CONTEXT = 24


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return train_pair(tmp_path_factory.mktemp("pair"))


def shard_tokens(folder):
    with h5py.File(next((folder / "data/validation").glob("*.h5"))) as file:
        return file["tokens"][:].astype(numpy.int64), file["document_offsets"][:]


def windows(folder, count):
    tokens, _ = shard_tokens(folder)
    return [tokens[j * CONTEXT : (j + 1) * CONTEXT + 1] for j in range(count)]


def direct_loss_sum(model, texts, mode="natural"):
    model.config.inference_mode = mode
    total = 0.0
    for text in texts:
        ids = torch.tensor(text)[None]
        found = log_probs(model, ids[:, :-1]).gather(-1, ids[:, 1:, None])
        total -= found.sum().item()
    return total


@pytest.mark.parametrize("head", ["cplm", "vanilla"])
def test_windows_in_all_modes(pair, tmp_path, head):
    told = results("perplexity", tmp_path, pair / head, "--context", CONTEXT, "--sequences", 9, "--batch", 4)
    model, texts = exported(pair, head), windows(pair, 9)
    [subject] = told["subjects"]
    assert told["data"]["counted_tokens"] == 9 * CONTEXT
    assert set(subject["modes"]) == ({"natural", "no_copy", "force_copy"} if head == "cplm" else {"natural"})
    for mode, numbers in subject["modes"].items():
        expected = direct_loss_sum(model, texts, mode) / (9 * CONTEXT)
        assert float(numbers["loss"]) == pytest.approx(expected, rel=1e-9), mode
        assert float(numbers["perplexity"]) == pytest.approx(math.exp(expected), rel=1e-9)


def test_documents_by_themselves_and_the_paired_difference(pair, tmp_path):
    told = results(
        "perplexity", tmp_path, pair / "vanilla", pair / "cplm", "--context", CONTEXT, "--per-document",
        "--sequences", 7, "--batch", 3,
    )  # fmt: skip
    tokens, offsets = shard_tokens(pair)
    texts = [tokens[a:b][: CONTEXT + 1] for a, b in zip(offsets, offsets[1:]) if b - a > 1][:7]
    counts = numpy.array([len(text) - 1 for text in texts])
    sums = {
        head: numpy.array([direct_loss_sum(exported(pair, head), [text]) for text in texts])
        for head in ("vanilla", "cplm")
    }
    for subject in told["subjects"]:
        expected = sums[subject["name"]].sum() / counts.sum()
        assert subject["modes"]["natural"]["loss"] == pytest.approx(expected, rel=1e-9)
    difference = sums["cplm"] - sums["vanilla"]
    mean = difference.sum() / counts.sum()
    error = math.sqrt(7 / 6 * ((difference - mean * counts) ** 2).sum()) / counts.sum()
    found = told["subjects"][1]["difference"]
    assert found["mean"] == pytest.approx(mean, rel=1e-9)
    assert found["high"] == pytest.approx(mean + 1.959963984540054 * error, rel=1e-9)
    assert "difference" not in told["subjects"][0]


def test_bits_count_the_bytes_of_the_text(tmp_path):
    train_text_pair(tmp_path, heads=("cplm",), steps=5)
    told = results("perplexity", tmp_path / "out", tmp_path / "cplm", "--context", CONTEXT, "--sequences", 5)
    tokenizer = tokenizer_of(tmp_path)
    targets = [int(id) for text in windows(tmp_path, 5) for id in text[1:]]
    assert targets.count(0) > 0, "an end of document stands for no bytes"
    # A token of a byte-level tokenizer has a character a byte.
    num_bytes = sum(len(tokenizer.id_to_token(id)) for id in targets if id != 0)
    assert told["data"]["bytes"] == num_bytes
    natural = told["subjects"][0]["modes"]["natural"]
    expected = natural["loss"] * len(targets) / math.log(2) / num_bytes
    assert natural["bits_per_byte"] == pytest.approx(expected, rel=1e-12)


def test_batches_change_nothing(pair):
    tables = {
        evaluate("perplexity", pair / "cplm", "--context", CONTEXT, "--sequences", 9, "--batch", batch)
        for batch in (1, 5, 16)
    }
    assert len(tables) == 1


def test_errors_are_one_line(pair, tmp_path):
    def error(*arguments, code):
        lines = evaluate("perplexity", *arguments, expect=code).strip().splitlines()
        return lines[-1]

    assert "no such checkpoint" in error(tmp_path / "none", code=2)
    assert "no shard matches" in error(pair / "cplm", "--data", tmp_path / "*.h5", code=3)
    assert "--context" in error(pair / "cplm", "--context", "x", code=2)
