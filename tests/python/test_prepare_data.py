"""scripts/prepare_data.py: what it reads, how it splits, the shards it writes."""

import hashlib
import json
import os
import subprocess
from pathlib import Path

import h5py
import numpy
import pyarrow
import pyarrow.parquet
import pytest
from cplm_data import shards
from cplm_data.documents import Split, split_key
from prepare_support import (
    all_documents,
    command_line,
    documents,
    file_bytes,
    prepare_in_process_of_its_own,
    prepared,
    sample_texts,
    write_jsonl,
    write_texts,
)


def fineweb_table(texts):
    count = len(texts)
    return pyarrow.table(
        {
            "text": pyarrow.array(texts, pyarrow.string()).dictionary_encode(),
            "id": [f"<urn:uuid:{n}>" for n in range(count)],
            "dump": ["CC-MAIN-2024-10"] * count,
            "url": [f"https://example.org/{n}" for n in range(count)],
            "file_path": ["s3://x"] * count,
            "language": ["en"] * count,
            "language_score": [0.9] * count,
            "token_count": [7] * count,
            "score": [3.2] * count,
            "int_score": [3] * count,
        }
    )


@pytest.mark.parametrize("compression", ["zstd", "snappy"])
def test_fineweb_edu_parquet(tmp_path, compression):
    texts = sample_texts(700)
    texts[5] = None
    texts[6] = texts[7]
    path = tmp_path / "000_00000.parquet"
    pyarrow.parquet.write_table(
        fineweb_table(texts), path, row_group_size=97, compression=compression
    )
    manifest = prepared(path, tmp_path / "out")
    assert all_documents(tmp_path / "out") == sorted(text for text in texts if text is not None)
    assert manifest["rejected"]["by_reason"] == {"text is null": 1}
    assert manifest["rejected"]["documents"][0]["index"] == 5


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
def test_jsonl_variants(tmp_path, suffix):
    texts = sample_texts(30)
    records = [{"id": str(n), "text": text, "other": [1]} for n, text in enumerate(texts)]
    path = write_jsonl(tmp_path / f"a{suffix}", records + [b"", b"   "])
    prepared(path, tmp_path / "out")
    assert all_documents(tmp_path / "out") == sorted(texts)


def test_jsonl_with_mark_long_lines_and_joined_gzip_members(tmp_path):
    long_text = "word " * 60000 + "end"
    plain = tmp_path / "plain.jsonl"
    plain.write_bytes(
        b"\xef\xbb\xbf" + json.dumps({"text": long_text}).encode()
    )  # no final newline
    one = write_jsonl(tmp_path / "one.jsonl.gz", [{"text": "first member"}]).read_bytes()
    two = write_jsonl(tmp_path / "two.jsonl.gz", [{"text": "second member"}]).read_bytes()
    (tmp_path / "one.jsonl.gz").write_bytes(one + two)
    (tmp_path / "two.jsonl.gz").unlink()
    prepared(str(tmp_path / "*.jsonl*"), tmp_path / "out")
    assert all_documents(tmp_path / "out") == sorted([long_text, "first member", "second member"])


def test_text_files_lose_their_storage_marks_only(tmp_path):
    write_texts(
        tmp_path / "in",
        [b"\xef\xbb\xbfone\r\ntwo\rthree\x07", "naïve café \U0001f600 日本語", " \n kept \n"],
    )
    prepared(tmp_path / "in", tmp_path / "out")
    expected = ["one\ntwo\rthree\x07", "naïve café \U0001f600 日本語", " \n kept \n"]
    assert all_documents(tmp_path / "out") == sorted(expected)


def test_rejected_documents_are_counted_with_reasons(tmp_path):
    records = [
        {"text": "good"},
        {"text": "fine"},
        {"text": ""},
        {"text": " \n"},
        {"text": None},
        {"text": "a\0b"},
    ]
    path = write_jsonl(tmp_path / "a.jsonl", records + [b'{"text": "\\ud800 alone", "id": "x"}'])
    rejected = prepared(path, tmp_path / "out")["rejected"]
    assert rejected["count"] == 5
    assert rejected["by_reason"] == {
        "text holds a NUL character": 1,
        "text holds a lone surrogate": 1,
        "text is empty": 2,
        "text is null": 1,
    }
    assert rejected["documents"][-1] == {
        "file": str(path),
        "index": 7,
        "reason": "text holds a lone surrogate",
        "id": "x",
    }
    assert all_documents(tmp_path / "out") == ["fine", "good"]


def test_folders_patterns_and_repeats_name_each_file_once(tmp_path):
    write_texts(tmp_path / "in" / "deep", sample_texts(3))
    write_texts(tmp_path / "in" / ".hidden", ["not read"])
    (tmp_path / "in" / "README.md").write_text("not read")
    (tmp_path / "in" / "link.txt").symlink_to(tmp_path / "in" / "deep" / "0000.txt")
    inputs = [
        tmp_path / "in",
        tmp_path / "in" / "deep" / "*.txt",
        tmp_path / "in" / "**" / "0001.txt",
    ]
    manifest = prepared(inputs, tmp_path / "out")
    assert all_documents(tmp_path / "out") == sorted(sample_texts(3))
    names = [source["path"] for source in manifest["sources"]]
    assert names == sorted(names)


def test_equal_input_gives_equal_bytes(tmp_path):
    write_texts(tmp_path / "in", sample_texts(200))
    options = ("--shard-tokens", "2000")
    tokenizer = ("--train-tokenizer", "280")
    prepared(tmp_path / "in", tmp_path / "a", *options, tokenizer=tokenizer)
    line = command_line(tmp_path / "in", tmp_path / "b", *options, tokenizer=tokenizer)
    other = prepare_in_process_of_its_own(line, env=dict(os.environ, RAYON_NUM_THREADS="1"))
    assert other.returncode == 0, other.stderr
    first = file_bytes(tmp_path / "a")
    assert first == file_bytes(tmp_path / "b")
    assert sum(name.startswith("train/") for name in first) > 2


def test_shards_hold_what_the_format_says(tmp_path):
    write_texts(tmp_path / "in", sample_texts(50))
    manifest = prepared(tmp_path / "in", tmp_path / "out")
    for name, entry in manifest["files"].items():
        data = (tmp_path / "out" / name).read_bytes()
        assert entry["size_bytes"] == len(data)
        assert entry["sha256"] == hashlib.sha256(data).hexdigest()
        with h5py.File(tmp_path / "out" / name, "r") as file:
            assert sorted(file) == ["document_offsets", "tokens"]
            assert file["tokens"].dtype == "<u2" and file["document_offsets"].dtype == "<u8"
            assert file["tokens"].fletcher32 and file["document_offsets"].fletcher32
            assert file["tokens"].maxshape == (None,)
            attributes = dict(file.attrs)
            assert attributes["token_count"] == file["tokens"].size == entry["token_count"]
            assert attributes["document_count"] == file["document_offsets"].size - 1
            assert attributes["vocab_size"] == 257 and attributes["eos_token_id"] == 0
            assert attributes["format_version"] == 1
            assert attributes["source"] == b"0000.txt and 49 more files"
            kind = file.attrs.get_id("source").get_type()
            assert not kind.is_variable_str() and kind.get_strpad() == h5py.h5t.STR_NULLPAD
            assert kind.get_cset() == h5py.h5t.CSET_UTF8
    tokenizer_bytes = (tmp_path / "out" / "tokenizer.json").read_bytes()
    assert manifest["tokenizer"]["sha256"] == hashlib.sha256(tokenizer_bytes).hexdigest()


def test_the_program_verifies_the_shards(tmp_path):
    root = Path(__file__).resolve().parents[2]
    program = Path(os.environ.get("CPLM_BUILD_DIR", root / "build" / "release")) / "cplm"
    if not program.exists():
        pytest.skip(f"{program} is not built")
    write_texts(tmp_path / "in", sample_texts(40) + ["naïve"])
    os.rename(tmp_path / "in" / "0000.txt", tmp_path / "in" / "00 é.txt")
    prepared(tmp_path / "in", tmp_path / "out", "--shard-tokens", "500")
    files = sorted((tmp_path / "out").rglob("*.h5"))
    command = [program, "data", "verify", *files]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr


def test_content_hash_is_that_of_the_format_page():
    arrays = {
        "tokens": numpy.array([1, 2, 0, 3, 0], dtype="<u2"),
        "document_offsets": numpy.array([0, 3, 5], dtype="<u8"),
    }
    datasets = {
        name: (array.dtype.name, array.size, hashlib.sha256(array.data).hexdigest())
        for name, array in arrays.items()
    }
    attributes = {"format_version": 1, "vocab_size": 4, "eos_token_id": 0, "tokenizer_sha256": ""}
    attributes |= {"token_count": 5, "document_count": 2, "source": "example"}
    expected = "fa452656ecc576e9f693a0df41aa6b597278e088b290621a859bb0d58d8b87e5"
    assert shards.content_sha256(datasets, attributes) == expected


def test_documents_are_never_split(tmp_path):
    texts = ["a" * 10, "b" * 500, "c" * 90, "d" * 99, "e" * 3, "f" * 95]
    write_texts(tmp_path / "in", texts)
    prepared(
        tmp_path / "in", tmp_path / "out", "--shard-tokens", "100", "--validation-fraction", "0"
    )
    assert documents(tmp_path / "out", "train") == texts
    sizes = []
    for path in sorted((tmp_path / "out" / "train").glob("*.h5")):
        with h5py.File(path, "r") as file:
            sizes.append(file["tokens"].size)
    assert sizes == [11, 501, 91, 100, 100]


def test_more_data_never_moves_a_document(tmp_path):
    first, second = sample_texts(300), sample_texts(600, start=300)
    write_texts(tmp_path / "small", first)
    write_texts(tmp_path / "large", second + first)
    prepared(tmp_path / "small", tmp_path / "a", "--validation-fraction", "0.1")
    prepared(tmp_path / "large", tmp_path / "b", "--validation-fraction", "0.1")
    small, large = set(documents(tmp_path / "a", "validation")), set(
        documents(tmp_path / "b", "validation")
    )
    assert small == large & set(first)
    assert 0.05 < len(large) / 900 < 0.15


def test_the_id_decides_the_split_where_there_is_one(tmp_path):
    texts = sample_texts(100)
    write_jsonl(tmp_path / "a.jsonl", [{"id": n, "text": text} for n, text in enumerate(texts)])
    prepared(tmp_path / "a.jsonl", tmp_path / "out", "--validation-fraction", "0.2")
    expected = [text for n, text in enumerate(texts) if split_key(str(n).encode()) < 0.2 * 2**64]
    assert documents(tmp_path / "out", "validation") == expected


def test_two_documents_give_both_sides_one_gives_training(tmp_path):
    for count, fraction in [(2, "0.000001"), (2, "0.999999"), (1, "0.05"), (1, "0.999999")]:
        folder = tmp_path / f"{count}-{fraction}"
        write_texts(folder / "in", sample_texts(count))
        prepared(folder / "in", folder / "out", "--validation-fraction", fraction)
        assert len(documents(folder / "out", "train")) == 1
        assert len(documents(folder / "out", "validation")) == count - 1


def test_equal_texts_stay_on_one_side(tmp_path):
    write_texts(tmp_path / "in", ["the same"] * 5)
    prepared(tmp_path / "in", tmp_path / "out", "--validation-fraction", "0.999999")
    assert documents(tmp_path / "out", "train") == ["the same"] * 5
    assert Split(0.5).is_validation(2**63 - 1) and not Split(0.5).is_validation(2**63)
