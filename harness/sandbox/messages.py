"""Strict JSON from a process that nobody trusts: what is not plainly a small JSON document is refused.

Besides the grammar: no NaN or infinity, no key twice, no integer beyond 19 digits, no nesting beyond 64 levels, not
more than 250,000 values. Half surrogate pairs, which could be neither stored nor sent on, become question marks.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

Json = Any

DEEPEST = 64
MOST_VALUES = 250_000
"""Empty lists take thirty times the memory of their text."""
_LONGEST_INTEGER = 20  # with its sign: 64 bits
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def decode(raw: bytes) -> Json:
    """The document in ``raw``. Raises ValueError with the reason."""
    text = raw.decode("utf-8")
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise ValueError(f"nested deeper than {DEEPEST} levels") from None
    # Each value takes a byte and each level a bracket: with few of them there is nothing to count.
    if len(raw) > MOST_VALUES or raw.count(b"[") + raw.count(b"{") >= DEEPEST:
        _bound(value)
    if _SURROGATE.search(text):
        whole = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
        return json.loads(whole)
    return value


def _bound(value: Json) -> None:
    level, depth, count = [value], 0, 0
    while level:
        depth += 1
        count += len(level)
        if depth > DEEPEST:
            raise ValueError(f"nested deeper than {DEEPEST} levels")
        if count > MOST_VALUES:
            raise ValueError(f"more than {MOST_VALUES} values")
        level = [
            child
            for parent in level
            if (kind := type(parent)) is dict or kind is list
            for child in (parent.values() if kind is dict else parent)
        ]


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has one key twice")
    return found


def _integer(text: str) -> int:
    if len(text) > _LONGEST_INTEGER:
        raise ValueError(f"an integer of {len(text)} digits")
    return int(text)


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number beyond all bounds")
    return number


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_number, parse_constant=_constant
)
