"""What a worker does with a batch: parse, filter, tokenize. The same batch gives the same result
in every process and thread, so the number of workers changes nothing."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy

from cplm_data import chat
from cplm_data.documents import Document, Rejections, is_encodable, key_of, text_rejection
from cplm_data.fields import Fields
from cplm_data.filters import Filters
from cplm_data.jsonl import document_of_line
from cplm_data.sources import RawBatch
from cplm_data.tokenizer import TextEncoder


class EncodedBatch(NamedTuple):
    """The kept documents one after the other, each with its eos."""

    ids: numpy.ndarray
    mask: numpy.ndarray | None
    ends: numpy.ndarray  # where each document ends in ids
    keys: numpy.ndarray  # uint64, decide the side of the split
    rejections: Rejections
    num_text_bytes: int
    num_dropped_ids: int
    num_truncated: int
    raw: RawBatch  # without its records


class AcceptedText(NamedTuple):
    text: str
    key: int
    num_bytes: int


@dataclasses.dataclass(frozen=True)
class Selection:
    """Which records become documents."""

    fields: Fields
    filters: Filters

    def documents(self, raw: RawBatch) -> Iterator[Document]:
        yield from raw.documents
        for number, line in enumerate(raw.lines, start=raw.first_line):
            document = document_of_line(raw.source, number, line, self.fields)
            if document is not None:
                yield document

    def texts(self, raw: RawBatch, rejections: Rejections) -> Iterator[AcceptedText]:
        for document in self.documents(raw):
            reason = text_rejection(document.text) or self.rejection(document, document.text)
            if reason is not None:
                rejections.add(document, reason)
                continue
            encoded = document.text.encode()
            yield AcceptedText(document.text, key_of(document, encoded), len(encoded))

    def rejection(self, document: Document, text: str) -> str | None:
        if document.id is not None and not is_encodable(document.id):
            return "id holds a lone surrogate"
        return self.filters.rejection(document, text)


def _joined(arrays: list[numpy.ndarray], dtype: numpy.dtype) -> numpy.ndarray:
    return numpy.concatenate(arrays) if arrays else numpy.empty(0, dtype=dtype)


@dataclasses.dataclass(frozen=True)
class EncodingPlan:
    """All that a worker needs, to be sent to it."""

    selection: Selection
    tokenizer_json: bytes
    eos: str
    tokenizer_name: str
    sequence_length: int | None  # of conversations

    def text_encoder(self) -> TextEncoder:
        return TextEncoder(self.tokenizer_json, self.eos, self.tokenizer_name)

    def batch_encoder(self, text_encoder: TextEncoder) -> "BatchEncoder":
        if self.sequence_length is None:
            return TextBatchEncoder(self.selection, text_encoder)
        return ChatBatchEncoder(self.selection, text_encoder, self.eos, self.sequence_length)


class TextBatchEncoder:
    def __init__(self, selection: Selection, encoder: TextEncoder) -> None:
        self._selection = selection
        self._encoder = encoder
        self._eos = numpy.array([encoder.eos_id], dtype=encoder.dtype)

    def encode(self, raw: RawBatch) -> EncodedBatch:
        rejections = Rejections()
        accepted = list(self._selection.texts(raw, rejections))
        arrays, num_dropped = self._encoder.encode_and_count([one.text for one in accepted])
        with_eos = [part for ids in arrays for part in (ids, self._eos)]
        return EncodedBatch(
            _joined(with_eos, self._encoder.dtype),
            None,
            numpy.cumsum([ids.size + 1 for ids in arrays], dtype=numpy.int64),
            numpy.array([one.key for one in accepted], dtype=numpy.uint64),
            rejections,
            sum(one.num_bytes for one in accepted),
            num_dropped,
            0,
            raw._replace(lines=[], documents=[]),
        )


class _Conversation(NamedTuple):
    document: Document
    segments: list[chat.Segment]
    key: int
    num_bytes: int


class ChatBatchEncoder:
    def __init__(
        self, selection: Selection, encoder: TextEncoder, eos: str, sequence_length: int
    ) -> None:
        self._selection = selection
        self._encoder = encoder
        self._eos = eos
        self._length = sequence_length

    def _conversations(self, raw: RawBatch, rejections: Rejections) -> Iterator[_Conversation]:
        for document in self._selection.documents(raw):
            turns, reason = chat.turns_of(document)
            segments = chat.segments_of(turns) if reason is None else []
            text = chat.rendered(segments, self._eos)
            reason = reason or self._selection.rejection(document, text)
            if reason is None:
                encoded = text.encode()
                yield _Conversation(document, segments, key_of(document, encoded), len(encoded))
            else:
                rejections.add(document, reason)

    def _tokens(
        self, segments: list[chat.Segment], arrays: Iterable[numpy.ndarray]
    ) -> tuple[numpy.ndarray, numpy.ndarray, bool]:
        """Ids and mask of one conversation, at most T tokens long and, when its last token is no
        eos, one that is not counted after them; and whether it was cut."""
        eos = numpy.array([self._encoder.eos_id], dtype=self._encoder.dtype)
        parts: list[numpy.ndarray] = []
        masks: list[numpy.ndarray] = []
        for segment, ids in zip(segments, arrays, strict=True):
            whole = numpy.concatenate([ids, eos]) if segment.is_counted else ids
            parts.append(whole)
            masks.append(numpy.full(whole.size, segment.is_counted, dtype="u1"))
        ids, mask = numpy.concatenate(parts), numpy.concatenate(masks)
        is_cut = ids.size > self._length
        if is_cut or not segments[-1].is_counted:
            ids = numpy.concatenate([ids[: self._length], eos])
            mask = numpy.concatenate([mask[: self._length], numpy.zeros(1, dtype="u1")])
        return ids, mask, is_cut

    def encode(self, raw: RawBatch) -> EncodedBatch:
        rejections = Rejections()
        conversations = list(self._conversations(raw, rejections))
        texts = [segment.text for one in conversations for segment in one.segments]
        of_segments, num_dropped = self._encoder.encode_and_count(texts)
        arrays = iter(of_segments)
        kept, ids, masks, num_truncated = [], [], [], 0
        for one in conversations:
            its_arrays = [next(arrays) for _ in one.segments]
            its_ids, its_mask, is_cut = self._tokens(one.segments, its_arrays)
            if not its_mask.any():
                rejections.add(one.document, f"no counted token in the first {self._length}")
                continue
            kept.append(one)
            ids.append(its_ids)
            masks.append(its_mask)
            num_truncated += is_cut
        return EncodedBatch(
            _joined(ids, self._encoder.dtype),
            _joined(masks, numpy.dtype("u1")),
            numpy.cumsum([one.size for one in ids], dtype=numpy.int64),
            numpy.array([one.key for one in kept], dtype=numpy.uint64),
            rejections,
            sum(one.num_bytes for one in kept),
            num_dropped,
            num_truncated,
            raw._replace(lines=[], documents=[]),
        )


BatchEncoder = TextBatchEncoder | ChatBatchEncoder
