"""scripts/prepare_data.py: its error messages, used folders, kills, full disks."""

import json
import os
import resource
import signal
import subprocess
import sys
import time

import pyarrow
import pyarrow.parquet
import pytest
from prepare_support import (
    SCRIPT,
    all_documents,
    command_line,
    failure,
    failure_line,
    file_bytes,
    prepare,
    prepare_in_process_of_its_own,
    prepared,
    sample_texts,
    write_jsonl,
    write_texts,
)

ARGUMENTS, BAD_DATA, FAILED = 2, 3, 1


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (("--validation-fraction", "1"), "expected 0 (no validation) up to but not 1, got 1"),
        (("--validation-fraction", "nan"), "up to but not 1, got nan"),
        (("--shard-tokens", "0"), "expected 1 to 2^40 tokens, got 0"),
        (("--shard-tokens", "1.5"), "argument --shard-tokens"),
        (("--train-tokenizer", "256"), "expected 257"),
        (("--tokenizer", "x.json"), "expected one of --tokenizer and --train-tokenizer"),
        (("--eos", " "), "expected the text of a token"),
        (("--eos", "<\udcff>"), "argument --eos: expected UTF-8, got <\\udcff>"),
        (("--language", "en", "\udcff"), "argument --language: expected UTF-8, got \\udcff"),
        (("--column", "text=\udcff"), "argument --column: expected UTF-8, got text=\\udcff"),
        (("--frobnicate",), "unrecognized arguments: --frobnicate"),
    ],
)
def test_wrong_arguments(tmp_path, arguments, expected):
    write_texts(tmp_path / "in", sample_texts(2))
    code, line = failure(tmp_path / "in", tmp_path / "out", *arguments)
    assert code == ARGUMENTS and expected in line


def test_whole_numbers_may_be_written_as_in_configs(tmp_path):
    write_texts(tmp_path / "in", sample_texts(2))
    manifest = prepared(tmp_path / "in", tmp_path / "out", "--shard-tokens", "1e6")
    assert manifest["settings"]["shard_tokens"] == 1000000


@pytest.mark.parametrize(
    "lines, expected",
    [
        ([{"text": "good"}, b"{broken"], "a.jsonl:2: invalid JSON: "),
        ([{"text": "good"}, b"", b'{"text": "cut'], "a.jsonl:3: invalid JSON: "),
        ([b'["a list"]'], "a.jsonl:1: expected a JSON object with a key 'text', found list"),
        ([{"content": "x", "id": 1}], "a.jsonl:1: expected a key 'text', found keys: content, id"),
        ([{"text": 5}], "a.jsonl:1: expected 'text' to be a string, found int"),
        (
            [{"text": "x", "id": 1.5}],
            "a.jsonl:1: expected 'id' to be a string or an integer, found float",
        ),
        (
            [{"text": "x"}, b'{"text": "\xff"}'],
            "a.jsonl:2: not UTF-8: byte 0xff at offset 10 of the line",
        ),
        ([b"[" * 200000], "a.jsonl:1: invalid JSON: nested too deeply"),
        (
            [b'{"text": "x", "id": ' + b"1" * 5000 + b"}"],
            "a.jsonl:1: holds an integer of more than 4,300 digits; write it as a string",
        ),
    ],
)
def test_broken_jsonl(tmp_path, lines, expected):
    path = write_jsonl(tmp_path / "a.jsonl", lines)
    code, line = failure(path, tmp_path / "out")
    assert code == BAD_DATA and expected in line


def test_an_error_deep_in_the_input_is_found_while_training_a_tokenizer(tmp_path):
    path = write_jsonl(
        tmp_path / "a.jsonl", [{"text": text} for text in sample_texts(3000)] + [b"{"]
    )
    code, line = failure(path, tmp_path / "out")
    assert code == BAD_DATA and "a.jsonl:3001: invalid JSON" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl.zst"])
def test_damaged_compression(tmp_path, suffix):
    path = write_jsonl(tmp_path / f"a{suffix}", [{"text": text} for text in sample_texts(500)])
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    code, line = failure(path, tmp_path / "out")
    assert code == BAD_DATA and f"a{suffix}: the compressed data is cut off" in line
    path.write_bytes(whole[:100] + bytes(200) + whole[300:])
    code, line = failure(path, tmp_path / "out")
    assert code == BAD_DATA and f"a{suffix}:" in line
    path.write_bytes(b"no compressed data at all")
    code, line = failure(path, tmp_path / "out")
    assert code == BAD_DATA and "damaged compressed data" in line


def test_broken_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"content": ["x"], "id": ["1"]}), path)
    assert failure(path, tmp_path / "out") == (
        BAD_DATA,
        f"prepare_data: {path}: expected a column 'text', found columns: content, id",
    )
    pyarrow.parquet.write_table(pyarrow.table({"text": [1, 2]}), path)
    assert (
        "expected column 'text' to hold strings, found int64" in failure(path, tmp_path / "out")[1]
    )
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"], "id": [1.5]}), path)
    assert "expected column 'id' to hold strings or integers" in failure(path, tmp_path / "out")[1]
    bad = pyarrow.array([b"good", b"\xff\xfe"], pyarrow.binary()).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"text": bad}), path)
    assert "a.parquet row 1: not UTF-8" in failure(path, tmp_path / "out")[1]
    pyarrow.parquet.write_table(pyarrow.table({"text": sample_texts(5000)}), path)
    path.write_bytes(path.read_bytes()[:-100])
    code, line = failure(path, tmp_path / "out")
    assert code == BAD_DATA and "damaged or no parquet file" in line


def test_broken_text_file(tmp_path):
    write_texts(tmp_path / "in", ["good", b"caf\xe9"])
    code, line = failure(tmp_path / "in", tmp_path / "out")
    assert code == BAD_DATA and "0001.txt: not UTF-8: byte 0xe9 at offset 3" in line


def test_no_input(tmp_path):
    code, line = failure(tmp_path / "none-*.txt", tmp_path / "out")
    assert code == ARGUMENTS and "none-*.txt: no such file, and no file matches it" in line
    (tmp_path / "empty").mkdir()
    code, line = failure(tmp_path / "empty", tmp_path / "out")
    assert code == ARGUMENTS and "file in that folder" in line
    (tmp_path / "a.csv").write_text("x")
    code, line = failure(tmp_path / "a.csv", tmp_path / "out")
    assert code == ARGUMENTS and "expected one of .parquet, .jsonl" in line
    os.mkfifo(tmp_path / "pipe.txt")
    code, line = failure(tmp_path / "pipe.txt", tmp_path / "out")
    assert code == ARGUMENTS and "expected a regular file" in line


def test_nothing_to_train_on(tmp_path):
    write_texts(tmp_path / "in", ["", " \n", "\0"])
    write_jsonl(tmp_path / "in" / "a.jsonl", [])
    code, line = failure(tmp_path / "in", tmp_path / "out")
    assert code == BAD_DATA and "no document is left to train on" in line
    assert not (tmp_path / "out").exists()


def test_unfit_tokenizers(tmp_path):
    write_texts(tmp_path / "in", sample_texts(3))
    code, line = failure(
        tmp_path / "in", tmp_path / "out", tokenizer=("--train-tokenizer", "50000")
    )
    assert code == ARGUMENTS and "--train-tokenizer 50000: this text only yields " in line
    code, line = failure(
        tmp_path / "in", tmp_path / "out", tokenizer=("--tokenizer", tmp_path / "no.json")
    )
    assert code == ARGUMENTS and "no.json: cannot be read: No such file" in line
    for broken in ("{}", "[]", "not json", '{"model": {"type": "BPE"}}'):
        (tmp_path / "t.json").write_text(broken)
        code, line = failure(
            tmp_path / "in", tmp_path / "out", tokenizer=("--tokenizer", tmp_path / "t.json")
        )
        assert code == ARGUMENTS and "t.json: expected a tokenizer.json" in line
    prepared(tmp_path / "in", tmp_path / "good")
    tokenizer = ("--tokenizer", tmp_path / "good" / "tokenizer.json", "--eos", "</s>")
    code, line = failure(tmp_path / "in", tmp_path / "out", tokenizer=tokenizer)
    assert code == ARGUMENTS and "the tokenizer has no token '</s>'" in line


def test_running_again_does_nothing(tmp_path):
    write_texts(tmp_path / "in", sample_texts(5))
    prepared(tmp_path / "in", tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    result = prepare(tmp_path / "in", tmp_path / "out")
    assert (
        result.returncode == 0
        and "is complete: same input and settings, nothing to do" in result.stdout
    )
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}


def test_used_folders_are_refused_unless_overwritten(tmp_path):
    write_texts(tmp_path / "in", sample_texts(5))
    prepared(tmp_path / "in", tmp_path / "out")
    before = file_bytes(tmp_path / "out")
    result = prepare(tmp_path / "in", tmp_path / "out", "--validation-fraction", "0.5")
    assert result.returncode == ARGUMENTS and "from other inputs or settings" in result.stderr
    write_texts(tmp_path / "in", sample_texts(6))
    result = prepare(tmp_path / "in", tmp_path / "out")
    assert result.returncode == ARGUMENTS and "give --overwrite" in result.stderr
    assert file_bytes(tmp_path / "out") == before
    (tmp_path / "out" / "train" / "shard_00009.h5").write_bytes(b"left over")
    prepared(tmp_path / "in", tmp_path / "out", "--overwrite")
    assert all_documents(tmp_path / "out") == sorted(sample_texts(6))


def test_foreign_folders_are_refused_but_inputs_may_lie_inside(tmp_path):
    out = tmp_path / "out"
    write_texts(out / "text", sample_texts(3))
    (out / "SOURCES.txt").write_text("notes")
    prepared(out / "text", out)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("dear")
    code, line = failure(out / "text", tmp_path / "home")
    assert code == ARGUMENTS and "holds 'thesis.tex', which is not of this job" in line
    (tmp_path / "file").write_text("")
    code, line = failure(out / "text", tmp_path / "file")
    assert code == ARGUMENTS and "expected a folder, found a file" in line


def test_two_processes_never_write_one_folder(tmp_path):
    write_texts(tmp_path / "in", sample_texts(3))
    (tmp_path / "out").mkdir()
    with open(tmp_path / "out" / ".preparing", "ab") as marker:
        import fcntl

        fcntl.flock(marker, fcntl.LOCK_EX)
        code, line = failure(tmp_path / "in", tmp_path / "out")
    assert code == FAILED and "another process is preparing this folder" in line


def test_a_full_disk_leaves_nothing_that_looks_complete(tmp_path):
    write_texts(tmp_path / "in", ["word " * 30000] * 3)

    def limit_file_size():
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    line = command_line(tmp_path / "in", tmp_path / "out")
    result = prepare_in_process_of_its_own(line, preexec_fn=limit_file_size)
    code, message = failure_line(result, tmp_path / "out")
    assert code == FAILED and "shard_00000.h5: cannot be written: File too large" in message
    assert not list((tmp_path / "out").rglob("*.h5"))
    # With room again it goes on.
    prepared(tmp_path / "in", tmp_path / "out")
    prepared(tmp_path / "in", tmp_path / "other")
    assert file_bytes(tmp_path / "out") == file_bytes(tmp_path / "other")


def test_kills_at_any_instant_leave_no_half_shard_and_a_folder_that_can_be_used(tmp_path):
    write_texts(tmp_path / "in", [text * 20 for text in sample_texts(60)])
    line = command_line(tmp_path / "in", tmp_path / "out", "--shard-tokens", "5000")
    prepared(tmp_path / "in", tmp_path / "whole", "--shard-tokens", "5000")
    expected = file_bytes(tmp_path / "whole")
    for shards_until_kill in (0, 2, 9):
        process = subprocess.Popen(
            [sys.executable, SCRIPT, *line], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        train = tmp_path / "out" / "train"
        while process.poll() is None and len(list(train.glob("*.h5"))) < shards_until_kill:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
        for name, data in (
            file_bytes(tmp_path / "out").items() if (tmp_path / "out").exists() else ()
        ):
            assert name.startswith(".") or "/." in name or data == expected[name]
    prepared(tmp_path / "in", tmp_path / "out", "--shard-tokens", "5000")
    assert file_bytes(tmp_path / "out") == expected


def test_manifest_is_json_for_names_that_are_not_utf8(tmp_path):
    write_texts(tmp_path / "in", sample_texts(1))
    os.rename(tmp_path / "in" / "0000.txt", os.fsencode(tmp_path / "in") + b"/caf\xe9.txt")
    manifest = prepared(tmp_path / "in", tmp_path / "out")
    assert manifest["sources"][0]["path"].endswith("caf\ufffd.txt")
    json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))


def test_help_names_every_argument():
    help_text = prepare_in_process_of_its_own(["--help"]).stdout
    for name in (
        "--input",
        "--tokenizer",
        "--train-tokenizer",
        "--output",
        "--validation-fraction",
        "--eos",
        "--shard-tokens",
    ):
        assert name in help_text
