"""Sortable ids: 26 characters, the first ten the time in milliseconds, the rest random (Crockford base 32)."""

from __future__ import annotations

import os
import random
import time
from typing import Any

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
# Ten bits at a time, and what does not change is kept: making one takes about half a microsecond.
_PAIRS = tuple(a + b for a in _ALPHABET for b in _ALPHABET)
_random = random.Random()
_last: list[Any] = [0, ""]
_own: list[str] = []


def reseed() -> None:
    """At the start, and in a forked child, which must not repeat its parent's ids."""
    _random.seed(os.urandom(16))
    _own[:] = ["".join(_random.choice(_PAIRS) for _ in range(4))]


reseed()


def new_id() -> str:
    """A new id: the time, eight characters of this process, eight of this id. Sorts by time, to the millisecond."""
    p = _PAIRS
    ms = time.time_ns() // 1_000_000
    known, head = _last
    if ms != known:
        head = p[ms >> 40] + p[ms >> 30 & 1023] + p[ms >> 20 & 1023] + p[ms >> 10 & 1023] + p[ms & 1023]
        _last[:] = [ms, head]  # one assignment: another thread sees the old pair or the new one
    n = _random.getrandbits(40)
    return f"{head}{_own[0]}{p[n >> 30]}{p[n >> 20 & 1023]}{p[n >> 10 & 1023]}{p[n & 1023]}"
