"""Lays conversations out in windows, so that none crosses a window's border.

Window j of a shard is its tokens jT to jT + T, the last of which is also the next window's first
(docs/shard-format.md). A conversation that begins at jT + i, 0 <= i < T, has all its targets in
window j when its last token is at most jT + T: n tokens fit when i + n - 1 <= T. What is left of a
window, and of a shard's last one, which training drops unless it is whole, is filled with a padding
document of eos tokens that are no targets.
"""

import numpy

from cplm_data.series import ShardSeries


class ConversationSeries(ShardSeries):
    def __init__(self, *arguments, sequence_length: int, state: dict | None) -> None:
        super().__init__(*arguments, state)
        self._length = sequence_length
        self.padding_tokens: int = state["padding_tokens"] if state else 0
        self.padding_documents: int = state["padding_documents"] if state else 0
        self.trained_tokens: int = state["trained_tokens"] if state else 0
        self._max_windows = max(1, (self._shard_tokens - 1) // sequence_length)

    @property
    def num_windows(self) -> int:
        """Each shard holds one token more than its windows have targets."""
        return (self.token_count - len(self.files)) // self._length

    @property
    def conversation_count(self) -> int:
        return self.document_count - self.padding_documents

    def _pad(self, num_tokens: int) -> None:
        if num_tokens:
            eos = numpy.full(
                num_tokens, self._properties.eos_token_id, dtype=self._properties.dtype
            )
            self._append(eos, numpy.zeros(num_tokens, dtype="u1"))
            self.padding_tokens += num_tokens
            self.padding_documents += 1

    def _make_room(self, num_tokens: int) -> None:
        window, offset = divmod(self._open_tokens, self._length)
        fits = offset + num_tokens - 1 <= self._length
        if window + (0 if fits else 1) >= self._max_windows:
            self.finish()
        elif not fits:
            self._pad(self._length - offset)

    def add(self, ids: numpy.ndarray, mask: numpy.ndarray | None = None) -> None:
        super().add(ids, mask)
        self.trained_tokens += int(mask.sum())

    def _finish_shard(self) -> None:
        """Completes the last window: a shard of k windows holds kT + 1 tokens."""
        self._pad((1 - self._open_tokens) % self._length)
        super()._finish_shard()

    def state(self) -> dict[str, object]:
        return super().state() | {
            "padding_tokens": self.padding_tokens,
            "padding_documents": self.padding_documents,
            "trained_tokens": self.trained_tokens,
        }
