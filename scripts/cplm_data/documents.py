"""A document, why one may be rejected, and on which side of the split it falls.

The text itself is never changed: what is undone is only how a file stores it (sources.py).
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy

from cplm_data.errors import BadDataError

# Enough to see what went wrong; the counts by reason are complete.
_MAX_LISTED_REJECTIONS = 1000


class Document(NamedTuple):
    source: str  # path of its file
    index: int  # line of a jsonl file (from 1), row of a parquet file (from 0), 0 in a txt file
    id: str | None
    text: str | None = None
    messages: object = None  # of a conversation, as the file has them
    score: object = None
    language: object = None
    language_score: object = None

    @property
    def place(self) -> str:
        row = f" row {self.index}" if self.source.endswith(".parquet") else f":{self.index}"
        return f"{self.source}{row}"


class Rejections:
    """Documents left out, by reason; goes into the manifest."""

    def __init__(self, summary: dict | None = None) -> None:
        self.by_reason: Counter[str] = Counter(summary["by_reason"] if summary else {})
        self.listed: list[dict[str, object]] = list(summary["documents"]) if summary else []

    def add(self, document: Document, reason: str) -> None:
        self.by_reason[reason] += 1
        if len(self.listed) < _MAX_LISTED_REJECTIONS:
            entry = {"file": document.source, "index": document.index, "reason": reason}
            has_id = document.id is not None
            readable_id = document.id.encode(errors="replace").decode() if has_id else None
            self.listed.append(entry | {"id": readable_id} if has_id else entry)

    def extend(self, later: "Rejections") -> None:
        self.by_reason += later.by_reason
        self.listed += later.listed[: _MAX_LISTED_REJECTIONS - len(self.listed)]

    def commonest(self) -> str:
        """The reason of most, for a message; nothing where none was rejected."""
        return "".join(f" ({n} times: {why})" for why, n in self.by_reason.most_common(1))

    def summary(self) -> dict[str, object]:
        return {
            "count": self.by_reason.total(),
            "by_reason": dict(sorted(self.by_reason.items())),
            "documents": self.listed,
        }


def is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def text_rejection(text: str | None) -> str | None:
    """Why a text cannot become tokens."""
    if text is None:
        return "text is null"
    if not text or text.isspace():
        return "text is empty"
    if "\0" in text:
        return "text holds a NUL character"
    return None if is_encodable(text) else "text holds a lone surrogate"


def split_key(identity: bytes) -> int:
    """A 64-bit number that depends on a document alone: the first bytes of a sha256."""
    return int.from_bytes(hashlib.sha256(identity).digest()[:8], "big")


def key_of(document: Document, encoded_text: bytes) -> int:
    return split_key(document.id.encode() if document.id else encoded_text)


class Split:
    """Which documents validate: those whose key lies below fraction * 2^64.

    A small set may have none below it (or all): then the smallest key validates (the largest
    trains), so that two different documents always give both sides.
    """

    def __init__(self, fraction: float, forced: dict[str, bool] | None = None) -> None:
        self._threshold = int(fraction * 2**64)
        self.forced = {} if forced is None else forced  # by key in decimal, as JSON keeps it

    def is_validation(self, key: int) -> bool:
        forced = self.forced.get(str(key))
        return key < self._threshold if forced is None else forced

    def are_validation(self, keys: numpy.ndarray) -> numpy.ndarray:
        result = keys < numpy.uint64(self._threshold)
        for key, is_validation in self.forced.items():
            result[keys == numpy.uint64(int(key))] = is_validation
        return result

    def ensure_both_sides(self, keys: Iterable[int], rejections: Rejections) -> None:
        """Reads keys until both sides have one: about 1 / fraction of them, all in a small set.
        rejections: what has been left out by then."""
        smallest = largest = None
        for key in keys:
            smallest = key if smallest is None else min(smallest, key)
            largest = key if largest is None else max(largest, key)
            if self._threshold == 0 or smallest < self._threshold <= largest:
                return
        if smallest is None:
            raise BadDataError(
                "no document is left to train on: every text is empty or rejected"
                f"{rejections.commonest()}; see --input"
            )
        if smallest == largest:
            self.forced[str(largest)] = False
        elif smallest >= self._threshold:
            self.forced[str(smallest)] = True
        else:
            self.forced[str(largest)] = False
