"""Writes token shards: HDF5 files in the format of docs/shard-format.md, from datasets on disk.

What a shard will hold is appended to plain files beside it (spools), a dataset each, so that memory
does not grow with the shard and an interrupted job finds them again.
"""

import dataclasses
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy

from cplm_data.durable import PARTIAL_SUFFIX, fsync, publish, sha256_of_file, system_errors_at

FORMAT_VERSION = 1
_CHUNK = {"tokens": 1 << 16, "document_offsets": 1 << 13, "loss_mask": 1 << 16}
_CHUNKS_AT_ONCE = 16


@dataclasses.dataclass(frozen=True)
class ShardProperties:
    """What all shards of one run share."""

    vocab_size: int
    eos_token_id: int
    tokenizer_sha256: str
    source: str
    dtype: numpy.dtype
    has_loss_mask: bool = False

    def dtypes(self) -> dict[str, numpy.dtype]:
        """The datasets of a shard."""
        plain = {"tokens": self.dtype, "document_offsets": numpy.dtype("<u8")}
        return plain | {"loss_mask": numpy.dtype("u1")} if self.has_loss_mask else plain


def content_sha256(
    datasets: dict[str, tuple[str, int, str]], attributes: dict[str, int | str]
) -> str:
    """Of datasets given as (type, length, sha256 of their bytes)."""
    lines = ["cplm-shard 1"]
    for name in ("tokens", "document_offsets", "loss_mask"):
        if name in datasets:
            kind, length, digest = datasets[name]
            lines.append(f"dataset {name} {kind} {length} {digest}")
    for name in sorted(attributes):
        value = str(attributes[name])
        lines.append(f"attribute {name} {len(value.encode())} {value}")
    return hashlib.sha256("".join(line + "\n" for line in lines).encode()).hexdigest()


class Spool:
    """The datasets of a shard that is not complete, each as a plain file beside it."""

    def __init__(
        self, shard: Path, dtypes: dict[str, numpy.dtype], lengths: dict[str, int]
    ) -> None:
        """Goes on after `lengths` elements; 0 of them start it."""
        self.shard = shard
        self.dtypes = dtypes
        self.lengths = dict(lengths)
        with system_errors_at(shard):
            self._files = {name: self._open(name) for name in dtypes}

    def path(self, dataset: str) -> Path:
        return self.shard.with_name(f".{self.shard.name}.{dataset}{PARTIAL_SUFFIX}")

    def _open(self, name: str):
        num_bytes = self.lengths[name] * self.dtypes[name].itemsize
        file = open(self.path(name), "r+b" if num_bytes else "wb", buffering=1 << 18)
        if os.fstat(file.fileno()).st_size < num_bytes:
            raise OSError(
                f"{self.path(name).name} is shorter than the journal says; give --overwrite to "
                "start over"
            )
        file.truncate(num_bytes)
        file.seek(num_bytes)
        return file

    def append(self, name: str, values: numpy.ndarray) -> None:
        with system_errors_at(self.shard):
            self._files[name].write(values.astype(self.dtypes[name], copy=False).data)
        self.lengths[name] += values.size

    def sync(self) -> None:
        with system_errors_at(self.shard):
            for file in self._files.values():
                file.flush()
                os.fsync(file.fileno())
            fsync(self.shard.parent)

    def close(self) -> None:
        with system_errors_at(self.shard):
            for file in self._files.values():
                file.close()

    def remove(self) -> None:
        for name in self.dtypes:
            self.path(name).unlink(missing_ok=True)

    def slices(self, name: str) -> Iterator[numpy.ndarray]:
        """A closed spool's values, whole chunks at a time."""
        with open(self.path(name), "rb") as file:
            num_bytes = _CHUNKS_AT_ONCE * _CHUNK[name] * self.dtypes[name].itemsize
            while block := file.read(num_bytes):
                yield numpy.frombuffer(block, dtype=self.dtypes[name])


class _File:
    """The file that HDF5 writes. HDF5 only warns of a disk that is full while it closes a dataset:
    so errors are kept here, HDF5 is told that all is well, and the caller looks at `error`."""

    def __init__(self, file) -> None:
        self._file = file
        self.error: OSError | None = None
        self.seek, self.tell, self.readinto = file.seek, file.tell, file.readinto

    def _keep(self, action, *arguments):
        try:
            return action(*arguments)
        except OSError as error:
            self.error = self.error or error
            return None

    def _write_all(self, data) -> None:
        left = memoryview(data)
        while left:
            left = left[self._file.write(left) :]

    def write(self, data) -> int:
        self._keep(self._write_all, data)
        return len(data)

    def truncate(self, size: int) -> int:
        self._keep(self._file.truncate, size)
        return size

    def flush(self) -> None:
        self._keep(self._file.flush)


def _create(file: _File) -> h5py.File:
    """The 1.10 format, which HDF5 from 1.10 on reads, without times: they differ each run."""
    creation = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    creation.set_obj_track_times(False)
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(h5py.h5f.LIBVER_V110, h5py.h5f.LIBVER_V110)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    access.set_fileobj_driver(h5py.h5fd.fileobj_driver, file)
    return h5py.File(h5py.h5f.create(b"shard", h5py.h5f.ACC_TRUNC, creation, access))


def _write_dataset(file: h5py.File, spool: Spool, name: str) -> tuple[str, int, str]:
    """Copies one dataset; returns what enters content_sha256."""
    length = spool.lengths[name]
    dataset = file.create_dataset(
        name,
        shape=(length,),
        dtype=spool.dtypes[name],
        chunks=(max(1, min(_CHUNK[name], length)),),
        maxshape=(None,),
        fletcher32=True,
        track_times=False,
    )
    digest, done = hashlib.sha256(), 0
    for values in spool.slices(name):
        digest.update(values.data)
        dataset[done : done + values.size] = values
        done += values.size
    return spool.dtypes[name].name, length, digest.hexdigest()


def _write_attributes(file: h5py.File, attributes: dict[str, int | str]) -> None:
    for name, value in attributes.items():
        if isinstance(value, int):
            file.attrs.create(name, value, dtype="<i8")
        else:
            encoded = value.encode()
            kind = h5py.string_dtype("utf-8", max(1, len(encoded)))
            file.attrs.create(name, encoded, dtype=kind)


def _write_file(raw, spool: Spool, attributes: dict[str, int | str]) -> None:
    target = _File(raw)
    try:
        with _create(target) as file:
            datasets = {name: _write_dataset(file, spool, name) for name in spool.dtypes}
            digest = content_sha256(datasets, attributes)
            _write_attributes(file, attributes | {"content_sha256": digest})
    finally:
        if target.error is not None:
            raise target.error


def write_shard(spool: Spool, properties: ShardProperties) -> dict[str, int | str]:
    """The shard of a closed spool; returns its entry in the manifest."""
    counts = {
        "token_count": spool.lengths["tokens"],
        "document_count": spool.lengths["document_offsets"] - 1,
    }
    attributes: dict[str, int | str] = {
        "format_version": FORMAT_VERSION,
        "vocab_size": properties.vocab_size,
        "eos_token_id": properties.eos_token_id,
        "tokenizer_sha256": properties.tokenizer_sha256,
        "source": properties.source,
    }
    aside = spool.shard.with_name(f".{spool.shard.name}{PARTIAL_SUFFIX}")
    with system_errors_at(spool.shard):
        try:
            with open(aside, "w+b", buffering=0) as raw:
                _write_file(raw, spool, attributes | counts)
                size_bytes = os.fstat(raw.fileno()).st_size
            entry = {"size_bytes": size_bytes, "sha256": sha256_of_file(aside)}
            publish(aside, spool.shard)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
    return entry | counts
