"""scripts/prepare_data.py: filters by score, language and length, and names of columns."""

import json

import pyarrow
import pyarrow.parquet
import pytest
from prepare_support import (
    all_documents,
    failure,
    prepare,
    prepared,
    sample_texts,
    write_jsonl,
    write_texts,
)

ARGUMENTS, BAD_DATA = 2, 3
RECORDS = [
    {"text": "kept one", "int_score": 3, "language": "en", "language_score": 0.9},
    {"text": "kept two", "int_score": 5, "language": "de", "language_score": 0.7},
    {"text": "poor", "int_score": 2, "language": "en", "language_score": 0.9},
    {"text": "unrated", "int_score": None, "language": "en", "language_score": 0.9},
    {"text": "autre", "int_score": 4, "language": "fr", "language_score": 0.9},
    {"text": "unknown", "int_score": 4, "language": None, "language_score": 0.9},
    {"text": "doubtful", "int_score": 4, "language": "en", "language_score": 0.6},
    {"text": "undecided", "int_score": 4, "language": "en", "language_score": float("nan")},
    {"text": "a", "int_score": 4, "language": "en", "language_score": 0.9},
    {"text": "far too long", "int_score": 4, "language": "en", "language_score": 0.9},
]
FILTERS = (
    *("--min-score", "3", "--language", "en", "de", "--min-language-score", "0.65"),
    *("--min-characters", "2", "--max-characters", "11"),
)


def write_records(path, records):
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), path)
        return path
    return write_jsonl(path, records)


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_rejected_documents_are_counted_by_reason(tmp_path, name):
    path = write_records(tmp_path / name, RECORDS)
    manifest = prepared(path, tmp_path / "out", *FILTERS)
    assert all_documents(tmp_path / "out") == ["kept one", "kept two"]
    assert manifest["rejected"]["by_reason"] == {
        "language is not en or de": 1,
        "language is null": 1,
        "language score is below 0.65": 2,
        "score is below 3": 1,
        "score is null": 1,
        "text has fewer than 2 characters": 1,
        "text has more than 11 characters": 1,
    }
    assert manifest["settings"]["filters"] == {
        "min_score": 3.0,
        "languages": ["en", "de"],
        "min_language_score": 0.65,
        "min_characters": 2,
        "max_characters": 11,
    }


def test_columns_of_finepdfs(tmp_path):
    records = [
        {"text": "good", "full_doc_lid": "eng_Latn", "full_doc_lid_score": 0.99},
        {"text": "bad", "full_doc_lid": "deu_Latn", "full_doc_lid_score": 0.99},
        {"text": "unsure", "full_doc_lid": "eng_Latn", "full_doc_lid_score": 0.2},
    ]
    scores = [[4.0, 3.0], [4.0], [1.0, 4.0]]
    records = [one | {"fw_edu_scores": s} for one, s in zip(records, scores, strict=True)]
    path = write_records(tmp_path / "000_00000.parquet", records)
    arguments = ("--language", "eng_Latn", "--min-language-score", "0.9")
    prepared(path, tmp_path / "a", *arguments)
    assert all_documents(tmp_path / "a") == ["good"]
    prepared(path, tmp_path / "b", "--min-score", "3.5")
    assert all_documents(tmp_path / "b") == ["bad", "good"]


@pytest.mark.parametrize("arguments", [
    ("--language", "en"), ("--language", "en", "de", "--min-characters", "1"), ("--min-score", "1")])
def test_the_same_command_again_finds_its_own_job(tmp_path, arguments):
    records = [{"text": f"text {n}", "language": "en", "score": 2} for n in range(9)]
    path = write_records(tmp_path / "a.jsonl", records)
    prepared(path, tmp_path / "out", *arguments)
    again = prepare(path, tmp_path / "out", *arguments)
    assert again.returncode == 0 and "nothing to do" in again.stdout, again.stderr


@pytest.mark.parametrize("arguments", [("--language", "en"), ("--min-score", "1")])
def test_an_interrupted_job_with_filters_goes_on(tmp_path, arguments):
    records = [{"text": f"text {n}", "language": "en", "score": 2} for n in range(9)]
    path = write_records(tmp_path / "a.jsonl", records)
    whole = path.read_text()
    path.write_text("x" * len(whole))  # of the size that it has when it is mended
    code, line = failure(path, tmp_path / "out", *arguments)
    assert code == BAD_DATA
    path.write_text(whole)
    prepared(path, tmp_path / "out", *arguments)
    assert len(all_documents(tmp_path / "out")) == 9


def test_a_bound_of_zero_is_a_filter_and_a_setting(tmp_path):
    records = [{"text": t, "score": s} for t, s in (("none", None), ("one", 1), ("minus", -2))]
    path = write_records(tmp_path / "a.jsonl", records)
    manifest = prepared(path, tmp_path / "out", "--min-score", "0", "--validation-fraction", "0")
    assert all_documents(tmp_path / "out") == ["one"]
    assert manifest["settings"]["filters"] == {"min_score": 0.0}
    result = prepare(path, tmp_path / "out", "--validation-fraction", "0")
    assert result.returncode == ARGUMENTS and "nothing to do" not in result.stdout


def test_a_score_too_large_for_a_number_is_named(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "x", "score": 1' + 400 * "0" + "}\n")
    code, line = failure(path, tmp_path / "out", "--min-score", "1")
    assert code == BAD_DATA and "a.jsonl:1: the score is too large for a number" in line


def test_other_names_of_columns(tmp_path):
    records = [
        {"content": "yes", "key": 7, "int_score": 1, "quality": 0.9},
        {"content": "no", "key": 8, "int_score": 5, "quality": 0.1},
    ]
    names = ("--column", "text=content", "--column", "id=key", "--column", "score=quality")
    for name in ("a.jsonl", "a.parquet"):
        out = tmp_path / f"out-{name}"
        manifest = prepared(
            write_records(tmp_path / name, records), out, *names, "--min-score", "0.5"
        )
        assert all_documents(out) == ["yes"]
        assert manifest["rejected"]["documents"][0]["id"] == "8"
        assert manifest["settings"]["columns"]["score"] == "quality"


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_a_column_that_a_source_lacks(tmp_path, name):
    records = [{"text": text, "id": str(n)} for n, text in enumerate(sample_texts(3))]
    path = write_records(tmp_path / name, records)
    code, line = failure(path, tmp_path / "out", "--min-score", "3")
    kind = "key" if name.endswith("jsonl") else "column"
    wanted = f"expected a {kind} 'int_score' or 'score' or 'fw_edu_scores' to filter by score"
    assert code == BAD_DATA and wanted in line and f"found {kind}s: text, id" in line
    code, line = failure(path, tmp_path / "out", "--column", "id=url")
    assert code == BAD_DATA and f"expected a {kind} 'url'" in line


def test_a_column_that_a_later_kind_of_file_lacks_shows_before_anything_is_written(tmp_path):
    records = [{"text": text, "language": "en"} for text in sample_texts(30)]
    (tmp_path / "in").mkdir()
    write_records(tmp_path / "in/a.jsonl", records)
    write_texts(tmp_path / "in/texts", sample_texts(2))
    code, line = failure(tmp_path / "in", tmp_path / "out", "--language", "en")
    assert code == BAD_DATA and "0000.txt: expected a column 'language'" in line
    assert not (tmp_path / "out/tokenizer.json").exists()
    prepared(tmp_path / "in/a.jsonl", tmp_path / "out", "--language", "en")  # without --overwrite


def test_text_files_have_no_columns(tmp_path):
    write_texts(tmp_path / "in", sample_texts(2))
    code, line = failure(tmp_path / "in", tmp_path / "out", "--language", "en")
    assert code == BAD_DATA and "0000.txt: expected a column 'language'" in line
    prepared(tmp_path / "in", tmp_path / "out", "--min-characters", "5")


@pytest.mark.parametrize(
    "record, expected",
    [
        ({"score": "high"}, "a.jsonl:2: expected a score as a number, found str"),
        ({"score": True}, "a.jsonl:2: expected a score as a number, found bool"),
        ({"score": 4, "language": 3}, "a.jsonl:2: expected a language as a string, found int"),
    ],
)
def test_values_of_another_kind(tmp_path, record, expected):
    records = [
        {"text": "x", "score": 4, "language": "en"},
        {"text": "y", "language": "en"} | record,
    ]
    path = write_jsonl(tmp_path / "a.jsonl", records)
    code, line = failure(path, tmp_path / "out", "--min-score", "3", "--language", "en")
    assert code == BAD_DATA and expected in line


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (("--min-score", "nan"), "expected a number, got nan"),
        (("--min-characters", "0"), "expected 1 to 2^40 characters, got 0"),
        (("--min-characters", "9", "--max-characters", "8"), "--min-characters 9 is above"),
        (("--column", "body=text"), "expected ROLE=NAME with a role of text"),
        (("--column", "text="), "expected ROLE=NAME"),
    ],
)
def test_wrong_arguments(tmp_path, arguments, expected):
    write_texts(tmp_path / "in", sample_texts(2))
    code, line = failure(tmp_path / "in", tmp_path / "out", *arguments)
    assert code == ARGUMENTS and expected in line


def test_filters_that_leave_nothing(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", RECORDS[:3])
    code, line = failure(path, tmp_path / "out", "--min-score", "6")
    assert code == BAD_DATA and "no document is left to train on" in line and " times: " in line


def test_the_two_sides_are_of_documents_that_pass(tmp_path):
    records = [{"text": t, "score": n % 10} for n, t in enumerate(sample_texts(20))]
    path = write_jsonl(tmp_path / "a.jsonl", records)
    manifest = prepared(
        path, tmp_path / "out", "--min-score", "9", "--validation-fraction", "0.000001"
    )
    assert [manifest["counts"][side]["documents"] for side in ("train", "validation")] == [1, 1]
    json.dumps(manifest)
