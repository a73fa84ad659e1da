"""cplm eval induction against the attentions and log-probabilities of the exported models."""

import math

import numpy
import pytest
from eval_support import evaluate, exported, log_probs, results, train_pair
from hf_support import torch

ARGUMENTS = ("--first-symbol", 1, "--sequences", 10, "--batch", 4)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return train_pair(tmp_path_factory.mktemp("pair"))


def mix64(x):
    """splitmix64's finaliser."""
    mask = (1 << 64) - 1
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def hash_name(name):
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = ((value ^ byte) * 0x100000001B3) & ((1 << 64) - 1)
    return mix64(value)


def sequences(length, count, vocab_size=64, first_symbol=1, seed=1234):
    """[0] r r, as the program draws them: docs/synthetic-data.md's generator for the split "induction"."""
    mask, stride = (1 << 64) - 1, 0x9E3779B97F4A7C15
    rows = []
    for index in range(count):
        state = mix64((mix64(seed ^ hash_name("repeat induction")) + index * stride) & mask)
        numbers = vocab_size - first_symbol

        def draw(bound):
            nonlocal state
            while True:
                state = (state + stride) & mask
                drawn = mix64(state)
                if drawn >= (-bound & mask) % bound:
                    return drawn % bound

        draw(1)  # the length, of a range of one
        r = [first_symbol + draw(numbers) for _ in range(length)]
        rows.append([0, *r, *r])
    return torch.tensor(rows)


def expected_scores(model, ids, length):
    """By layer and head: the mean over the second copy of the attention to t - (T - 1)."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = model(ids, output_attentions=True).attentions
    queries = torch.arange(length + 1, 2 * length + 1)
    return [layer[:, :, queries, queries - (length - 1)].mean((0, 2)).numpy() for layer in attentions]


def expected_copy_head(model, ids, length):
    """alpha, alpha / (1 - s), c, s."""
    with torch.no_grad():
        h = model.model(ids).last_hidden_state
        head = model.cp_head
        positions = torch.arange(ids.shape[1])[None]
        allowed = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()[None]
        scores, sink = head.scores(h, positions, head.keys(h, positions), allowed)
        alpha = torch.cat([scores, sink[..., None]], -1).softmax(-1)
        logits = torch.cat([model.lm_head(h), (h @ model.copy_token.weight)[..., None]], -1)
        gate = logits.softmax(-1)[..., -1]
    queries = torch.arange(length + 1, 2 * length + 1)
    copied, to_sink = alpha[:, queries, queries - (length - 1)], alpha[:, queries, -1]
    return {
        "score": copied.mean().item(),
        "score_without_sink": (copied / (1 - to_sink)).mean().item(),
        "copy_gate": gate[:, queries].mean().item(),
        "sink_mass": to_sink.mean().item(),
    }


@pytest.mark.parametrize("head", ["cplm", "vanilla"])
@pytest.mark.parametrize("length", [3, 12])  # the window is 6: the sliding layer holds the stripe of 3 only
def test_scores_are_the_models_attentions(pair, tmp_path, head, length):
    told = results(
        "induction", tmp_path, pair / head, "--lengths", length, "--score-length", length, *ARGUMENTS
    )
    model, ids = exported(pair, head), sequences(length, 10)
    [subject] = told["subjects"]
    scores = subject["scores"]
    expected = expected_scores(model, ids, length)
    assert [len(layer) for layer in scores["layers"]] == [4, 4]
    for found, layer in zip(scores["layers"], expected):
        numpy.testing.assert_allclose(found, layer, atol=1e-5)
        numpy.testing.assert_allclose(found, layer, atol=1e-9)  # both in float64
    flat = numpy.concatenate(expected)
    assert scores["heads"] == 8
    assert scores["heads_from"] == {str(t): int((flat >= t).sum()) for t in (0.3, 0.4, 0.5)}
    if length == 12:
        assert scores["layers"][0] == [0, 0, 0, 0], "beyond the window"
    if head == "vanilla":
        assert "copy_head" not in scores
        return
    for key, value in expected_copy_head(model, ids, length).items():
        assert float(scores["copy_head"][key]) == pytest.approx(value, abs=1e-9), key


@pytest.mark.parametrize("head", ["cplm", "vanilla"])
def test_losses_by_copy_and_mode(pair, tmp_path, head):
    told = results("induction", tmp_path, pair / head, "--lengths", "4,9", *ARGUMENTS)
    assert told["chance"] == pytest.approx(math.log(63))
    model = exported(pair, head)
    modes = ["natural", "no_copy", "force_copy"] if head == "cplm" else ["natural"]
    for loss, length in zip(told["subjects"][0]["losses"], (4, 9)):
        assert loss["length"] == length
        ids = sequences(length, 10)
        assert list(loss["second_copy"]) == modes
        for mode in modes:
            model.config.inference_mode = mode
            of_targets = -log_probs(model, ids[:, :-1]).gather(-1, ids[:, 1:, None]).squeeze(-1)
            second = of_targets[:, length + 1 :]
            assert second.shape[1] == length - 1
            assert float(loss["second_copy"][mode]) == pytest.approx(second.mean().item(), rel=1e-9), mode
            if mode == "natural":
                first = of_targets[:, :length].mean().item()
                assert float(loss["first_copy"]) == pytest.approx(first, rel=1e-9)


def test_batches_change_nothing(pair):
    tables = {
        evaluate(
            "induction",
            pair / "cplm",
            "--lengths",
            6,
            "--first-symbol",
            1,
            "--sequences",
            9,
            "--batch",
            batch,
        )
        for batch in (1, 4, 16)
    }
    assert len(tables) == 1


def test_lengths_follow_the_context(pair, tmp_path):
    told = results("induction", tmp_path, pair / "cplm", pair / "vanilla", "--context", 70, *ARGUMENTS)
    assert [loss["length"] for loss in told["subjects"][1]["losses"]] == [16, 32]
    assert told["score_length"] == 32


def test_errors_are_one_line(pair):
    def error(*arguments):
        return evaluate("induction", pair / "cplm", *arguments, expect=2).strip().splitlines()[-1]

    assert "holds no 16 symbols twice" in error()  # trained on 32 positions
    assert "--first-symbol" in error("--lengths", 4, "--first-symbol", 64)
    assert "--eos-id" in error("--lengths", 4, "--eos-id", 64)
    assert "--score-length" in error("--lengths", 4, "--score-length", 513)
    assert "--lengths" in error("--lengths", 1)
    assert "--seed" in error("--lengths", 4, "--seed", -1)
    assert "--lengths excludes --context" in error("--lengths", 40, "--context", 32)
