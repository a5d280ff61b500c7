"""Sortable ids: 26 characters, the first ten the time in milliseconds, the rest random (Crockford base 32)."""

from __future__ import annotations

import os
import random
import time

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
# Ten bits at a time: an id is thirteen look-ups, which keeps making one at about a microsecond.
_PAIRS = tuple(a + b for a in _ALPHABET for b in _ALPHABET)
_random = random.Random(os.urandom(16))


def reseed() -> None:
    """A forked child must not repeat its parent's ids."""
    _random.seed(os.urandom(16))


_last: list[object] = [0, ""]


def new_id() -> str:
    """A new id. Ids made in different milliseconds sort by time."""
    p = _PAIRS
    ms = time.time_ns() // 1_000_000
    known, head = _last
    if ms != known:
        head = p[ms >> 40] + p[ms >> 30 & 1023] + p[ms >> 20 & 1023] + p[ms >> 10 & 1023] + p[ms & 1023]
        _last[:] = [ms, head]  # one assignment: another thread sees the old pair or the new one
    # Numbers of forty bits stay small: shifting one of eighty costs three times as much.
    a = _random.getrandbits(40)
    b = _random.getrandbits(40)
    return f"{head}{p[a >> 30]}{p[a >> 20 & 1023]}{p[a >> 10 & 1023]}{p[a & 1023]}" + (
        f"{p[b >> 30]}{p[b >> 20 & 1023]}{p[b >> 10 & 1023]}{p[b & 1023]}"
    )
