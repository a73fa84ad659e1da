"""A document, why one may be rejected, and on which side of the split it falls.

The text itself is never changed: what is undone is only how a file stores it (sources.py).
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from cplm_data.errors import BadDataError

# Enough to see what went wrong; the counts by reason are complete.
_MAX_LISTED_REJECTIONS = 1000


class Document(NamedTuple):
    source: str  # path of its file
    index: int  # line of a jsonl file (from 1), row of a parquet file (from 0), 0 in a txt file
    id: str | None
    text: str | None


class AcceptedDocument(NamedTuple):
    text: str
    split_key: int
    num_bytes: int


class Rejections:
    """Documents left out, by reason; goes into the manifest."""

    def __init__(self) -> None:
        self.by_reason: Counter[str] = Counter()
        self.listed: list[dict[str, object]] = []

    def add(self, document: Document, reason: str) -> None:
        self.by_reason[reason] += 1
        if len(self.listed) < _MAX_LISTED_REJECTIONS:
            entry = {"file": document.source, "index": document.index, "reason": reason}
            self.listed.append(entry if document.id is None else entry | {"id": document.id})

    def summary(self) -> dict[str, object]:
        return {
            "count": self.by_reason.total(),
            "by_reason": dict(sorted(self.by_reason.items())),
            "documents": self.listed,
        }


def _rejection_reason(text: str | None) -> str | None:
    if text is None:
        return "text is null"
    if not text or text.isspace():
        return "text is empty"
    if "\0" in text:
        return "text holds a NUL character"
    return None


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def split_key(identity: bytes) -> int:
    """A 64-bit number that depends on a document alone: the first bytes of a sha256."""
    return int.from_bytes(hashlib.sha256(identity).digest()[:8], "big")


def accepted(documents: Iterable[Document], rejections: Rejections) -> Iterator[AcceptedDocument]:
    """The documents that become tokens, each with the key that decides its side of the split."""
    for document in documents:
        reason = _rejection_reason(document.text)
        if reason is None and not _is_encodable(document.text):
            reason = "text holds a lone surrogate"
        if reason is None and document.id is not None and not _is_encodable(document.id):
            reason = "id holds a lone surrogate"
        if reason is not None:
            rejections.add(document, reason)
            continue
        encoded = document.text.encode()
        identity = document.id.encode() if document.id else encoded
        yield AcceptedDocument(document.text, split_key(identity), len(encoded))


class Split:
    """Which documents validate: those whose key lies below fraction * 2^64.

    A small set may have none below it (or all): then the smallest key validates (the largest
    trains), so that two different documents always give both sides.
    """

    def __init__(self, fraction: float) -> None:
        self._threshold = int(fraction * 2**64)
        self._forced: dict[int, bool] = {}

    def is_validation(self, key: int) -> bool:
        forced = self._forced.get(key)
        return key < self._threshold if forced is None else forced

    def ensure_both_sides(self, documents: Iterable[AcceptedDocument]) -> None:
        """Reads documents until both sides have one; all of them only in a small set."""
        smallest = largest = None
        for document in documents:
            key = document.split_key
            smallest = key if smallest is None else min(smallest, key)
            largest = key if largest is None else max(largest, key)
            if self._threshold == 0 or smallest < self._threshold <= largest:
                return
        if smallest is None:
            raise BadDataError(
                "no document is left to train on: every text is empty or rejected; see --input"
            )
        if smallest == largest:
            self._forced[largest] = False
        elif smallest >= self._threshold:
            self._forced[smallest] = True
        else:
            self._forced[largest] = False
