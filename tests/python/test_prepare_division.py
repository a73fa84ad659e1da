"""scripts/prepare_data.py: one job divided among several machines by --rank and --world."""

import hashlib
import json
import threading

import pyarrow
import pyarrow.parquet
import pytest
from cplm_data.division import parts_of
from cplm_data.sources import Source
from prepare_support import (
    command_line,
    documents,
    failure,
    file_bytes,
    killed_at_disk_call,
    prepare,
    prepare_data,
    prepared,
    sample_texts,
    small_tokenizer,
    write_jsonl,
    write_texts,
)

ARGUMENTS, BAD_DATA = 2, 3


def write_corpus(folder):
    """Files of each kind, some longer than a machine's share."""
    write_texts(folder, sample_texts(3))
    (folder / "empty.jsonl").write_bytes(b"")
    table = pyarrow.table({"text": sample_texts(60, start=100)})
    pyarrow.parquet.write_table(table, folder / "b.parquet", row_group_size=7)
    write_jsonl(folder / "c.jsonl", [{"text": text} for text in sample_texts(50, start=200)])
    write_jsonl(folder / "d.jsonl.gz", [{"text": text} for text in sample_texts(20, start=300)])
    write_jsonl(folder / "e.jsonl", [{"text": ""}, *[{"text": t} for t in sample_texts(9, 400)]])
    return folder


def prepare_shares(corpus, output, world, *arguments, tokenizer, ranks=None):
    results = [
        prepare(corpus, output, "--rank", rank, "--world", world, *arguments, tokenizer=tokenizer)
        for rank in (range(world) if ranks is None else ranks)
    ]
    for result in results:
        assert result.returncode == 0, result.stderr
    return results


@pytest.mark.parametrize("world", [2, 15])
def test_the_shares_together_are_the_whole_in_order(tmp_path, world):
    corpus = write_corpus(tmp_path / "in")
    tokenizer = small_tokenizer(tmp_path)
    whole = prepared(corpus, tmp_path / "one", tokenizer=tokenizer)
    results = prepare_shares(corpus, tmp_path / "all", world, tokenizer=tokenizer)
    for split in ("train", "validation"):
        assert documents(tmp_path / "all", split) == documents(tmp_path / "one", split)
    assert "machines have not finished here yet" in results[0].stdout
    assert f"the shares of {world} machines are complete" in results[-1].stdout
    manifest = json.loads((tmp_path / "all" / "manifest.json").read_bytes())
    for name in ("counts", "rejected", "sources", "tokenizer", "input", "versions"):
        assert manifest[name] == whole[name], name
    for name, entry in manifest["files"].items():
        data = (tmp_path / "all" / name).read_bytes()
        assert entry["sha256"] == hashlib.sha256(data).hexdigest()


def test_large_files_are_shared_evenly(tmp_path):
    corpus = tmp_path / "in"
    corpus.mkdir()
    texts = [f"{number:03d} " * 300 for number in range(400)]
    write_jsonl(corpus / "a.jsonl", [{"text": text} for text in texts])
    table = pyarrow.table({"text": texts})
    options = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    pyarrow.parquet.write_table(table, corpus / "b.parquet", row_group_size=10, **options)
    for name in ("a.jsonl", "b.parquet"):
        source = Source(str(corpus / name))
        parts = [part for rank in range(4) for part in parts_of([source], rank, 4)]
        assert [part.begin for part in parts[1:]] == [part.end for part in parts[:-1]]
        whole = (parts[-1].end - parts[0].begin) / 4
        assert all(abs(part.end - part.begin - whole) < 0.15 * whole for part in parts)


def test_lines_are_numbered_from_the_begin_of_the_file(tmp_path):
    lines = [{"text": text} for text in sample_texts(100)]
    path = write_jsonl(tmp_path / "a.jsonl", [*lines[:95], b"{broken", *lines[95:]])
    arguments = ("--rank", "3", "--world", "4")
    code, line = failure(path, tmp_path / "out", *arguments, tokenizer=small_tokenizer(tmp_path))
    assert code == BAD_DATA and "a.jsonl:96: invalid JSON" in line


def test_machines_may_finish_at_once_and_in_any_order(tmp_path):
    corpus = write_corpus(tmp_path / "in")
    tokenizer = small_tokenizer(tmp_path)
    prepare_shares(corpus, tmp_path / "serial", 3, tokenizer=tokenizer, ranks=[2, 0, 1])
    lines = [
        command_line(corpus, tmp_path / "out", "--rank", rank, "--world", "3", tokenizer=tokenizer)
        for rank in range(3)
    ]
    threads = [threading.Thread(target=prepare_data.main, args=(line,)) for line in lines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert file_bytes(tmp_path / "out") == file_bytes(tmp_path / "serial")


def test_a_machine_that_is_killed_goes_on_and_leaves_the_others_alone(tmp_path):
    corpus = write_corpus(tmp_path / "in")
    tokenizer = small_tokenizer(tmp_path)
    settings = ("--shard-tokens", "300")
    prepare_shares(corpus, tmp_path / "whole", 2, *settings, tokenizer=tokenizer)
    prepare_shares(corpus, tmp_path / "out", 2, *settings, tokenizer=tokenizer, ranks=[0])
    line = command_line(
        corpus, tmp_path / "out", "--rank", "1", "--world", "2", *settings, tokenizer=tokenizer
    )
    assert killed_at_disk_call(line, 40)
    prepare_shares(corpus, tmp_path / "out", 2, *settings, tokenizer=tokenizer, ranks=[1, 0])
    assert file_bytes(tmp_path / "out") == file_bytes(tmp_path / "whole")


def test_shares_made_elsewhere_are_merged(tmp_path):
    corpus = write_corpus(tmp_path / "in")
    tokenizer = small_tokenizer(tmp_path)
    prepare_shares(corpus, tmp_path / "whole", 3, tokenizer=tokenizer)
    merged = tmp_path / "merged"
    for rank in range(3):
        elsewhere = tmp_path / f"machine{rank}"
        prepare_shares(corpus, elsewhere, 3, tokenizer=tokenizer, ranks=[rank])
        for name, data in file_bytes(elsewhere).items():
            (merged / name).parent.mkdir(parents=True, exist_ok=True)
            (merged / name).write_bytes(data)
    assert prepare_data.main(["--merge", "--output", str(merged)]) == 0
    assert file_bytes(merged) == file_bytes(tmp_path / "whole")


def merge_failure(folder, capsys):
    code = prepare_data.main(["--merge", "--output", str(folder)])
    return code, capsys.readouterr().err


def test_what_does_not_belong_together_is_not_merged(tmp_path, capsys):
    corpus = write_corpus(tmp_path / "in")
    tokenizer = small_tokenizer(tmp_path)
    out = tmp_path / "out"
    prepare_shares(corpus, out, 3, tokenizer=tokenizer, ranks=[0, 2])
    code, line = merge_failure(out, capsys)
    assert code == ARGUMENTS and "of 3 machines these have not finished: 1" in line
    prepare_shares(corpus, out, 3, tokenizer=tokenizer, ranks=[1])
    (out / "train" / "extra.h5").write_bytes(b"")
    code, line = merge_failure(out, capsys)
    assert code == BAD_DATA and "train/extra.h5: not of this job" in line
    (out / "train" / "extra.h5").rename(tmp_path / "extra.h5")
    shard = out / "train" / "shard_001-of-003_00000.h5"
    shard.rename(tmp_path / "shard.h5")
    code, line = merge_failure(out, capsys)
    assert code == BAD_DATA and "shard_001-of-003_00000.h5: expected" in line
    (tmp_path / "shard.h5").rename(shard)
    (out / "tokenizer.json").write_bytes(b"{}")
    code, line = merge_failure(out, capsys)
    assert code == BAD_DATA and "expected the tokenizer of the shards" in line
    piece = out / "manifest.001-of-003.json"
    piece.write_bytes(piece.read_bytes().replace(b'"eos": "<', b'"eos": "['))
    code, line = merge_failure(out, capsys)
    assert code == BAD_DATA and "rank 1 had other settings than ranks 0 and 2 (eos: " in line
    code, line = merge_failure(tmp_path / "in", capsys)
    assert code == ARGUMENTS and "expected the manifest pieces of one job, found none" in line


@pytest.mark.parametrize(
    "odd, expected",
    [
        ([1], "rank 1 had other input files than ranks 0 and 2 (files: 2 instead of 5)"),
        ([0], "rank 0 had other input files than ranks 1 and 2 (files: 2 instead of 5)"),
        ([0, 2], "rank 1 had other input files than ranks 0 and 2 (files: 5 instead of 2)"),
    ],
)
def test_machines_with_other_inputs_are_named_and_run_again(tmp_path, odd, expected):
    inputs = [tmp_path / "most", tmp_path / "few"]
    write_texts(inputs[0], sample_texts(5))
    write_texts(inputs[1], sample_texts(2))
    tokenizer = small_tokenizer(tmp_path)
    out = tmp_path / "out"
    results = []
    for rank in range(3):
        corpus = inputs[rank in odd]
        arguments = ("--rank", rank, "--world", 3)
        results.append(prepare(corpus, out, *arguments, tokenizer=tokenizer))
    assert [result.returncode for result in results] == [0, 0, BAD_DATA]
    assert expected in results[2].stderr and "again with --overwrite" in results[2].stderr
    for rank in odd:
        arguments = ("--rank", rank, "--world", 3)
        refused = prepare(inputs[0], out, *arguments, tokenizer=tokenizer)
        assert refused.returncode == ARGUMENTS and "give --overwrite" in refused.stderr
        last = prepare(inputs[0], out, *arguments, "--overwrite", tokenizer=tokenizer)
    assert last.returncode == 0, last.stderr
    prepare_shares(inputs[0], tmp_path / "right", 3, tokenizer=tokenizer)
    assert file_bytes(out) == file_bytes(tmp_path / "right")


def test_a_damaged_piece_is_named(tmp_path, capsys):
    corpus = write_corpus(tmp_path / "in")
    prepare_shares(corpus, tmp_path / "out", 2, tokenizer=small_tokenizer(tmp_path))
    piece = tmp_path / "out" / "manifest.001-of-002.json"
    piece.write_bytes(piece.read_bytes().replace(b'"versions"', b'"persons"'))
    code, line = merge_failure(tmp_path / "out", capsys)
    assert code == BAD_DATA and "manifest.001-of-002.json: damaged; run that" in line


def test_shares_of_different_divisions_do_not_mix(tmp_path):
    corpus = write_corpus(tmp_path / "in")
    tokenizer = small_tokenizer(tmp_path)
    prepared(corpus, tmp_path / "out", tokenizer=tokenizer)
    arguments = ("--rank", "0", "--world", "2", "--overwrite")
    result = prepare(corpus, tmp_path / "out", *arguments, tokenizer=tokenizer)
    assert result.returncode == ARGUMENTS and "which is not of a job of 2 machines" in result.stderr


@pytest.mark.parametrize(
    "arguments, tokenizer, expected",
    [
        (("--rank", "2", "--world", "2"), None, "argument --rank: expected 0 to 1, got 2"),
        (("--world", "0"), None, "expected 1 to 999 machines, got 0"),
        (("--world", "2"), ("--train-tokenizer", "257"), "train it first on one"),
        (("--merge",), None, "--merge takes --output alone"),
        (("--workers", "0"), None, "expected 1 to 1024 workers, got 0"),
    ],
)
def test_wrong_divisions(tmp_path, arguments, tokenizer, expected):
    write_texts(tmp_path / "in", sample_texts(2))
    tokenizer = tokenizer or small_tokenizer(tmp_path)
    code, line = failure(tmp_path / "in", tmp_path / "out", *arguments, tokenizer=tokenizer)
    assert code == ARGUMENTS and expected in line


def test_a_machine_that_does_not_say_which_it_is_is_refused(tmp_path):
    write_texts(tmp_path / "in", sample_texts(2))
    tokenizer = small_tokenizer(tmp_path)
    code, line = failure(tmp_path / "in", tmp_path / "out", "--world", "2", tokenizer=tokenizer)
    assert code == 2 and "--world 2 needs --rank, 0 to 1" in line
    assert not (tmp_path / "out").exists()
