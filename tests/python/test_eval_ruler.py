"""cplm eval ruler against greedy decoding by the exported models, and RULER's scores."""

import json
import shutil
import subprocess

import pytest
from eval_support import BUILD, evaluate, exported, results
from hf_support import cplm
from text_pair import greedy_answer, rows_of, tokenizer_of, train_text_pair

TASKS = "niah_single_1,niah_multiquery_filler"


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = train_text_pair(tmp_path_factory.mktemp("pair"))
    cplm(
        "data", "make", "ruler", "--output", folder / "ruler", "--tokenizer", folder / "data/tokenizer.json",
        "--lengths", "400,520", "--tasks", TASKS, "--samples", 3,
    )  # fmt: skip
    return folder


def score(task, answer, outputs):
    found = [reference.lower() in answer.lower() for reference in outputs]
    return 100 * (max(found) if task.startswith("qa") else sum(found) / len(found))


@pytest.mark.parametrize("head", ["cplm", "vanilla"])
def test_answers_are_the_greedy_ones(pair, tmp_path, head):
    told = results(
        "ruler", tmp_path, pair / head, "--data", pair / "ruler", "--new-tokens", 12, "--batch-tokens", 700
    )
    model, tokenizer = exported(pair, head), tokenizer_of(pair)
    assert [(file["length"], file["task"]) for file in told["data"]] == [
        (length, task) for length in (400, 520) for task in TASKS.split(",")
    ]
    different = set()
    for file in told["data"]:
        place = f"{file['length']}/{file['task']}"
        predictions = rows_of(tmp_path / f"predictions/{head}/{place}.jsonl")
        questions = rows_of(pair / f"ruler/{place}/validation.jsonl")
        assert len(predictions) == len(questions) == 3
        for prediction, question in zip(predictions, questions):
            prompt = question["input"] + question["answer_prefix"]
            assert prediction["pred"] == greedy_answer(model, tokenizer, prompt, 12)
            assert prediction["input"] == prompt
            assert list(prediction) == ["index", "pred", "input", "outputs", "others", "truncation", "length"]
            assert [prediction[key] for key in ("index", "outputs", "length")] == [
                question[key] for key in ("index", "outputs", "length")
            ]
            different.add(prediction["pred"])
    assert len(different) > 1


def test_scores_and_means(pair, tmp_path):
    """With references taken from the answers themselves, some of them in capitals or changed."""
    def question_files(change):
        for place in ("400/niah_single_1", "400/vt", "400/qa_1", "520/niah_single_1"):
            lines = []
            for index in range(4):
                text = f"The number of item {index} in {place} is"
                row = {"index": 10 + index, "input": text, "outputs": ["?"]}
                lines.append(change(place, index, row))
            path = tmp_path / "data" / place / "validation.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    question_files(lambda place, index, row: row)
    arguments = [pair / "cplm", "--data", tmp_path / "data", "--new-tokens", 10]
    results("ruler", tmp_path / "first", *arguments)

    def references(place, index, row):
        path = tmp_path / f"first/predictions/cplm/{place}.jsonl"
        answer = rows_of(path)[index]["pred"].strip()
        outputs = [answer[: 3 + index].upper(), answer + "!"][: 1 + index % 2]
        return row | {"outputs": outputs + ["a"] * (index == 2)}

    question_files(references)
    told = results("ruler", tmp_path / "second", *arguments)
    [subject] = told["subjects"]
    scores = {}
    for task in subject["tasks"]:
        place = f"{task['length']}/{task['task']}"
        predictions = rows_of(tmp_path / f"second/predictions/cplm/{place}.jsonl")
        expected = [score(task["task"], row["pred"], row["outputs"]) for row in predictions]
        assert task["score"] == pytest.approx(sum(expected) / 4, rel=1e-12)
        scores[place] = task["score"]
    assert len(set(scores.values())) > 1 and max(scores.values()) > 0
    short, long = subject["means"]
    assert (short["niah_tasks"], short["tasks"], long["tasks"]) == (1, 3, 1)
    assert short["niah_mean"] == scores["400/niah_single_1"]
    assert short["mean"] == pytest.approx(sum(v for k, v in scores.items() if k.startswith("400")) / 3)
    assert long["mean"] == long["niah_mean"] == scores["520/niah_single_1"]


def test_goes_on_after_a_kill(pair, tmp_path):
    arguments = [pair / "cplm", "--data", pair / "ruler", "--new-tokens", 3]
    whole = results("ruler", tmp_path / "whole", *arguments)
    command = [BUILD / "cplm", "eval", "ruler", *map(str, arguments), "--precision", "float64"]
    stopped = tmp_path / "stopped"
    # Pictures cannot be drawn there, so that the pieces stay.
    stopped.mkdir()
    (stopped / "ruler.png.partial").mkdir()
    assert subprocess.run([*command, "--out", stopped], capture_output=True).returncode == 1
    pieces = (stopped / "ruler.pieces.jsonl").read_text()
    (stopped / "ruler.pieces.jsonl").write_text(pieces[: len(pieces) // 2])
    (stopped / "ruler.png.partial").rmdir()
    assert results("ruler", stopped, *arguments) == whole


def test_errors_are_one_line(pair, tmp_path):
    def error(*arguments, code):
        lines = evaluate("ruler", *arguments, expect=code).strip().splitlines()
        return lines[-1]

    (tmp_path / "vt.jsonl").write_text('{"input": "a"}\n')
    assert 'line 1: expected a field "outputs"' in error(
        pair / "cplm", "--data", tmp_path / "vt.jsonl", code=3
    )
    assert "no such file" in error(pair / "cplm", "--data", tmp_path / "none", code=3)
    assert "--data" in error(pair / "cplm", code=2)
    copied = tmp_path / "copied"
    shutil.copytree(pair / "cplm", copied)
    (copied / "tokenizer.json").unlink()
    assert "expected a tokenizer.json" in error(copied, "--data", pair / "ruler", code=2)
