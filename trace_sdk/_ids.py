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


def new_id() -> str:
    """A new id. Ids made in different milliseconds sort by time."""
    n = (time.time_ns() // 1_000_000) << 80 | _random.getrandbits(80)
    p = _PAIRS
    return (
        p[n >> 120 & 1023]
        + p[n >> 110 & 1023]
        + p[n >> 100 & 1023]
        + p[n >> 90 & 1023]
        + p[n >> 80 & 1023]
        + p[n >> 70 & 1023]
        + p[n >> 60 & 1023]
        + p[n >> 50 & 1023]
        + p[n >> 40 & 1023]
        + p[n >> 30 & 1023]
        + p[n >> 20 & 1023]
        + p[n >> 10 & 1023]
        + p[n & 1023]
    )
