"""Ids -> text: whole, token by token, and as a stream that shows no half characters.

A token may hold only some bytes of a character; decoders put U+FFFD for what is no whole one. An id
that the tokenizer does not have (a model's vocabulary may be larger) is U+FFFD too.
"""

from collections.abc import Sequence
from itertools import groupby

from cplm_data.errors import ArgumentError
from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"
# An unfinished character lacks at least one of at most four bytes, and no token is empty.
_MAX_UNCERTAIN_CHARACTERS = 3
# A stream that never comes to the end of a character is bytes of no text: it is passed on as it is.
_MAX_PENDING_TOKENS = 64
_MAX_ID = (1 << 32) - 1


class TextDecoder:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known = set(tokenizer.get_vocab(with_added_tokens=True).values())
        self._token_texts: dict[int, str] = {}

    def is_known(self, token_id: int) -> bool:
        if not 0 <= token_id <= _MAX_ID:
            raise ArgumentError(f"expected a token id of 0 or more, found {token_id}")
        return token_id in self._known

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        return "".join(
            self._tokenizer.decode(list(run), skip_special_tokens=skip_special)
            if is_known
            else REPLACEMENT * len(list(run))
            for is_known, run in groupby(ids, self.is_known)
        )

    def token_text(self, token_id: int) -> str:
        """The text a token adds to a text before it, with the space that decoders strip at the
        beginning of a text: what its second occurrence in a row adds to the first."""
        if token_id not in self._token_texts:
            once = self.decode([token_id], skip_special=False)
            twice = self.decode([token_id, token_id], skip_special=False)
            added = twice.removeprefix(once)
            is_prefixed = twice.startswith(once) and added.endswith(once.lstrip())
            self._token_texts[token_id] = added if is_prefixed else once
        return self._token_texts[token_id]


class TextStream:
    """Shows of each token what is certain to stay whatever follows.

    Each step decodes the tokens since the end of a character and, before them, those of the step
    that showed it, since the text of a token may depend on the one before.
    """

    def __init__(self, decoder: TextDecoder, skip_special: bool, preceding: Sequence[int]) -> None:
        self._decoder = decoder
        self._skip_special = skip_special
        self._context = list(preceding)[-_MAX_PENDING_TOKENS:]
        self._pending: list[int] = []
        self._num_shown = 0  # characters of the pending tokens' text

    def _decode(self, ids: list[int]) -> str:
        return self._decoder.decode(ids, self._skip_special)

    def _pending_text(self) -> str:
        context = self._decode(self._context)
        text = self._decode(self._context + self._pending)
        if not text.startswith(context):
            # The context ended in the middle of a character, or of bytes that turned out to be none.
            return self._decode(self._pending)
        return text[len(context) :]

    def step(self, token_id: int) -> str:
        if not self._decoder.is_known(token_id):
            return self.end() + REPLACEMENT
        self._pending.append(token_id)
        text = self._pending_text()
        num_uncertain = min(len(text) - len(text.rstrip(REPLACEMENT)), _MAX_UNCERTAIN_CHARACTERS)
        if len(self._pending) >= _MAX_PENDING_TOKENS:
            num_uncertain = 0
        shown = text[self._num_shown : len(text) - num_uncertain]
        self._num_shown += len(shown)
        if text and num_uncertain == 0:
            self._context, self._pending, self._num_shown = self._pending, [], 0
        return shown

    def end(self) -> str:
        """What was held back; the stream begins anew."""
        rest = self._pending_text()[self._num_shown :]
        self._context, self._pending, self._num_shown = [], [], 0
        return rest
