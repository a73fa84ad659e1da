"""Where a run stands: a line that overwrites itself on a terminal, a plain one elsewhere."""

import sys
import time

_TERMINAL_EVERY_S = 0.2
_PLAIN_EVERY_S = 10.0


def format_duration(seconds: float) -> str:
    """3725 -> 1h02m, 75 -> 1m15s, 3.2 -> 3s."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 60}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"


class Progress:
    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._stage = ""
        self._began = self._shown = time.monotonic()
        self._share_before, self._tokens_before = 0.0, 0

    def begin(self, stage: str, share_done: float = 0.0, num_tokens: int = 0) -> None:
        """What was done before does not count for the speed."""
        self.end()
        self._stage = stage
        self._share_before, self._tokens_before = share_done, num_tokens
        self._began = self._shown = time.monotonic()
        self.say(stage)

    def say(self, line: str) -> None:
        print(f"\r\x1b[K{line}" if self._terminal else line, file=sys.stderr, flush=True)

    def update(self, share_done: float, num_tokens: int = 0) -> None:
        now = time.monotonic()
        if now - self._shown < (_TERMINAL_EVERY_S if self._terminal else _PLAIN_EVERY_S):
            return
        self._shown = now
        elapsed = now - self._began
        parts = [f"{self._stage}: {100 * share_done:.1f} %"]
        if num_tokens:
            rate = (num_tokens - self._tokens_before) / elapsed
            parts.append(f"{num_tokens:,} tokens, {rate:,.0f} tokens/s")
        progress = share_done - self._share_before
        if progress > 0:
            parts.append(f"{format_duration(elapsed * (1 - share_done) / progress)} left")
        line = ", ".join(parts)
        print(
            f"\r\x1b[K{line}" if self._terminal else line,
            end="" if self._terminal else "\n",
            file=sys.stderr,
            flush=True,
        )

    def end(self) -> None:
        """Clears the line on a terminal."""
        if self._terminal and self._stage:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        self._stage = ""
