"""Names of rows: 26 characters that sort by time, or, for imported records, by their place in the file."""

from __future__ import annotations

import hashlib
import os
import time

# Crockford's base 32: no I, L, O or U, so that an id read aloud or retyped stays itself.
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def new_id() -> str:
    """A fresh id: 48 bits of milliseconds since the epoch, then 80 random bits."""
    return encode(time.time_ns() // 1_000_000, int.from_bytes(os.urandom(10)))


def stable_id(position: int, *parts: str | bytes) -> str:
    """The id of a record that may be imported again: its place in the file, then 80 bits of its content's hash."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(len(raw).to_bytes(8))
        digest.update(raw)
    return encode(position, int.from_bytes(digest.digest()[:10]))


def encode(high: int, low: int) -> str:
    """48 bits and 80 bits as 26 characters of base 32."""
    value = ((high & ((1 << 48) - 1)) << 80) | (low & ((1 << 80) - 1))
    return "".join(_ALPHABET[(value >> shift) & 31] for shift in range(125, -1, -5))
