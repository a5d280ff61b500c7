"""Progress of long work: one moving line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time


class Progress:
    """Says what happens, with minutes since the start. ``step`` is called often and prints rarely."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._terminal = sys.stderr.isatty()
        self._moving = False
        self._last: tuple[str, int] = ("", -1)

    def say(self, text: str) -> None:
        """A line that stays."""
        self._end_moving()
        print(f"[{self._clock()}] {text}", file=sys.stderr, flush=True)

    def step(self, what: str, done: int, total: int, detail: str = "") -> None:
        """``done`` of ``total``: every change on a terminal, every quarter elsewhere."""
        line = f"{what}: {done}/{total}{', ' + detail if detail else ''}"
        if self._terminal:
            print(f"\r\x1b[2K[{self._clock()}] {line}", end="", file=sys.stderr, flush=True)
            self._moving = True
            if done >= total:
                self._end_moving()
            return
        quarter = done * 4 // max(total, 1)
        if (what, quarter) != self._last:
            self._last = (what, quarter)
            print(f"[{self._clock()}] {line}", file=sys.stderr, flush=True)

    def _clock(self) -> str:
        seconds = int(time.monotonic() - self._began)
        return f"{seconds // 60:02d}:{seconds % 60:02d}"

    def _end_moving(self) -> None:
        if self._moving:
            print(file=sys.stderr)
            self._moving = False
