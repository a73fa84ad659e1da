"""scripts/prepare_data.py: kills at any instant, going on, and any number of workers."""

import json
import os
import signal

import pytest
from cplm_data import workers
from prepare_support import (
    all_documents,
    command_line,
    failure,
    file_bytes,
    killed_at_disk_call,
    prepare,
    prepared,
    sample_texts,
    small_tokenizer,
    write_jsonl,
    write_texts,
)

ARGUMENTS, BAD_DATA = 2, 3
SETTINGS = ("--shard-tokens", "400", "--validation-fraction", "0.3")


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """Several files of several kinds, cut into many small batches."""
    monkeypatch.setattr("cplm_data.sources._BATCH_BYTES", 150)
    folder = tmp_path / "in"
    write_texts(folder, sample_texts(4))
    records = [{"id": n, "text": text} for n, text in enumerate(sample_texts(12, start=10))]
    write_jsonl(folder / "a.jsonl", [*records, {"text": ""}, {"text": None}])
    write_jsonl(folder / "b.jsonl.gz", [{"text": text} for text in sample_texts(12, start=40)])
    write_jsonl(folder / "c.jsonl.zst", [{"text": text} for text in sample_texts(6, start=60)])
    return folder


def test_a_kill_at_any_call_of_the_disk_loses_and_repeats_nothing(tmp_path, corpus):
    tokenizer = small_tokenizer(tmp_path)
    prepared(corpus, tmp_path / "whole", *SETTINGS, tokenizer=tokenizer)
    expected = file_bytes(tmp_path / "whole")
    call = 0
    while True:
        out = tmp_path / f"out{call}"
        if not killed_at_disk_call(command_line(corpus, out, *SETTINGS, tokenizer=tokenizer), call):
            break
        prepared(corpus, out, *SETTINGS, tokenizer=tokenizer)
        assert file_bytes(out) == expected, call
        call += 13  # all of them: tests/stress/kill_prepare.py
    assert call > 50


def test_a_job_that_is_killed_again_and_again_ends(tmp_path, corpus):
    prepared(corpus, tmp_path / "whole", *SETTINGS)
    line = command_line(corpus, tmp_path / "out", *SETTINGS)
    num_kills = 0
    while killed_at_disk_call(line, 25):
        num_kills += 1
        assert num_kills < 30
    assert num_kills >= 3
    assert file_bytes(tmp_path / "out") == file_bytes(tmp_path / "whole")


def interrupted(corpus, output, *arguments):
    """A job that was killed once it had some shards."""
    assert killed_at_disk_call(command_line(corpus, output, *arguments), 45)
    assert (output / ".journal.json").exists()


def test_going_on_reads_only_what_is_left(tmp_path, corpus, monkeypatch):
    interrupted(corpus, tmp_path / "out", *SETTINGS)
    monkeypatch.setattr("cplm_data.prepare.train_tokenizer", None)  # not again
    monkeypatch.setattr("cplm_data.documents.Split.ensure_both_sides", None)
    result = prepare(corpus, tmp_path / "out", *SETTINGS)
    assert result.returncode == 0, result.stderr


def test_another_job_does_not_go_on_with_it(tmp_path, corpus):
    interrupted(corpus, tmp_path / "out", *SETTINGS)
    code, line = failure(corpus, tmp_path / "out", *SETTINGS, "--shard-tokens", "500")
    assert code == ARGUMENTS and "other settings (shard_tokens: 400 there, 500 now)" in line
    write_texts(corpus / "more", ["one more"])
    code, line = failure(corpus, tmp_path / "out", *SETTINGS)
    assert code == ARGUMENTS and "other input files" in line
    prepared(corpus, tmp_path / "out", *SETTINGS, "--overwrite")
    assert "one more" in all_documents(tmp_path / "out")


def test_overwrite_makes_damaged_shards_anew(tmp_path, corpus):
    prepared(corpus, tmp_path / "out", *SETTINGS)
    whole = file_bytes(tmp_path / "out")
    shard = next((tmp_path / "out/train").glob("*.h5"))
    damaged = bytearray(shard.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    shard.write_bytes(damaged)
    prepared(corpus, tmp_path / "out", *SETTINGS, "--overwrite")
    assert file_bytes(tmp_path / "out") == whole


def test_a_source_that_changed_meanwhile_is_named(tmp_path, corpus):
    interrupted(corpus, tmp_path / "out", *SETTINGS)
    first = corpus / "0000.txt"
    text = first.read_bytes()
    first.write_bytes(text.replace(b"birds", b"boats"))
    code, line = failure(corpus, tmp_path / "out", *SETTINGS)
    assert code == ARGUMENTS and "0000.txt: changed since the interrupted job read it" in line
    first.write_bytes(text)  # another time, the same bytes
    prepared(corpus, tmp_path / "out", *SETTINGS)


def test_lost_shards_and_damaged_journals_are_named(tmp_path, corpus):
    interrupted(corpus, tmp_path / "out", *SETTINGS)
    journal = tmp_path / "out" / ".journal.json"
    good = journal.read_bytes()
    journal.write_bytes(good[:-5])
    code, line = failure(corpus, tmp_path / "out", *SETTINGS)
    assert code == ARGUMENTS and ".journal.json: damaged; give --overwrite" in line
    journal.write_bytes(good)
    tokenizer = tmp_path / "out" / "tokenizer.json"
    contents = tokenizer.read_bytes()
    tokenizer.write_bytes(contents + b" ")
    code, line = failure(corpus, tmp_path / "out", *SETTINGS)
    assert code == ARGUMENTS and "tokenizer.json: changed since the interrupted job" in line
    tokenizer.write_bytes(contents)
    names = [n for one in json.loads(good)["series"].values() for n in one["files"]]
    (tmp_path / "out" / names[0]).unlink()
    code, line = failure(corpus, tmp_path / "out", *SETTINGS)
    assert code == BAD_DATA and f"{names[0]}: expected the finished shard" in line
    prepared(corpus, tmp_path / "out", *SETTINGS, "--overwrite")


@pytest.fixture(params=[4, 1], ids=["threads", "processes"])
def threads_per_process(request, monkeypatch):
    monkeypatch.setattr(workers, "_THREADS_PER_PROCESS", request.param)


@pytest.mark.usefixtures("threads_per_process")
@pytest.mark.parametrize("chat", [(), ("--chat", "--sequence-length", "64")])
def test_the_number_of_workers_changes_nothing(tmp_path, corpus, chat):
    if chat:
        turns = [{"role": role, "content": f"I am {role}."} for role in ("user", "assistant")]
        corpus = write_jsonl(tmp_path / "chat.jsonl", [{"id": n, "messages": turns} for n in range(30)])
    tokenizer = small_tokenizer(tmp_path)
    for count in ("1", "3"):
        arguments = (*SETTINGS, *chat, "--workers", count)
        prepared(corpus, tmp_path / count, *arguments, tokenizer=tokenizer)
    assert file_bytes(tmp_path / "1") == file_bytes(tmp_path / "3")


def test_many_workers_are_divided_among_processes(tmp_path, corpus, monkeypatch):
    monkeypatch.setattr(workers, "_THREADS_PER_PROCESS", 2)
    tokenizer = small_tokenizer(tmp_path)
    seen = []
    real_exit = workers.WorkerPool.__exit__

    def count_and_exit(pool, *arguments):
        seen.append((len(pool._processes), len(set(pool._processes.values()))))
        return real_exit(pool, *arguments)

    monkeypatch.setattr(workers.WorkerPool, "__exit__", count_and_exit)
    for count in ("1", "2", "5"):
        arguments = (*SETTINGS, "--workers", count)
        prepared(corpus, tmp_path / count, *arguments, tokenizer=tokenizer)
        assert file_bytes(tmp_path / count) == file_bytes(tmp_path / "1")
    assert seen == [(0, 0), (0, 0), (5, 3)]


@pytest.mark.usefixtures("threads_per_process")
def test_errors_of_workers_come_in_the_order_of_the_input(tmp_path):
    records = [{"text": text} for text in sample_texts(20)]
    path = write_jsonl(tmp_path / "a.jsonl", [*records, b"{broken", *records, b"broken too"])
    tokenizer = small_tokenizer(tmp_path)
    code, line = failure(path, tmp_path / "out", "--workers", "2", tokenizer=tokenizer)
    assert code == BAD_DATA and "a.jsonl:21: invalid JSON" in line


def test_what_was_read_before_a_damaged_file_is_kept(tmp_path, corpus):
    tokenizer = small_tokenizer(tmp_path)
    (corpus / "d.jsonl.gz").write_bytes(b"damaged")
    code, line = failure(corpus, tmp_path / "out", *SETTINGS, tokenizer=tokenizer)
    assert code == BAD_DATA and "d.jsonl.gz: damaged" in line
    (corpus / "d.jsonl.gz").unlink()
    prepared(corpus, tmp_path / "whole", *SETTINGS, tokenizer=tokenizer)
    last = sorted((tmp_path / "out" / "train").glob("*.h5"))[-1].name
    whole = [path.name for path in sorted((tmp_path / "whole" / "train").glob("*.h5"))]
    assert whole.index(last) >= len(whole) - 2


def test_a_worker_that_is_killed_is_reported_and_the_job_goes_on(tmp_path, corpus, monkeypatch):
    monkeypatch.setattr(workers, "_THREADS_PER_PROCESS", 1)
    monkeypatch.setattr(workers, "_BYTES_AHEAD_PER_WORKER", 0)  # not all before the kill
    tokenizer = small_tokenizer(tmp_path)
    real_map = workers.WorkerPool.map

    def map_and_kill(pool, batches):
        for number, batch in enumerate(real_map(pool, batches)):
            if number == 3:
                for process in pool._processes.values():
                    os.kill(process.pid, signal.SIGKILL)
            yield batch

    monkeypatch.setattr(workers.WorkerPool, "map", map_and_kill)
    arguments = (*SETTINGS, "--workers", "2")
    code, line = failure(corpus, tmp_path / "out", *arguments, tokenizer=tokenizer)
    assert code == 1 and "a worker process ended by signal 9" in line
    monkeypatch.undo()
    prepared(corpus, tmp_path / "out", *SETTINGS, tokenizer=tokenizer)
    prepared(corpus, tmp_path / "whole", *SETTINGS, tokenizer=tokenizer)
    assert file_bytes(tmp_path / "out") == file_bytes(tmp_path / "whole")
