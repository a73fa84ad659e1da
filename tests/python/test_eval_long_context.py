"""cplm eval long-context against direct sums over the exported models' log-probabilities and scores."""

import json
import math

import h5py
import numpy
import pytest
from eval_support import evaluate, exported, log_probs, results, train_pair
from hf_support import torch

LENGTH = 32  # of documents of 33 tokens; the shard's first has one


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return train_pair(tmp_path_factory.mktemp("pair"))


def shard_documents(folder):
    with h5py.File(next((folder / "data/validation").glob("*.h5"))) as file:
        tokens, offsets = file["tokens"][:].astype(numpy.int64), file["document_offsets"][:]
    return [tokens[begin:end] for begin, end in zip(offsets, offsets[1:])]


def texts_of(folder, count):
    long = [text for text in shard_documents(folder) if len(text) > LENGTH]
    return [text[: LENGTH + 1] for text in long[:count]]


def direct(model, text):
    """By position: loss, c, s, g and the copy distance, from the definition."""
    ids = torch.tensor(text)[None]
    found = {"loss": -log_probs(model, ids[:, :-1]).gather(-1, ids[:, 1:, None])[0, :, 0]}
    if not hasattr(model, "cp_head"):
        return {name: values.detach().numpy() for name, values in found.items()}
    with torch.no_grad():
        h = model.model(input_ids=ids[:, :-1]).last_hidden_state[0]
        logits = h @ model.get_output_embeddings().weight.T
        copy_logit = h @ model.copy_token.weight.reshape(-1)
        gate = torch.softmax(torch.cat([logits, copy_logit[:, None]], 1), -1)[:, -1]
        q, k = h @ model.cp_head.q_proj.weight.T, h @ model.cp_head.k_proj.weight.T
        scores = torch.cat([q @ k.T, (q @ model.cp_head.sink.reshape(-1))[:, None]], 1) / math.sqrt(
            h.shape[1]
        )
        positions = torch.arange(LENGTH)
        hidden = torch.cat(
            [positions[None] > positions[:, None], torch.zeros(LENGTH, 1, dtype=torch.bool)], 1
        )
        alpha = torch.softmax(scores.masked_fill(hidden, -math.inf), -1)
        sink = alpha[:, -1]
        found |= {
            "copy_gate": gate, "sink_mass": sink, "copy_weight": gate * (1 - sink),
            "copy_distance": (alpha[:, :-1] * (positions[:, None] - positions[None])).sum(-1) / (1 - sink),
        }  # fmt: skip
    return {name: values.numpy() for name, values in found.items()}


def direct_means(model, texts):
    each = [direct(model, text) for text in texts]
    return {name: numpy.mean([one[name] for one in each], axis=0) for name in each[0]}


@pytest.mark.parametrize("smooth", [1, 6])
def test_positions_and_buckets(pair, tmp_path, smooth):
    told = results(
        "long-context", tmp_path, pair / "vanilla", pair / "cplm", "--length", LENGTH, "--documents", 5,
        "--smooth", smooth, "--batch", 2,
    )  # fmt: skip
    texts = texts_of(pair, 5)
    assert told["data"]["sequences"] == 5 and told["data"]["counted_tokens"] == 5 * LENGTH
    for subject in told["subjects"]:
        means = direct_means(exported(pair, subject["name"]), texts)
        assert set(means) == set(subject["by_position"])
        for name, expected in means.items():
            windows = [
                expected[max(0, t - smooth // 2) : max(0, t - smooth // 2 + smooth)] for t in range(LENGTH)
            ]
            curve = [numpy.mean(window) for window in windows]
            assert subject["by_position"][name] == pytest.approx(curve, rel=1e-6), name
        edges = [(bucket["begin"], bucket["end"]) for bucket in subject["buckets"]]
        assert edges == [(0, 2), (2, 4), (4, 8), (8, 16), (16, 32), (30, 32)]
        for bucket in subject["buckets"]:
            for name, expected in means.items():
                want = expected[bucket["begin"] : bucket["end"]].mean()
                assert bucket[name] == pytest.approx(want, rel=1e-9), name
            assert bucket["perplexity"] == pytest.approx(math.exp(bucket["loss"]), rel=1e-12)
    whole = told["subjects"][1]["whole"]
    assert whole["copy_distance"] == pytest.approx(means["copy_distance"].mean(), rel=1e-9)


def test_differences_are_paired_by_document(pair, tmp_path):
    told = results(
        "long-context", tmp_path, pair / "vanilla", pair / "cplm", "--length", LENGTH, "--documents", 6
    )  # fmt: skip
    sums = {
        name: numpy.array(
            [direct(exported(pair, name), text)["loss"][16:32].sum() for text in texts_of(pair, 6)]
        )
        for name in ("vanilla", "cplm")
    }
    bucket = told["subjects"][1]["buckets"][4]
    difference = sums["cplm"] - sums["vanilla"]
    assert bucket["difference"]["mean"] == pytest.approx(difference.mean() / 16, rel=1e-9)
    error = difference.std(ddof=1) / math.sqrt(6) / 16
    assert bucket["difference"]["low"] == pytest.approx(
        difference.mean() / 16 - 1.959963984540054 * error, rel=1e-9
    )


def test_windows_over_documents(pair, tmp_path):
    told = results(
        "long-context", tmp_path, pair / "cplm", "--length", 24, "--packed", "--documents", 4, "--smooth", 1
    )  # fmt: skip
    tokens = numpy.concatenate(shard_documents(pair))
    model = exported(pair, "cplm")
    losses = []
    for j in range(4):
        ids = torch.tensor(tokens[j * 24 : (j + 1) * 24 + 1])[None]
        losses.append(-log_probs(model, ids[:, :-1]).gather(-1, ids[:, 1:, None])[0, :, 0].numpy())
    [subject] = told["subjects"]
    assert subject["by_position"]["loss"] == pytest.approx(numpy.mean(losses, axis=0), rel=1e-6)


def test_goes_on_after_a_kill(pair, tmp_path):
    arguments = (pair / "cplm", "--length", LENGTH, "--documents", 3)
    first = results("long-context", tmp_path / "a", *arguments)
    # A run that ends before its report is there: a folder has its name.
    folder = tmp_path / "b"
    folder.mkdir()
    (folder / "long-context.csv").mkdir()
    evaluate("long-context", *arguments, "--out", folder, expect=1)
    pieces = (folder / "long-context.pieces.jsonl").read_text().splitlines()
    assert sum(map(bool, pieces)) == 3
    (folder / "long-context.csv").rmdir()
    assert results("long-context", folder, *arguments) == first


def test_yarn_stretches_full_layers_and_leaves_sliding_models_alone(pair, tmp_path):
    sliding = train_pair(tmp_path / "sliding", ["model.backbone=sliding"], heads=("cplm",))
    arguments = ("--length", 2 * LENGTH, "--packed", "--documents", 2)
    plain = results("long-context", tmp_path / "a", sliding / "cplm", pair / "cplm", *arguments)
    yarn = results("long-context", tmp_path / "b", sliding / "cplm", pair / "cplm", *arguments, "--yarn", 2)
    assert [subject["yarn"] for subject in yarn["subjects"]] == [None, 2]
    assert yarn["subjects"][0]["whole"] == plain["subjects"][0]["whole"]
    assert yarn["subjects"][1]["whole"] != plain["subjects"][1]["whole"]
    error = evaluate("long-context", sliding / "cplm", *arguments, "--yarn", 2, expect=2)
    assert "--yarn: stretches full-attention layers, and there are none" in error


def test_errors(pair, tmp_path):
    def error(*arguments, code):
        return evaluate("long-context", pair / "cplm", *arguments, expect=code).strip().splitlines()[-1]

    longest = max(map(len, shard_documents(pair)))
    assert "no document of 16385 or more tokens in 1 shard(s)" in error(code=3)
    assert f"the longest has {longest}" in error(code=3)
    assert "expected 100000 documents of 33 or more tokens" in error(
        "--length", LENGTH, "--documents", 100000, code=3
    )
    assert "--length" in error("--length", 0, code=2)
    assert "--smooth" in error("--smooth", 0, code=2)
    assert "no shard matches" in error("--data", tmp_path / "*.h5", code=3)


def test_one_position(pair, tmp_path):
    told = results("long-context", tmp_path, pair / "cplm", "--length", 1, "--documents", 2)
    [subject] = told["subjects"]
    assert subject["by_position"]["copy_distance"] == [0]  # the first position has itself alone
    assert [(bucket["begin"], bucket["end"]) for bucket in subject["buckets"]] == [(0, 1)]


def test_table(pair):
    shown = evaluate("long-context", pair / "vanilla", pair / "cplm", "--length", LENGTH, "--documents", 2)
    rows = [line.split() for line in shown.splitlines()[2:]]
    assert len(rows) == 12 and rows[0][:2] == ["vanilla", "0-2"] and rows[11][:2] == ["cplm", "30-32"]
    assert json.loads(rows[11][2]) > 0
