"""scripts/prepare_data.py: running a complete job again, damage, and jobs that meet in one folder."""

import contextlib
import fcntl

import pytest
from prepare_support import (
    failure,
    file_bytes,
    prepare,
    prepared,
    sample_texts,
    small_tokenizer,
    write_jsonl,
    write_texts,
)

FAILED, ARGUMENTS, BAD_DATA = 1, 2, 3


@pytest.fixture
def corpus(tmp_path):
    return write_texts(tmp_path / "in", sample_texts(6))


@contextlib.contextmanager
def running_job(marker):
    """Another process that prepares this folder."""
    with open(marker, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.mark.parametrize(
    "damage, expected",
    [
        (lambda shard: shard.unlink(), "cannot be read: No such file"),
        (lambda shard: shard.write_bytes(shard.read_bytes()[:-1]), "bytes, found "),
        (
            lambda shard: shard.write_bytes(shard.read_bytes().swapcase()),
            "its bytes are not those of the manifest",
        ),
    ],
)
def test_a_damaged_shard_of_a_complete_job_is_named(tmp_path, corpus, damage, expected):
    prepared(corpus, tmp_path / "out")
    whole = file_bytes(tmp_path / "out")
    damage(tmp_path / "out" / "train" / "shard_00000.h5")
    result = prepare(corpus, tmp_path / "out")
    assert result.returncode == BAD_DATA and "is complete:" not in result.stdout
    assert f"{tmp_path}/out/train/shard_00000.h5: " in result.stderr and expected in result.stderr
    assert "give --overwrite to make the shards anew" in result.stderr
    prepared(corpus, tmp_path / "out", "--overwrite")
    assert file_bytes(tmp_path / "out") == whole


@pytest.mark.parametrize("damage", [lambda f: f.unlink(), lambda f: f.write_bytes(b"{}")])
def test_a_lost_tokenizer_of_a_complete_job_is_written_again(tmp_path, corpus, damage):
    tokenizer = small_tokenizer(tmp_path)
    prepared(corpus, tmp_path / "out", tokenizer=tokenizer)
    whole = file_bytes(tmp_path / "out")
    damage(tmp_path / "out" / "tokenizer.json")
    result = prepare(corpus, tmp_path / "out", tokenizer=tokenizer)
    assert result.returncode == 0 and "tokenizer.json: was " in result.stderr
    assert "written again" in result.stderr and file_bytes(tmp_path / "out") == whole


@pytest.mark.parametrize(
    "damage, state", [(lambda f: f.unlink(), "missing"), (lambda f: f.write_bytes(b"{}"), "changed")]
)
def test_a_trained_tokenizer_that_is_lost_is_named(tmp_path, corpus, damage, state):
    prepared(corpus, tmp_path / "out")
    damage(tmp_path / "out" / "tokenizer.json")
    result = prepare(corpus, tmp_path / "out")
    assert result.returncode == BAD_DATA and "is complete:" not in result.stdout
    assert f"tokenizer.json: {state}, though the job is complete; take it from" in result.stderr


def test_the_whole_input_belongs_to_a_job_even_what_a_machine_does_not_read(tmp_path):
    tokenizer = small_tokenizer(tmp_path)
    corpus = tmp_path / "in"
    corpus.mkdir()
    for name in "ab":
        write_jsonl(corpus / f"{name}.jsonl", [{"text": text} for text in sample_texts(20)])
    share = ("--rank", "0", "--world", "2")
    assert prepare(corpus, tmp_path / "out", *share, tokenizer=tokenizer).returncode == 0
    (corpus / "b.jsonl").rename(corpus / "c.jsonl")
    result = prepare(corpus, tmp_path / "out", *share, tokenizer=tokenizer)
    assert result.returncode == ARGUMENTS and "from other inputs or settings" in result.stderr


@pytest.mark.parametrize("arguments", [(), ("--overwrite",)])
def test_nothing_of_a_running_divided_job_is_removed(tmp_path, corpus, arguments):
    tokenizer = small_tokenizer(tmp_path)
    out = tmp_path / "out"
    (out / "train").mkdir(parents=True)
    (out / "train" / ".shard_001-of-002_00000.h5.tokens.partial").write_bytes(b"spool")
    (out / ".journal.001-of-002.json").write_bytes(b"{}")
    with running_job(out / ".preparing.001-of-002"):
        before = file_bytes(out)
        code, line = failure(corpus, out, *arguments, tokenizer=tokenizer)
        assert code == FAILED and "another process is preparing this folder" in line
        assert "it holds .preparing.001-of-002" in line
        assert file_bytes(out) == before  # nor was a marker left, which would say it was ours
    prepared(corpus, out, *arguments, tokenizer=tokenizer)
    prepared(corpus, tmp_path / "other", tokenizer=tokenizer)
    assert file_bytes(out) == file_bytes(tmp_path / "other")


def test_machines_of_one_job_share_a_folder_and_no_others(tmp_path, corpus):
    tokenizer = small_tokenizer(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    share = ("--rank", "0", "--world", "2")
    for marker in (".preparing", ".preparing.001-of-003", ".preparing.000-of-002"):
        with running_job(out / marker):
            code, line = failure(corpus, out, *share, tokenizer=tokenizer)
            assert code == FAILED and f"it holds {marker})" in line
        (out / marker).unlink()
    with running_job(out / ".preparing.001-of-002"):
        assert prepare(corpus, out, *share, tokenizer=tokenizer).returncode == 0


def test_an_interrupted_job_does_not_replace_another_divisions_shards(tmp_path, corpus):
    tokenizer = small_tokenizer(tmp_path)
    out = tmp_path / "out"
    for rank in "01":
        share = ("--rank", rank, "--world", "2")
        assert prepare(corpus, out, *share, tokenizer=tokenizer).returncode == 0
    (out / "manifest.json").unlink()
    (out / ".preparing").write_bytes(b"")
    before = file_bytes(out)
    result = prepare(corpus, out, tokenizer=tokenizer)
    assert result.returncode == ARGUMENTS and "give --overwrite to replace them" in result.stderr
    assert file_bytes(out) == before
