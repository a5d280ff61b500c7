"""A cheap copy of a value at the moment it is seen, turned into JSON later and elsewhere.

The agent may change its arguments after the call, so they are copied at once. `marshal` does that in C for
plain data (a 16 KB conversation in a few microseconds); anything else is copied structurally, with objects
that are not data replaced by their `repr`.
"""

from __future__ import annotations

import dataclasses
import marshal
from collections.abc import Mapping
from typing import Any, cast

_MAX_DEPTH = 24
_MAX_REPR = 2000
_ATOMS = (str, int, float, bool, type(None))


class Snapshot:
    """A frozen value: `thaw` gives it back. ``size`` is its weight in bytes, roughly."""

    __slots__ = ("_plain", "_value", "size")

    def __init__(self, value: object) -> None:
        try:
            packed = marshal.dumps(cast(Any, value))
            self._value: object = packed
            self._plain = False
            self.size = len(packed)
        except ValueError:  # not plain data, or nested too deep
            self._value, self.size = _copy(value)
            self._plain = True

    def thaw(self) -> Any:
        """The value as data. What JSON has no form for (bytes, sets, NaN) is left to `jsonable`, when it is written."""
        return self._value if self._plain else marshal.loads(cast(bytes, self._value))


def jsonable(value: object) -> Any:
    """A JSON-safe copy of any value; never raises."""
    return _jsonable(value, 0)


def _copy(value: object) -> tuple[object, int]:
    copied = _jsonable(value, 0)
    return copied, _weigh(copied)


def _weigh(value: object) -> int:
    if isinstance(value, str):
        return 50 + len(value)
    if isinstance(value, dict):
        items = cast(dict[str, object], value)
        return 64 + sum(50 + len(k) + _weigh(v) for k, v in items.items())
    if isinstance(value, list):
        return 56 + sum(_weigh(v) for v in cast(list[object], value))
    return 28


def _jsonable(value: object, depth: int) -> Any:
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return value
    if kind is float:
        number = cast(float, value)
        # JSON has no NaN or infinity: they are kept as text rather than making the line unreadable.
        return number if number - number == 0.0 else repr(number)
    if depth >= _MAX_DEPTH:
        return _describe(value)
    try:
        if isinstance(value, Mapping):
            mapping = cast(Mapping[object, object], value)
            return {k if isinstance(k, str) else str(k): _jsonable(v, depth + 1) for k, v in list(mapping.items())}
        if isinstance(value, list | tuple | set | frozenset):
            return [_jsonable(v, depth + 1) for v in list(cast("list[object]", value))]
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, bool | int | float):
            return value.real if not isinstance(value, float) else _jsonable(float(value), depth)
        if isinstance(value, bytes | bytearray):
            return bytes(value).decode("utf-8", "backslashreplace")
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {f.name: _jsonable(getattr(value, f.name, None), depth + 1) for f in dataclasses.fields(value)}
        dump = getattr(kind, "model_dump", None)  # pydantic, which every model client's types are made of
        if callable(dump) and hasattr(kind, "model_fields"):
            return _jsonable(dump(value), depth + 1)
    except Exception:
        return _describe(cast(object, value))
    return _describe(cast(object, value))


def _describe(value: object) -> str:
    try:
        text = repr(value)
    except Exception as error:
        text = f"<{type(value).__qualname__}: its repr raised {type(error).__name__}>"
    return text if len(text) <= _MAX_REPR else text[:_MAX_REPR] + "…"
