"""Lines of metrics.jsonl as events, also while the file grows and when a resumed run replaces it."""

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from cplm_tensorboard.errors import ConvertError

_NOT_FINITE = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
# A line as an event: its step, and (tag, float32 bits) of each scalar. Bits, since nan is not nan.
Event = tuple[int, tuple[tuple[str, bytes], ...]]


def float32_bits(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", float("inf") if value > 0 else float("-inf"))


def scalars(tag: str, value: object) -> Iterator[tuple[str, bytes]]:
    """Of nested objects every number by its path; of a list its length; of other things nothing."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from scalars(f"{tag}/{key}", inner)
    elif isinstance(value, list):
        yield tag, float32_bits(len(value))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield tag, float32_bits(value)
    elif isinstance(value, str) and value in _NOT_FINITE:
        yield tag, float32_bits(_NOT_FINITE[value])


class MetricsFile:
    """Whole lines of a file that grows at its end and is replaced, by rename, when a run resumes."""

    def __init__(self, path: Path):
        self.path = path
        self._file = None  # kept open, so that its inode is not used again
        self._step = self._lines = 0

    def read(self) -> tuple[bool, list[Event]]:
        """(whether this is a new file from its start, its lines since the last call)."""
        is_new = self._is_replaced()
        if is_new:
            if self._file is not None:
                self._file.close()
            self._file = open(self.path, "rb")
            self._step = self._lines = 0
        start = self._file.tell()
        text = self._file.read()
        whole = text[: text.rfind(b"\n") + 1]  # a torn last line waits for its rest
        self._file.seek(start + len(whole))
        events = (self._event(line) for line in whole.splitlines())
        return is_new, [event for event in events if event is not None]

    def has_torn_line(self) -> bool:
        return os.fstat(self._file.fileno()).st_size > self._file.tell()

    def _is_replaced(self) -> bool:
        if self._file is None:
            return True
        ours, now = os.fstat(self._file.fileno()), os.stat(self.path)
        return (ours.st_dev, ours.st_ino) != (now.st_dev, now.st_ino) or now.st_size < self._file.tell()

    def _event(self, line: bytes) -> Event | None:
        self._lines += 1
        if not line.strip():
            return None
        try:
            record = json.loads(line)
            kind = record.pop("kind")
            self._step = int(record.pop("step", self._step))  # without one: the step before
            if not 0 <= self._step < 1 << 63:
                raise ValueError
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConvertError(
                f"{self.path}:{self._lines}: expected a JSON object with a kind and a step, found {line[:60]!r}",
                3,
            ) from error
        return self._step, tuple(scalars(str(kind), record))
