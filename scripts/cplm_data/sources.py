"""One input file: its raw records from any place on, in batches and in bounded memory.

What storage adds is undone: UTF-8, a byte order mark, and in .txt files CRLF line ends.
Broken files (invalid UTF-8, invalid JSON, damaged compression) stop the run with their place.
"""

import itertools
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import zstandard

from cplm_data.documents import Document
from cplm_data.errors import BadDataError, system_reason
from cplm_data.fields import Fields
from cplm_data.jsonl import lines_of
from cplm_data.parquet import read_parquet

SUFFIXES = (".parquet", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".txt")
# Text handed to a worker at once: little, since encoding allocates a hundred bytes a token, in
# fresh pages each time, and since the last batch leaves the other workers without any.
_BATCH_BYTES = 1 << 18
_READ_BYTES = 1 << 16


class Place(NamedTuple):
    """Where reading goes on: after so many records (rows, lines, files) and bytes of lines."""

    record: int = 0
    byte: int = 0


class Part(NamedTuple):
    """What is read of a source: all, or what begins in [begin, end) of its rows or bytes."""

    source_index: int
    begin: int = 0
    end: int | None = None


class RawBatch(NamedTuple):
    """Records as they were read: lines, or documents where reading already gives them."""

    source: str
    lines: list[bytes]
    first_line: int  # number of the first line, from 1
    documents: list[Document]
    part_number: int  # of the parts that are read, and
    end: Place  # where reading goes on after this batch
    share_done: float  # of its part
    num_bytes: int  # of the records, about


class Source:
    def __init__(self, path: str) -> None:
        self.path = path
        self.stat = os.stat(path)

    @property
    def size_bytes(self) -> int:
        return self.stat.st_size

    @property
    def name(self) -> str:
        """For manifests and messages: file names need not be valid UTF-8."""
        return os.fsencode(self.path).decode(errors="replace")

    def batches(
        self, part: Part, part_number: int, fields: Fields, start: Place
    ) -> Iterator[RawBatch]:
        try:
            if self.path.endswith(".jsonl"):
                start = self._begin_of_part(part, start)
            if self.path.endswith(".txt"):
                batches = self._text_batches(fields, start)
            elif self.path.endswith(".parquet"):
                batches = self._row_batches(part, fields, start)
            else:
                batches = self._line_batches(part, start)
            for batch in batches:
                yield batch._replace(part_number=part_number)
            now = os.stat(self.path)
        except OSError as error:
            raise BadDataError(f"{self.name}: cannot be read: {system_reason(error)}") from None
        if (now.st_size, now.st_mtime_ns) != (self.stat.st_size, self.stat.st_mtime_ns):
            raise BadDataError(
                f"{self.name}: changed while it was read; run again when it is complete"
            )

    def _batch(
        self, end: Place, share_done: float, num_bytes: int, **records: object
    ) -> RawBatch:
        empty = RawBatch(self.name, [], 0, [], 0, end, share_done, num_bytes)
        return empty._replace(**records)

    def _text_batches(self, fields: Fields, start: Place) -> Iterator[RawBatch]:
        if start.record == 0:
            fields.choose(["text"], self.name, "column")
            document = Document(self.name, 0, None, _read_text_file(self))
            yield self._batch(Place(record=1), 1.0, self.size_bytes, documents=[document])

    def _row_batches(self, part: Part, fields: Fields, start: Place) -> Iterator[RawBatch]:
        documents: list[Document] = []
        num_bytes = 0
        row = max(start.record, part.begin)
        for some, some_bytes, end in read_parquet(self, fields, row, part.end):
            documents += some
            row += len(some)
            num_bytes += some_bytes
            if num_bytes >= _BATCH_BYTES:
                share_done = (row - part.begin) / (end - part.begin)
                yield self._batch(Place(record=row), share_done, num_bytes, documents=documents)
                documents, num_bytes = [], 0
        yield self._batch(Place(record=row), 1.0, num_bytes, documents=documents)

    def _begin_of_part(self, part: Part, start: Place) -> Place:
        """A part that begins inside a file of lines: how many lines stand before it."""
        if start.byte >= part.begin:
            return start
        num_lines = 0
        with open(self.path, "rb") as file:
            for begin in range(0, part.begin, 1 << 20):
                num_lines += file.read(min(1 << 20, part.begin - begin)).count(b"\n")
        return Place(num_lines, part.begin)

    def _line_batches(self, part: Part, start: Place) -> Iterator[RawBatch]:
        lines: list[bytes] = []
        place, num_bytes = start, 0
        for line, share_done in self._lines(part, start.byte):
            lines.append(line)
            num_bytes += len(line)
            if num_bytes >= _BATCH_BYTES:
                first = place.record + 1
                place = Place(place.record + len(lines), place.byte + num_bytes)
                yield self._batch(place, share_done, num_bytes, lines=lines, first_line=first)
                lines, num_bytes = [], 0
        first = place.record + 1
        place = Place(place.record + len(lines), place.byte + num_bytes)
        yield self._batch(place, 1.0, num_bytes, lines=lines, first_line=first)

    def _lines(self, part: Part, position: int) -> Iterator[tuple[bytes, float]]:
        """The lines from byte `position` on, each with the share of the part that was read."""
        is_plain = self.path.endswith(".jsonl")
        end = self.size_bytes if part.end is None else part.end
        with open(self.path, "rb") as file:
            if is_plain:
                file.seek(position)
                blocks = iter(lambda: file.read(_READ_BYTES), b"")
            else:
                blocks = _skip(position, self._decompressed(file))
            for line in lines_of(blocks):
                if is_plain and position >= end:
                    return
                position += len(line)
                yield line, min(1.0, (file.tell() - part.begin) / max(end - part.begin, 1))

    def _decompressed(self, file) -> Iterator[bytes]:
        """Raises when compressed data is damaged or cut off."""
        make = _DECOMPRESSORS[Path(self.path).suffix]
        decompressor = make()
        anything_pending = False
        while block := file.read(_READ_BYTES):
            while block:  # one file may hold several gzip members or zstd frames
                if decompressor.eof:
                    decompressor = make()
                try:
                    yield decompressor.decompress(block)
                except (zlib.error, zstandard.ZstdError) as error:
                    place = f"{self.name}: damaged compressed data near byte {file.tell()}"
                    raise BadDataError(f"{place}: {error}") from None
                block = decompressor.unused_data if decompressor.eof else b""
            anything_pending = not decompressor.eof
        if anything_pending:
            raise BadDataError(f"{self.name}: the compressed data is cut off at byte {file.tell()}")


_DECOMPRESSORS = {
    ".gz": lambda: zlib.decompressobj(wbits=31),
    ".zst": lambda: zstandard.ZstdDecompressor().decompressobj(),
}


def _skip(num_bytes: int, blocks: Iterator[bytes]) -> Iterator[bytes]:
    for block in blocks:
        if num_bytes < len(block):
            return itertools.chain([block[num_bytes:]], blocks)
        num_bytes -= len(block)
    return iter(())


def _read_text_file(source: Source) -> str:
    data = Path(source.path).read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = f"byte 0x{data[error.start]:02x} at offset {error.start}"
        raise BadDataError(f"{source.name}: not UTF-8: {byte}; convert the file") from None
    return text.replace("\r\n", "\n")
