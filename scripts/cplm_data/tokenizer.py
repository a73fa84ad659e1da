"""The tokenizer: loaded from a tokenizer.json or trained here, and texts -> token ids.

Text that spells a special token stays text: special tokens are never matched in it, and ids of
special tokens that come out all the same (a tokenizer whose unknown token is its eos) are dropped.
"""

import hashlib
import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from cplm_data.errors import ArgumentError, PrepareError, one_line, system_reason

# A document longer than this is encoded in pieces: an encoding takes about a hundred bytes of
# memory a token, so one of a gigabyte would not fit.
_PIECE_CHARACTERS = 1 << 18
_CHARACTERS_AT_ONCE = 1 << 18
# Where a text may be cut without changing its tokens, if the tokenizer passes the probes.
_CUTS = (re.compile(r"(?<=\S\n)(?=[^\W\d_])"), re.compile(r"(?<=\w)(?= [^\W\d_])"))
_PROBES = (
    "First line.\nsecond\n\nThird; 17 x\n",
    "two words, and more of them: a b\tc d",
    "né 日本 a\r\nb  c d",
)


def _train(texts: Iterator[str], vocab_size: int, eos: str) -> Tokenizer:
    """Byte-level BPE over single digits and GPT-2's words; the eos token has id 0."""
    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[eos],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def train_tokenizer(texts: Iterator[str], vocab_size: int, eos: str) -> bytes:
    """The tokenizer.json of a vocabulary of exactly vocab_size tokens."""
    tokenizer = _train(texts, vocab_size, eos)
    found = tokenizer.get_vocab_size()
    if found != vocab_size:
        raise ArgumentError(
            f"--train-tokenizer {vocab_size}: this text only yields {found} tokens; "
            f"give more text or --train-tokenizer {found}"
        )
    return (tokenizer.to_str(pretty=True) + "\n").encode()


def read_tokenizer_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ArgumentError(f"--tokenizer {path}: cannot be read: {system_reason(error)}") from None


class TextEncoder:
    """Texts -> ids without special tokens."""

    def __init__(
        self, json_bytes: bytes, eos: str, name: str, *, requires_eos: bool = True
    ) -> None:
        """Without requires_eos, eos_id is None when the tokenizer has no such token."""
        self.json_bytes = json_bytes
        self.sha256 = hashlib.sha256(json_bytes).hexdigest()
        try:
            description = json.loads(json_bytes)
            self._tokenizer = Tokenizer.from_str(json.dumps(_with_special_eos(description, eos)))
        except Exception as error:  # the library raises bare Exception
            raise ArgumentError(
                f"{name}: expected a tokenizer.json of the tokenizers library: {one_line(error)}"
            ) from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        if getattr(self._tokenizer.model, "dropout", None):
            self._tokenizer.model.dropout = None
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise ArgumentError(f"{name}: its vocabulary is empty")
        if requires_eos and eos not in vocabulary:
            raise ArgumentError(
                f"{name}: the tokenizer has no token {eos!r}; name its end of document by --eos"
            )
        self.eos_id: int | None = vocabulary.get(eos)
        self.vocab_size: int = max(vocabulary.values()) + 1
        self.dtype = numpy.dtype("<u2" if self.vocab_size <= 1 << 16 else "<u4")
        self._is_forbidden = numpy.zeros(self.vocab_size, dtype=bool)
        self._is_forbidden[self._ids_never_in_text(description["model"], vocabulary)] = True
        self._is_cancelled = False
        self._cuts = [cut for cut in _CUTS if self._cuts_cleanly(cut)]

    def _ids_never_in_text(self, model: dict, vocabulary: dict[str, int]) -> list[int]:
        """Special tokens, but not the one for unknown text unless that is eos too."""
        added = self._tokenizer.get_added_tokens_decoder()
        special = {token_id for token_id, token in added.items() if token.special}
        unknown = model.get("unk_id", vocabulary.get(model.get("unk_token") or ""))
        return sorted(special - {unknown} | ({self.eos_id} - {None}))

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def encode_with_special_tokens(self, text: str) -> list[int]:
        """The ids of one text in which what spells a special token is that token."""
        self._tokenizer.encode_special_tokens = False
        try:
            return self._ids(text)
        finally:
            self._tokenizer.encode_special_tokens = True

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def _cuts_cleanly(self, cut: re.Pattern[str]) -> bool:
        for probe in _PROBES:
            places = [match.start() for match in cut.finditer(probe)]
            if any(
                self._ids(probe[:at]) + self._ids(probe[at:]) != self._ids(probe) for at in places
            ):
                return False
        return True

    def _pieces(self, text: str) -> list[str]:
        pieces: list[str] = []
        begin = 0
        while len(text) - begin > _PIECE_CHARACTERS:
            found = (cut.search(text, begin + _PIECE_CHARACTERS) for cut in self._cuts)
            ends = [match.start() for match in found if match]
            if not ends:
                break
            pieces.append(text[begin : min(ends)])
            begin = min(ends)
        pieces.append(text[begin:])
        return pieces

    def encode(self, texts: list[str]) -> list[numpy.ndarray]:
        """One array of ids a text, in the dtype of the shards, without eos."""
        return self.encode_and_count(texts)[0]

    def encode_and_count(self, texts: list[str]) -> tuple[list[numpy.ndarray], int]:
        """Also how many ids of special tokens were dropped."""
        pieces = [self._pieces(text) for text in texts]
        flat = [piece for of_text in pieces for piece in of_text]
        with_special = self._encode_pieces(flat)
        allowed = [self._allowed(ids) for ids in with_special]
        num_dropped = sum(ids.size for ids in with_special) - sum(ids.size for ids in allowed)
        arrays = iter(allowed)
        return [
            (
                next(arrays)
                if len(of_text) == 1
                else numpy.concatenate([next(arrays) for _ in of_text])
            )
            for of_text in pieces
        ], num_dropped

    def cancel(self) -> None:
        """What other threads are encoding ends with an error, a long document too."""
        self._is_cancelled = True

    def _encode_pieces(self, pieces: list[str]) -> list[numpy.ndarray]:
        arrays: list[numpy.ndarray] = []
        begin = num_characters = 0
        for end, piece in enumerate(pieces, start=1):
            num_characters += len(piece)
            if num_characters < _CHARACTERS_AT_ONCE and end < len(pieces):
                continue
            if self._is_cancelled:
                raise PrepareError("encoding was cancelled")
            encodings = self._tokenizer.encode_batch_fast(
                pieces[begin:end], add_special_tokens=False
            )
            arrays += [_array(one.ids, self.dtype) for one in encodings]
            begin, num_characters = end, 0
        return arrays

    def _allowed(self, ids: numpy.ndarray) -> numpy.ndarray:
        forbidden = self._is_forbidden[ids]
        return ids[~forbidden] if forbidden.any() else ids


def _array(ids: list[int], dtype: numpy.dtype) -> numpy.ndarray:
    """struct takes a list into bytes three times as fast as numpy does."""
    return numpy.frombuffer(struct.pack(f"<{len(ids)}{dtype.char}", *ids), dtype=dtype)


def _with_special_eos(description: object, eos: str) -> object:
    """The same tokenizer with its eos marked special, so that text which spells it stays text."""
    if not isinstance(description, dict) or not isinstance(description.get("model"), dict):
        raise ValueError("not an object with a key 'model'")
    added = [
        token | {"special": True} if token.get("content") == eos else token
        for token in description.get("added_tokens") or []
    ]
    return description | {"added_tokens": added}
