"""cplm eval spamlang against argmaxes and greedy texts of the exported model."""

import h5py
import numpy
import pytest
from eval_support import evaluate, exported, log_probs, results, train_pair
from hf_support import cplm, torch

LENGTH = 20


@pytest.fixture(scope="module")
def spam(tmp_path_factory):
    """A pair trained a little on SpamLang, so that accuracies are neither 0 nor 1."""
    folder = tmp_path_factory.mktemp("spam")
    cplm(
        "data", "make", "spamlang", "--output", folder / "spam", "--vocab-size", 64, "--first-symbol", 1,
        "--sequence-length", LENGTH, "--samples", 200, "--validation-samples", 30, "--held-out", 10,
    )  # fmt: skip
    overrides = (
        f"data.train=['{folder}/spam/train/*.h5']", f"data.validation=['{folder}/spam/validation/*.h5']",
        f"data.sequence_length={LENGTH}", "train.batch_tokens=320", "train.steps=14",
    )  # fmt: skip
    return train_pair(folder, overrides)


def samples(folder, split, count):
    with h5py.File(next((folder / "spam" / split).glob("*.h5"))) as file:
        tokens = file["tokens"][:].astype(numpy.int64)
    return torch.tensor(numpy.array([tokens[j * LENGTH : (j + 1) * LENGTH] for j in range(count)]))


def greedy_share(model, ids, prompt):
    with torch.no_grad():
        text = model.generate(
            ids[:, : 1 + prompt], attention_mask=torch.ones_like(ids[:, : 1 + prompt]), do_sample=False,
            max_new_tokens=LENGTH - 1 - prompt, min_new_tokens=LENGTH - 1 - prompt, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
    return (text[:, 1 + prompt :] == ids[:, 1:2]).double().mean().item()


@pytest.mark.parametrize("head", ["cplm", "vanilla"])
def test_accuracies(spam, tmp_path, head):
    told = results("spamlang", tmp_path, spam / head, "--sequences", 12, "--batch", 5, "--prompt", 3)
    [subject] = told["subjects"]
    model = exported(spam, head)
    assert list(subject["splits"]) == ["validation", "held_out"]
    for split, found in subject["splits"].items():
        ids = samples(spam, split, 12)
        modes = ["natural", "no_copy", "force_copy"] if head == "cplm" else ["natural"]
        assert list(found["accuracy"]) == modes
        for mode in modes:
            model.config.inference_mode = mode
            likeliest = log_probs(model, ids).argmax(-1)[:, 1:-1]  # of places 2 to T - 1
            expected = (likeliest == ids[:, 2:]).double().mean().item()
            assert found["accuracy"][mode] == pytest.approx(expected, abs=1e-12), (split, mode)
        model.config.inference_mode = "natural"
        assert found["greedy"] == pytest.approx(greedy_share(model, ids, 3), abs=1e-12), split


def test_errors_are_one_line(spam):
    def error(*arguments, code):
        return evaluate("spamlang", spam / "cplm", *arguments, expect=code).strip().splitlines()[-1]

    assert "expected one symbol 19 times" in error("--data", spam / "data/train/*.h5", code=3)
    assert "--prompt: expected at most 18" in error("--prompt", 19, code=2)
    assert "no shard matches" in error("--held-out", spam / "none/*.h5", code=3)
