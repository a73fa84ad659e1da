"""Input files: finding them, and reading their documents one after the other in bounded memory.

What storage adds is undone: UTF-8, a byte order mark, and in .txt files CRLF line ends.
Broken files (invalid UTF-8, invalid JSON, damaged compression) stop the run with their place.
"""

import glob
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path

import zstandard

from cplm_data.documents import Document
from cplm_data.errors import ArgumentError, BadDataError, system_reason
from cplm_data.jsonl import read_jsonl
from cplm_data.parquet import read_parquet

SUFFIXES = (".parquet", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".txt")
_READ_BYTES = 1 << 16


class Source:
    """One input file; `bytes_done` follows the reader for the progress line."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.stat = os.stat(path)
        self.bytes_done = 0

    @property
    def size_bytes(self) -> int:
        return self.stat.st_size

    @property
    def name(self) -> str:
        """For manifests and messages: file names need not be valid UTF-8."""
        return os.fsencode(self.path).decode(errors="replace")

    def documents(self) -> Iterator[Document]:
        try:
            yield from self._read()
            now = os.stat(self.path)
        except OSError as error:
            raise BadDataError(f"{self.name}: cannot be read: {system_reason(error)}") from None
        if (now.st_size, now.st_mtime_ns) != (self.stat.st_size, self.stat.st_mtime_ns):
            raise BadDataError(
                f"{self.name}: changed while it was read; run again when it is complete"
            )
        self.bytes_done = self.size_bytes

    def _read(self) -> Iterator[Document]:
        if self.path.endswith(".txt"):
            yield Document(self.name, 0, None, _read_text_file(self))
        elif self.path.endswith(".parquet"):
            yield from read_parquet(self)
        else:
            yield from read_jsonl(self.name, self._blocks())

    def _blocks(self) -> Iterator[bytes]:
        """The file's bytes, decompressed; raises when compressed data is damaged or cut off."""
        with open(self.path, "rb") as file:
            if self.path.endswith(".jsonl"):
                while block := file.read(_READ_BYTES):
                    self.bytes_done += len(block)
                    yield block
                return
            make = _DECOMPRESSORS[Path(self.path).suffix]
            decompressor = make()
            anything_pending = False
            while block := file.read(_READ_BYTES):
                self.bytes_done += len(block)
                while block:  # one file may hold several gzip members or zstd frames
                    if decompressor.eof:
                        decompressor = make()
                    try:
                        yield decompressor.decompress(block)
                    except (zlib.error, zstandard.ZstdError) as error:
                        place = f"{self.name}: damaged compressed data near byte {self.bytes_done}"
                        raise BadDataError(f"{place}: {error}") from None
                    block = decompressor.unused_data if decompressor.eof else b""
                anything_pending = not decompressor.eof
            if anything_pending:
                raise BadDataError(
                    f"{self.name}: the compressed data is cut off at byte {self.bytes_done}"
                )


_DECOMPRESSORS = {
    ".gz": lambda: zlib.decompressobj(wbits=31),
    ".zst": lambda: zstandard.ZstdDecompressor().decompressobj(),
}


def _read_text_file(source: Source) -> str:
    data = Path(source.path).read_bytes()
    source.bytes_done = len(data)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = f"byte 0x{data[error.start]:02x} at offset {error.start}"
        raise BadDataError(f"{source.name}: not UTF-8: {byte}; convert the file") from None
    return text.replace("\r\n", "\n")


def _files_below(folder: str) -> list[str]:
    """Files of the known kinds in a folder and its subfolders, hidden ones left out."""
    found: list[str] = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [
            os.path.join(parent, name)
            for name in names
            if name.endswith(SUFFIXES) and not name.startswith(".")
        ]
    return found


def _matches(pattern: str) -> list[str]:
    expanded = os.path.expanduser(pattern)
    paths = [expanded] if os.path.exists(expanded) else glob.glob(expanded, recursive=True)
    if not paths:
        raise ArgumentError(f"--input {pattern}: no such file, and no file matches it")
    found: list[str] = []
    for path in paths:
        if os.path.isdir(path):
            found += _files_below(path)
        elif path.endswith(SUFFIXES):
            found.append(path)
        else:
            raise ArgumentError(f"--input {pattern}: {path}: expected one of {', '.join(SUFFIXES)}")
    if not found:
        raise ArgumentError(f"--input {pattern}: no {', '.join(SUFFIXES)} file in that folder")
    return found


def find_sources(patterns: list[str]) -> list[Source]:
    """The files that the patterns name, each once, sorted by path."""
    by_real_path: dict[str, str] = {}
    for path in sorted({path for pattern in patterns for path in _matches(pattern)}):
        by_real_path.setdefault(os.path.realpath(path), path)
    sources: list[Source] = []
    for path in by_real_path.values():
        try:
            source = Source(path)
        except OSError as error:
            raise BadDataError(f"{path}: cannot be read: {system_reason(error)}") from None
        if not stat.S_ISREG(source.stat.st_mode):
            raise ArgumentError(
                f"--input: {source.name}: expected a regular file (it is read more than once)"
            )
        sources.append(source)
    return sources
