"""Writes token shards: HDF5 files in the format of docs/shard-format.md."""

import dataclasses
import hashlib
from array import array
from pathlib import Path

import h5py
import numpy

from cplm_data.durable import make_folder, write_durably

FORMAT_VERSION = 1
_TOKEN_CHUNK = 1 << 16
_OFFSET_CHUNK = 1 << 13
_FIRST_CAPACITY = 1 << 20
_IMAGE_GROWTH = 1 << 23


@dataclasses.dataclass(frozen=True)
class ShardProperties:
    """What all shards of one run share."""

    vocab_size: int
    eos_token_id: int
    tokenizer_sha256: str
    source: str
    dtype: numpy.dtype


def content_sha256(datasets: dict[str, numpy.ndarray], attributes: dict[str, int | str]) -> str:
    lines = ["cplm-shard 1"]
    for name in ("tokens", "document_offsets", "loss_mask"):
        if name in datasets:
            data = datasets[name]
            digest = hashlib.sha256(data.data).hexdigest()
            lines.append(f"dataset {name} {data.dtype.name} {data.size} {digest}")
    for name in sorted(attributes):
        value = str(attributes[name])
        lines.append(f"attribute {name} {len(value.encode())} {value}")
    return hashlib.sha256("".join(line + "\n" for line in lines).encode()).hexdigest()


def _create_in_memory() -> h5py.File:
    """The 1.10 format, which HDF5 from 1.10 on reads, without times, which would differ each run.

    In memory, since HDF5 only warns of a disk that is full while it closes a dataset.
    """
    creation = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    creation.set_obj_track_times(False)
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(h5py.h5f.LIBVER_V110, h5py.h5f.LIBVER_V110)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    access.set_fapl_core(_IMAGE_GROWTH, backing_store=False)
    return h5py.File(h5py.h5f.create(b"shard", h5py.h5f.ACC_TRUNC, creation, access))


def _hdf5_image(datasets: dict[str, numpy.ndarray], attributes: dict[str, int | str]) -> bytes:
    with _create_in_memory() as file:
        for name, data in datasets.items():
            longest = _OFFSET_CHUNK if name == "document_offsets" else _TOKEN_CHUNK
            file.create_dataset(
                name,
                data=data,
                chunks=(max(1, min(longest, data.size)),),
                maxshape=(None,),
                fletcher32=True,
                track_times=False,
            )
        for name, value in attributes.items():
            if isinstance(value, int):
                file.attrs.create(name, value, dtype="<i8")
            else:
                encoded = value.encode()
                kind = h5py.string_dtype("utf-8", max(1, len(encoded)))
                file.attrs.create(name, encoded, dtype=kind)
        file.flush()
        return file.id.get_file_image()


def write_shard(
    path: Path, tokens: numpy.ndarray, offsets: numpy.ndarray, properties: ShardProperties
) -> dict[str, int | str]:
    """Returns the file's entry in the manifest."""
    datasets = {"tokens": tokens, "document_offsets": offsets}
    attributes: dict[str, int | str] = {
        "format_version": FORMAT_VERSION,
        "vocab_size": properties.vocab_size,
        "eos_token_id": properties.eos_token_id,
        "tokenizer_sha256": properties.tokenizer_sha256,
        "token_count": tokens.size,
        "document_count": offsets.size - 1,
        "source": properties.source,
    }
    attributes["content_sha256"] = content_sha256(datasets, attributes)
    image = _hdf5_image(datasets, attributes)
    write_durably(path, image)
    return {
        "size_bytes": len(image),
        "sha256": hashlib.sha256(image).hexdigest(),
        "token_count": tokens.size,
        "document_count": offsets.size - 1,
    }


class ShardSeries:
    """Appends documents to shard_00000.h5, shard_00001.h5, ... of one folder; a shard is in memory
    until it is full. A document is never split: one longer than a shard gets a longer shard."""

    def __init__(self, folder: Path, shard_tokens: int, properties: ShardProperties) -> None:
        self._folder = folder
        self._shard_tokens = shard_tokens
        self._properties = properties
        self._tokens = numpy.empty(min(shard_tokens, _FIRST_CAPACITY), dtype=properties.dtype)
        self._num_tokens = 0
        self._offsets = array("Q", [0])
        self.files: dict[str, dict[str, int | str]] = {}  # for the manifest
        self.token_count = 0
        self.document_count = 0
        make_folder(folder)

    def add(self, ids: numpy.ndarray) -> None:
        """One document, without its eos."""
        needed = self._num_tokens + ids.size + 1
        if needed > self._shard_tokens and self._num_tokens:
            self._write()
            needed = ids.size + 1
        if needed > self._tokens.size:
            self._grow(needed)
        self._tokens[self._num_tokens : needed - 1] = ids
        self._tokens[needed - 1] = self._properties.eos_token_id
        self._num_tokens = needed
        self._offsets.append(needed)
        self.token_count += ids.size + 1
        self.document_count += 1

    def _grow(self, needed: int) -> None:
        capacity = max(needed, min(2 * self._tokens.size, self._shard_tokens))
        grown = numpy.empty(capacity, dtype=self._tokens.dtype)
        grown[: self._num_tokens] = self._tokens[: self._num_tokens]
        self._tokens = grown

    def _write(self) -> None:
        path = self._folder / f"shard_{len(self.files):05d}.h5"
        offsets = numpy.array(self._offsets, dtype="<u8")
        entry = write_shard(path, self._tokens[: self._num_tokens], offsets, self._properties)
        self.files[f"{self._folder.name}/{path.name}"] = entry
        self._num_tokens = 0
        self._offsets = array("Q", [0])

    def finish(self) -> None:
        if self._num_tokens:
            self._write()
