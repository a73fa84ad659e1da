"""cplm eval recall against the exported models on the same sequences, and a pair that can retrieve."""

import h5py
import numpy
import pytest
from eval_support import evaluate, exported, log_probs, results
from hf_support import cplm, torch

VOCABULARY, SAMPLES, PAIRS, FILLER, CONTEXT, STEPS = 37, 13, 4, 4, 40, 300
SYMBOLS = ("--first-symbol", 1, "--pairs", PAIRS, "--filler-symbols", FILLER, "--seed", 5)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Both heads after some hundred steps on key-value sequences: the CPLM has found out how."""
    folder = tmp_path_factory.mktemp("pair")
    cplm(
        "data", "make", "recall", "--output", folder / "data", "--vocab-size", VOCABULARY, "--first-symbol", 1,
        "--pairs", PAIRS, "--filler-symbols", FILLER, "--queries", PAIRS, "--sequence-length", CONTEXT,
        "--samples", 20000,
    )  # fmt: skip
    for head in ("cplm", "vanilla"):
        (folder / f"{head}.yaml").write_text(f"""
run: {{name: {head}, dir: {folder / head}, seed: 3}}
model:
  vocab_size: {VOCABULARY}
  hidden_size: 32
  num_hidden_layers: 2
  num_attention_heads: 2
  num_key_value_heads: 2
  intermediate_size: 48
  backbone: sliding
  sliding_window: 6
  initializer_range: 0.18
  head: {head}
data: {{train: ['{folder}/data/train/*.h5'], validation: ['{folder}/data/validation/*.h5'], sequence_length: {CONTEXT}}}
train: {{steps: {STEPS}, batch_tokens: 1280, micro_batch: 32, device: cpu, precision: float32, threads: 1}}
optimizer: {{lr: 1.0e-2}}
schedule: {{warmup_steps: 10}}
checkpoint: {{every: 0}}
""")
        cplm("train", folder / f"{head}.yaml")
    return folder


def sequences(folder, distance, tokens):
    """What `cplm data make recall` writes for validation: windows up to the key, and the value."""
    cplm(
        "data", "make", "recall", "--output", folder, *SYMBOLS, "--vocab-size", VOCABULARY, "--queries", 1,
        "--distance", distance, "--sequence-length", tokens + 1, "--samples", 1, "--validation-samples", SAMPLES,
    )  # fmt: skip
    with h5py.File(next((folder / "validation").glob("*.h5"))) as file:
        stream = file["tokens"][:].astype(numpy.int64)
    windows = [stream[i * (tokens + 1) :][: tokens + 2] for i in range(SAMPLES)]
    for window in windows:
        key, value = window[-3], window[-2]
        first = list(window).index(key)
        assert window[first + 1] == value and len(window) - 2 - (first + 1) == distance
    return torch.tensor(numpy.array([window[:-2] for window in windows])), [int(w[-2]) for w in windows]


@pytest.mark.parametrize("head", ["cplm", "vanilla"])
def test_accuracy_is_that_of_the_exported_model(pair, tmp_path, head):
    distances = [2, 9, 31, 70, 150]
    told = results(
        "recall", tmp_path / "told", pair / head, *SYMBOLS, "--distances", ",".join(map(str, distances)),
        "--context", CONTEXT, "--samples", SAMPLES, "--batch-tokens", 300,
    )  # fmt: skip
    [subject] = told["subjects"]
    assert told["chance"] == 1 / PAIRS
    assert subject["tokens"] == [max(CONTEXT, distance + 2 * PAIRS + 1) - 1 for distance in distances]
    model = exported(pair, head)
    modes = {"natural", "no_copy", "force_copy"} if head == "cplm" else {"natural"}
    assert set(subject["modes"]) == modes
    seen = 0
    for mode in modes:
        model.config.inference_mode = mode
        for index, distance in enumerate(distances):
            ids, values = sequences(tmp_path / f"{mode}-{distance}", distance, subject["tokens"][index])
            chosen = log_probs(model, ids)[:, -1].argmax(-1).tolist()
            correct = sum(map(int.__eq__, chosen, values))
            assert subject["modes"][mode]["correct"][index] == correct, (mode, distance)
            assert subject["modes"][mode]["accuracy"][index] == correct / SAMPLES
            seen += correct
    assert head == "vanilla" or seen > 0, "some answers are right by chance"


def test_a_sliding_cplm_retrieves_from_beyond_its_window(pair, tmp_path):
    """Window 6, trained on 40 tokens."""
    told = results(
        "recall",
        tmp_path,
        pair / "cplm",
        pair / "vanilla",
        *SYMBOLS,
        "--distances",
        "10,30,100,1k",
        "--samples",
        40,
    )
    cplm_modes, vanilla_modes = [subject["modes"] for subject in told["subjects"]]
    assert min(cplm_modes["natural"]["accuracy"]) > 0.95
    assert min(cplm_modes["force_copy"]["accuracy"]) > 0.95
    assert max(cplm_modes["no_copy"]["accuracy"]) < 0.5
    assert max(vanilla_modes["natural"]["accuracy"]) < 0.5, "chance is 0.25 at most"


def test_default_distances_and_batches_change_nothing(pair):
    tables = {
        evaluate(
            "recall",
            pair / "cplm",
            pair / "vanilla",
            *SYMBOLS,
            "--samples",
            7,
            "--batch-tokens",
            tokens,
        )
        for tokens in (1, 200, 65536)
    }
    [table] = tables
    assert "128" in table and "chance 25.0" in table and "160" not in table


def test_errors_are_one_line(pair):
    def error(*arguments):
        lines = evaluate("recall", pair / "cplm", *arguments, expect=2).strip().splitlines()
        return lines[-1]

    assert "a vocabulary of 37: --filler-symbols" in error()
    too_many = error("--first-symbol", 1, "--filler-symbols", 4, "--pairs", 22)
    assert "a vocabulary of 37: --pairs: expected 1 to 16" in too_many
    assert "expected whole numbers from 2" in error("--distances", "1,5")
    assert "--eos-id" in error(*SYMBOLS, "--eos-id", 37)
