"""scripts/prepare_data.py: inputs and places that go wrong, are odd, or are very many."""

import gzip
import os

import h5py
import pyarrow
import pyarrow.parquet
import pytest
from cplm_data import workers
from prepare_support import (
    all_documents,
    failure,
    file_bytes,
    prepared,
    sample_texts,
    small_tokenizer,
    write_jsonl,
    write_texts,
)

BAD_DATA, FAILED = 3, 1


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_ten_thousand_tiny_documents(tmp_path, suffix):
    texts = [f"t{number}" for number in range(10_000)]
    path = tmp_path / f"a{suffix}"
    if suffix == ".jsonl":
        write_jsonl(path, [{"text": text} for text in texts])
    else:
        pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path, row_group_size=900)
    prepared(path, tmp_path / "out")
    assert all_documents(tmp_path / "out") == sorted(texts)


def test_one_enormous_document(tmp_path, monkeypatch):
    text = "A few words, 12 numbers\nand another line. " * 12_000
    monkeypatch.setattr("cplm_data.tokenizer._PIECE_CHARACTERS", 50_000)
    monkeypatch.setattr("cplm_data.tokenizer._CHARACTERS_AT_ONCE", 100_000)
    write_jsonl(tmp_path / "a.jsonl", [{"text": "small"}, {"text": text}, {"text": "tiny"}])
    prepared(tmp_path / "a.jsonl", tmp_path / "out", "--shard-tokens", "1000")
    assert all_documents(tmp_path / "out") == sorted([text, "small", "tiny"])


def test_empty_files_hold_no_documents(tmp_path):
    folder = write_texts(tmp_path / "in", ["one", "two", ""])
    (folder / "a.jsonl").write_bytes(b"")
    (folder / "b.jsonl").write_bytes(b"\n\r\n\n")
    (folder / "c.jsonl.gz").write_bytes(gzip.compress(b""))
    (folder / "d.jsonl.gz").write_bytes(b"")
    write_jsonl(folder / "e.jsonl.zst", [])
    schema = pyarrow.schema([("text", pyarrow.string())])
    pyarrow.parquet.write_table(schema.empty_table(), folder / "f.parquet")
    manifest = prepared(folder, tmp_path / "out")
    assert all_documents(tmp_path / "out") == ["one", "two"]
    assert manifest["rejected"]["by_reason"] == {"text is empty": 1}
    assert len(manifest["sources"]) == 9
    (folder / "g.parquet").write_bytes(b"")
    code, line = failure(folder, tmp_path / "other")
    assert code == BAD_DATA and "g.parquet: damaged or no parquet file" in line


def test_ids_and_texts_of_any_characters(tmp_path):
    records = [
        {"text": "one\r\ntwo\r", "id": "naïve"},
        {"text": "\ufefffour \u2028 five\x07"},
        {"text": "bad id", "id": "\ud800"},
        {"text": "bad \udfff text", "id": "fine"},
        {"text": "with \0"},
    ]
    path = write_jsonl(tmp_path / "a.jsonl", records)
    manifest = prepared(path, tmp_path / "out")
    assert all_documents(tmp_path / "out") == sorted(r["text"] for r in records[:2])
    listed = [(one["reason"], one.get("id")) for one in manifest["rejected"]["documents"]]
    assert listed == [
        ("id holds a lone surrogate", "?"),
        ("text holds a lone surrogate", "fine"),
        ("text holds a NUL character", None),
    ]


def test_names_with_signs_of_patterns(tmp_path):
    folder = tmp_path / "a[1]*?"
    folder.mkdir()
    write_jsonl(folder / "b[2].jsonl", [{"text": "one"}])
    write_jsonl(folder / "c.jsonl", [{"text": "two"}])
    prepared(folder / "b[2].jsonl", tmp_path / "one")
    assert all_documents(tmp_path / "one") == ["one"]
    prepared(folder / "*.jsonl", tmp_path / "all")
    assert all_documents(tmp_path / "all") == ["one", "two"]
    prepared(folder, tmp_path / "folder")
    assert all_documents(tmp_path / "folder") == ["one", "two"]


def test_patterns_relative_to_the_current_folder(tmp_path, monkeypatch):
    write_texts(tmp_path / "in[0]", ["one", "two"])
    monkeypatch.chdir(tmp_path)
    prepared("in[[]0]/*.txt", tmp_path / "a")
    prepared("./in[0]/*.txt", tmp_path / "b")
    prepared("*/*.txt", tmp_path / "c")
    assert file_bytes(tmp_path / "a") != {}
    for name in "abc":
        assert all_documents(tmp_path / name) == ["one", "two"]


def test_a_file_in_the_middle_that_cannot_be_read(tmp_path):
    folder = write_texts(tmp_path / "in", sample_texts(30))
    (folder / "0015.txt").unlink()
    (folder / "0015.txt").symlink_to("/proc/self/mem")  # its first byte cannot be read
    arguments = ("--shard-tokens", "200", "--validation-fraction", "0")
    tokenizer = small_tokenizer(tmp_path)
    code, line = failure(folder, tmp_path / "out", *arguments, tokenizer=tokenizer)
    assert code == BAD_DATA and "0015.txt: cannot be read: Input/output error" in line
    assert list((tmp_path / "out" / "train").glob("*.h5"))
    (folder / "0015.txt").unlink()
    (folder / "0015.txt").symlink_to(tmp_path / "nowhere")
    code, line = failure(folder, tmp_path / "out", *arguments, tokenizer=tokenizer)
    assert code == BAD_DATA and "0015.txt: cannot be read: No such file" in line


@pytest.mark.parametrize("suffix", [".jsonl", ".txt", ".parquet"])
def test_a_source_that_changes_while_it_is_read(tmp_path, monkeypatch, suffix):
    path = tmp_path / f"a{suffix}"
    if suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.table({"text": sample_texts(9)}), path)
    else:
        write_jsonl(path, [{"text": text} for text in sample_texts(9)])
    real_map = workers.WorkerPool.map

    def touching(batches):
        for batch in batches:
            os.utime(path, ns=(1, 1))
            yield batch

    monkeypatch.setattr(
        workers.WorkerPool, "map", lambda pool, batches: real_map(pool, touching(batches))
    )
    code, line = failure(path, tmp_path / "out")
    assert code == BAD_DATA and f"a{suffix}: changed while it was read" in line


def test_a_folder_that_cannot_be_written(tmp_path):
    write_texts(tmp_path / "in", sample_texts(2))
    (tmp_path / "file").write_text("")
    code, line = failure(tmp_path / "in", tmp_path / "file" / "out")
    assert code == FAILED and "file/out: cannot make the folder: Not a directory" in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder(tmp_path):
    write_texts(tmp_path / "in", sample_texts(2))
    (tmp_path / "out").mkdir(mode=0o500)
    code, line = failure(tmp_path / "in", tmp_path / "out")
    assert code == FAILED and "cannot be written or removed: Permission denied" in line


def test_the_manifest_tells_what_was_done(tmp_path):
    folder = write_texts(tmp_path / "in", sample_texts(3))
    manifest = prepared(folder, tmp_path / "out")
    assert [one["size_bytes"] for one in manifest["sources"]] == [
        path.stat().st_size for path in sorted(folder.iterdir())
    ]
    assert all(len(one["sha256"]) == 64 for one in manifest["sources"])
    assert manifest["versions"]["tokenizers"] and manifest["versions"]["h5py"]
    assert manifest["settings"]["train_tokenizer"] == 257
    tokens = 0
    for path in (tmp_path / "out").rglob("*.h5"):
        with h5py.File(path) as file:
            tokens += file["tokens"].size
    assert sum(manifest["counts"][side]["tokens"] for side in ("train", "validation")) == tokens
    assert manifest["counts"]["text_bytes"] == sum(len(text) for text in sample_texts(3))


def test_a_tokenizer_is_trained_on_a_bounded_part_of_every_file(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "cplm_data.prepare.train_tokenizer",
        lambda texts, *_: seen.extend(texts) or small_tokenizer(tmp_path)[1].read_bytes(),
    )
    for name in "abcd":
        write_jsonl(tmp_path / f"{name}.jsonl", [{"text": f"{name}{n:099d}"} for n in range(50)])
    arguments = ("--tokenizer-bytes", "2000", "--validation-fraction", "0")
    prepared(tmp_path / "*.jsonl", tmp_path / "out", *arguments)
    assert [text[0] for text in seen] == ["a"] * 5 + ["b"] * 5 + ["c"] * 5 + ["d"] * 5
