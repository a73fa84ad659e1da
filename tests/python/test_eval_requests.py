"""cplm eval requests against sums over the exported model's log-probabilities."""

import csv
import json
import math

import numpy
import pytest
from eval_support import evaluate, exported, results, train_pair
from hf_support import torch

MODES = ("natural", "no_copy", "force_copy")


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return train_pair(tmp_path_factory.mktemp("pair"))


def make_items(seed, count, longest=30):
    """Items of ids: contexts that repeat themselves, so that copying pays."""
    random = numpy.random.default_rng(seed)
    items = []
    for number in range(count):
        unit = random.integers(1, 64, random.integers(1, 9)).tolist()
        context = (unit * 9)[: random.integers(1, longest)]
        choices = [
            random.integers(1, 64, random.integers(1, 4)).tolist()
            for _ in range(random.integers(2, 5))
        ]
        gold = int(random.integers(len(choices)))
        choices[gold] = (unit * 9)[len(context) % len(unit) :][: len(choices[gold])]
        items.append({"id": f"item {number}", "context": context, "choices": choices, "gold": gold})
    return items


def write_lines(path, items):
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


def direct_score(model, mode, context, continuation):
    """log P of the continuation, and whether each of its tokens is the likeliest."""
    model.config.inference_mode = mode
    ids = torch.tensor(context + continuation)[None]
    with torch.no_grad():
        logits = model(ids[:, :-1]).logits[0, len(context) - 1 :]
    log_prob = torch.log_softmax(logits, -1) if mode != "force_copy" else logits
    targets = ids[0, len(context) :]
    return log_prob.gather(-1, targets[:, None]).sum().item(), bool((log_prob.argmax(-1) == targets).all())


def rows_of(folder):
    with open(folder / "requests.csv", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("batch", [1, 7])
def test_scores_and_accuracies(pair, tmp_path, batch):
    items = make_items(1, 12)
    path = write_lines(tmp_path / "items.jsonl", items)
    modes = [word for mode in MODES for word in ("--mode", mode)]
    told = results(
        "requests",
        tmp_path,
        pair / "vanilla",
        pair / "cplm",
        "--requests",
        path,
        *modes,
        "--batch",
        batch,
    )
    rows = rows_of(tmp_path)
    for name in ("vanilla", "cplm"):
        model = exported(pair, name)
        [subject] = [each for each in told["subjects"] if each["name"] == name]
        [file] = subject["files"]
        assert set(file["modes"]) == (set(MODES) if name == "cplm" else {"natural"})
        for mode in file["modes"]:
            expected = [
                [direct_score(model, mode, item["context"], choice) for choice in item["choices"]]
                for item in items
            ]
            found = [row for row in rows if row["model"] == name and row["mode"] == mode]
            flat = [score for item in expected for score in item]
            assert [float(row["log_prob"]) for row in found] == pytest.approx([s[0] for s in flat], rel=1e-9)
            assert [row["greedy"] == "1" for row in found] == [s[1] for s in flat]
            right = [
                int(numpy.argmax([score[0] for score in scores]) == item["gold"])
                for item, scores in zip(items, expected)
            ]
            acc = file["modes"][mode]["acc"]
            assert acc["mean"] == pytest.approx(numpy.mean(right))
            assert acc["stderr"] == pytest.approx(numpy.std(right, ddof=1) / math.sqrt(12))
            assert "acc_norm" not in file["modes"][mode], "ids have no bytes"
        assert file["chance"] == pytest.approx(numpy.mean([1 / len(item["choices"]) for item in items]))


def test_pairs_and_several_files(pair, tmp_path):
    singles = [{"context": [1, 2, 3], "continuation": [1, 2]}, {"context": [9], "continuation": [9]}]
    paths = [
        write_lines(tmp_path / "singles.jsonl", singles),
        write_lines(tmp_path / "choices.jsonl", make_items(2, 3)),
    ]
    told = results("requests", tmp_path, pair / "cplm", "--requests", *paths)
    model = exported(pair, "cplm")
    expected = [direct_score(model, "natural", item["context"], item["continuation"]) for item in singles]
    first, second = told["subjects"][0]["files"]
    assert (first["name"], second["name"]) == ("singles", "choices")
    numbers = first["modes"]["natural"]
    assert numbers["log_prob"]["mean"] == pytest.approx(numpy.mean([s[0] for s in expected]), rel=1e-9)
    losses = [-expected[0][0] / 2, -expected[1][0]]
    assert numbers["token_loss"]["mean"] == pytest.approx(numpy.mean(losses), rel=1e-9)
    assert numbers["greedy"]["mean"] == pytest.approx(numpy.mean([s[1] for s in expected]))
    assert "acc" in second["modes"]["natural"] and "acc" not in numbers
    twice = evaluate("requests", pair / "cplm", "--requests", paths[0], "--requests", paths[0], expect=2)
    assert f"--requests {paths[0]}: is given twice" in twice


def test_a_file_of_both_kinds_counts_each(pair, tmp_path):
    items = [{"context": [1, 2], "continuation": [3]}, *make_items(2, 3)]
    path = write_lines(tmp_path / "both.jsonl", items)
    numbers = results("requests", tmp_path, pair / "cplm", "--requests", path)["subjects"][0]["files"][0]
    told = numbers["modes"]["natural"]
    assert (numbers["items"], told["greedy"]["items"], told["acc"]["items"]) == (4, 1, 3)
    assert "3 + 1" in (tmp_path / "requests.txt").read_text()


def test_long_contexts_lose_their_first_tokens(pair, tmp_path):
    context = [int(x) for x in numpy.random.default_rng(3).integers(1, 64, 50)]
    path = write_lines(tmp_path / "items.jsonl", [{"context": context, "continuation": [5, 6]}])
    results("requests", tmp_path, pair / "cplm", "--requests", path, "--context", 16)
    [row] = rows_of(tmp_path)
    expected, _ = direct_score(exported(pair, "cplm"), "natural", context[-15:], [5, 6])
    assert float(row["log_prob"]) == pytest.approx(expected, rel=1e-9)
    assert row["cut"] == "1"


def test_differences_are_paired_by_item(pair, tmp_path):
    path = write_lines(tmp_path / "items.jsonl", make_items(4, 9))
    told = results("requests", tmp_path, pair / "vanilla", pair / "cplm", "--requests", path)
    rows = rows_of(tmp_path)

    def right(name):
        return numpy.array([int(r["chosen"]) for r in rows if r["model"] == name and r["gold"] == "1"])

    difference = right("cplm") - right("vanilla")
    found = told["subjects"][1]["files"][0]["modes"]["natural"]["acc"]["difference"]
    assert found["mean"] == pytest.approx(difference.mean())
    error = difference.std(ddof=1) / 3
    assert found["high"] == pytest.approx(difference.mean() + 1.959963984540054 * error)
    assert "difference" not in told["subjects"][0]["files"][0]["modes"]["natural"]["acc"]


def test_goes_on_after_a_kill(pair, tmp_path):
    path = write_lines(tmp_path / "items.jsonl", make_items(5, 40))
    arguments = (pair / "cplm", "--requests", path)
    first = results("requests", tmp_path / "a", *arguments)
    folder = tmp_path / "b"
    folder.mkdir()
    (folder / "requests.csv").mkdir()  # cannot be replaced by a file
    evaluate("requests", *arguments, "--out", folder, expect=1)
    pieces = folder / "requests.pieces.jsonl"
    lines = pieces.read_text().split("\n\n")
    assert len(lines) > 1
    pieces.write_text(lines[0] + "\n")
    (folder / "requests.csv").rmdir()
    assert results("requests", folder, *arguments) == first


def test_errors(pair, tmp_path):
    def error(line, code=3, *arguments):
        path = tmp_path / "items.jsonl"
        path.write_bytes(line if isinstance(line, bytes) else line.encode())
        told = evaluate("requests", pair / "cplm", "--requests", path, *arguments, expect=code)
        return told.strip().splitlines()[-1].replace(str(path), "F")

    assert "F:1: expected a JSON object in one line" in error("{")
    assert "F:2: expected UTF-8" in error(b'{"context":[1],"continuation":[2]}\n{"id":"\xff"}')
    assert "F:1: " in (told := error('{"context":"a","continuation":"b"}')) and "no tokenizer.json" in told
    assert "below 64, the model's vocab_size, found 64" in error('{"context":[1],"continuation":[64]}')
    assert "the context is empty" in error('{"context":[],"continuation":[1]}')
    assert "give a longer --context" in error('{"context":[1],"continuation":[2,3,4]}', 3, "--context", 2)
    assert "--mode" in error('{"context":[1],"continuation":[2]}', 2, "--mode", "both")
    assert "none.jsonl" in evaluate(
        "requests", pair / "cplm", "--requests", tmp_path / "none.jsonl", expect=3
    )
    assert "--requests" in evaluate("requests", pair / "cplm", expect=2)
