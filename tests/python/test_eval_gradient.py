"""cplm eval gradient against autograd of the exported models and dense projections by numpy."""

import h5py
import numpy
import pytest
from eval_support import evaluate, exported, results, train_pair
from hf_support import torch

CONTEXT, SEQUENCES = 24, 3
RTOL = {"1e-12": 1e-12, "1e-3": 1e-3, "1e-2": 1e-2}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return train_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def told(pair, tmp_path_factory):
    return results(
        "gradient", tmp_path_factory.mktemp("out"), pair / "vanilla", pair / "cplm", "--context", CONTEXT,
        "--sequences", SEQUENCES,
    )  # fmt: skip


def windows(folder):
    with h5py.File(next((folder / "data/validation").glob("*.h5"))) as file:
        tokens = file["tokens"][:].astype(numpy.int64)
    return [torch.tensor(tokens[j * CONTEXT : (j + 1) * CONTEXT + 1]) for j in range(SEQUENCES)]


def forward(model, ids, copies):
    """-log P of each next token with the leaves that the gradients are asked for."""
    with torch.no_grad():
        h = model.model(ids[None, :-1]).last_hidden_state[0]
        logits = model.lm_head(h)
        if copies:
            gate = h @ model.copy_token.weight
            positions = torch.arange(CONTEXT)[None]
            allowed = torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).tril()[None]
            keys = model.cp_head.keys(h[None], positions)
            scores, sink = model.cp_head.scores(h[None], positions, keys, allowed)
            scores = scores[0].masked_fill(~allowed[0], 0.0)
    if not copies:
        logits.requires_grad_()
        loss = -logits.log_softmax(-1).gather(1, ids[1:, None]).sum()
        return h, loss, [logits]
    leaves = [torch.cat([logits, gate[:, None]], 1), torch.cat([scores, sink[0, :, None]], 1)]
    for leaf in leaves:
        leaf.requires_grad_()
    z, blocked = leaves[0].softmax(-1), ~allowed[0]
    masked = torch.cat([leaves[1][:, :-1].masked_fill(blocked, -torch.inf), leaves[1][:, -1:]], 1)
    alpha = masked.softmax(-1)
    c, s = z[:, -1], alpha[:, -1]
    target = ids[1:, None]
    p_lm = z.gather(1, target)[:, 0] / (1 - c)
    copied = (alpha[:, :-1] * (ids[None, :-1] == target)).sum(1)
    return h, -((1 - c) * p_lm + c * copied + c * s * p_lm).log().sum(), leaves


def kept_and_lost(matrix, g, rtol=None):
    left, values, _ = numpy.linalg.svd(matrix, full_matrices=False)
    keep = values > (rtol if rtol is not None else len(matrix) * numpy.finfo(float).eps) * values[0]
    coordinates = left[:, keep].T @ g
    size = numpy.linalg.norm(g)
    return numpy.linalg.norm(coordinates) / size, numpy.linalg.norm(g - left[:, keep] @ coordinates) / size


def test_lm_head(pair, told):
    for subject in told["subjects"]:
        copies = subject["name"] == "cplm"
        model = exported(pair, subject["name"])
        w = model.lm_head.weight.detach()
        if copies:
            w = torch.cat([w, model.copy_token.weight.detach()[None]])
        q = numpy.linalg.qr(w.numpy())[0]
        kept = []
        for ids in windows(pair):
            _, loss, leaves = forward(model, ids, copies)
            g = torch.autograd.grad(loss, leaves[0])[0].numpy()
            kept += list(numpy.linalg.norm(g @ q, axis=1) / numpy.linalg.norm(g, axis=1))
        kept = numpy.array(kept)
        head = subject["lm_head"]
        assert (head["rows"], head["rank"]) == (65 if copies else 64, 32)
        assert head["kept"]["mean"] == pytest.approx(kept.mean(), abs=1e-9)
        assert head["lost"]["mean"] == pytest.approx(numpy.sqrt(1 - kept**2).mean(), abs=1e-9)
        assert head["energy_lost"]["mean"] == pytest.approx((1 - kept**2).mean(), abs=1e-9)
        assert head["kept"]["q25"] == pytest.approx(numpy.quantile(kept, 0.25), abs=1e-9)
        assert head["kept"]["count"] == CONTEXT * SEQUENCES
        assert head["isotropic_lost"] == pytest.approx(numpy.sqrt(1 - 32 / head["rows"]), abs=1e-12)
        [bin_] = head["bins"]
        assert (bin_["from"], bin_["to"]) == (1, CONTEXT)
        assert float(bin_["kept"]) == pytest.approx(kept.mean(), abs=1e-9)


def paths(pair):
    """Of each sequence: gradient at the scores [T, T + 1], h, and the head's matrices."""
    model = exported(pair, "cplm")
    head = model.cp_head
    wq, wk = (p.weight.detach().numpy() for p in (head.q_proj, head.k_proj))
    for ids in windows(pair):
        h, loss, leaves = forward(model, ids, True)
        g = torch.autograd.grad(loss, leaves[1])[0].numpy()
        h = h.numpy()
        yield g, h @ wq.T, h @ wk.T, wq, wk, head.sink.detach().numpy()


def check(found, readings):
    for name, values in readings.items():
        place = found
        for key in name:
            place = place[key]
        assert place["mean"] == pytest.approx(numpy.mean(values), abs=1e-9), name


def test_query_path(pair, told):
    measured = told["subjects"][1]["copy_query"]["positions"]
    assert [at["position"] for at in measured] == [1, 2, 4, 8, 16, CONTEXT]
    for at in measured:
        t = at["position"]
        readings: dict[tuple, list] = {}
        for g, _, k, wq, _, sink in paths(pair):
            g = numpy.concatenate([g[t - 1, :t], g[t - 1, -1:]])
            m = numpy.concatenate([k[:t], sink[None]]) @ wq / numpy.sqrt(32)
            for name, rtol in RTOL.items():
                kept, lost = kept_and_lost(m, g, rtol)
                readings.setdefault(("kept", name), []).append(kept)
                readings.setdefault(("one_minus_lost", name), []).append(1 - lost)
                share = numpy.linalg.norm(g[:-1]) / numpy.linalg.norm(g)
                readings.setdefault(("kept_sink_lost", name), []).append(
                    kept_and_lost(m[:-1], g[:-1], rtol)[0] * share
                )
            top = numpy.linalg.svd(m, compute_uv=False)[0]
            readings.setdefault(("transferred",), []).append(
                numpy.linalg.norm(m.T @ g) / top / numpy.linalg.norm(g)
            )
        check(at, readings)
        assert at["random"] == 1.0  # t <= D


def test_key_path(pair, told):
    for at in told["subjects"][1]["copy_key"]["positions"]:
        i = at["position"]
        readings: dict[tuple, list] = {}
        for g, q, _, _, wk, _ in paths(pair):
            column, m = g[i - 1 :, i - 1], q[i - 1 :] @ wk / numpy.sqrt(32)
            for name, rtol in RTOL.items():
                kept, lost = kept_and_lost(m, column, rtol)
                readings.setdefault(("kept", name), []).append(kept)
                readings.setdefault(("one_minus_lost", name), []).append(1 - lost)
        check(at, readings)
        assert "kept_sink_lost" not in at


def test_the_random_curve_falls_where_rows_exceed_the_width(pair, tmp_path):
    told = results(
        "gradient", tmp_path, pair / "cplm", "--context", 100, "--sequences", 1, "--stride", 20, "--data",
        pair / "data/train/*.h5",
    )  # fmt: skip
    query = {at["position"]: at for at in told["subjects"][0]["copy_query"]["positions"]}
    assert list(query) == [1, 2, 4, 8, 16, 32, 64, 84, 100]
    for t in (64, 84, 100):
        assert query[t]["random"] == pytest.approx(numpy.sqrt(32 / t))
    bins = told["subjects"][0]["copy_query"]["bins"]
    assert [(b["from"], b["to"]) for b in bins] == [(1, 64), (65, 100)]
    mean = numpy.mean([query[t]["kept"]["1e-3"]["mean"] for t in (84, 100)])
    assert float(bins[1]["kept"]["1e-3"]) == pytest.approx(mean, abs=1e-12)


def test_goes_on_after_a_kill(pair, tmp_path):
    arguments = (pair / "cplm", "--context", CONTEXT, "--sequences", SEQUENCES)
    first = results("gradient", tmp_path / "a", *arguments)
    folder = tmp_path / "b"
    (folder / "gradient.csv").mkdir(parents=True)  # so that the run ends before its report is there
    evaluate("gradient", *arguments, "--out", folder, expect=1)
    kept = folder / "gradient.pieces.jsonl"
    lines = [line for line in kept.read_text().splitlines() if line]
    assert len(lines) == 1 + SEQUENCES
    kept.write_text("\n".join(lines[:-1]) + "\n")  # the kill came before the last sequence
    (folder / "gradient.csv").rmdir()
    assert results("gradient", folder, *arguments) == first
    assert not kept.exists()


def test_errors_are_one_line(pair, tmp_path):
    def error(*arguments, code):
        return evaluate("gradient", pair / "cplm", *arguments, expect=code).strip().splitlines()[-1]

    assert "no shard matches" in error("--data", tmp_path / "*.h5", code=3)
    assert "--stride" in error("--stride", 0, code=2)
    assert "--sequences" in error("--sequences", 0, code=2)
    assert "window" in error("--context", 10**6, code=3)
