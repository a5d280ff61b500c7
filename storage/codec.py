"""JSON as it is stored: compact, and always encodable, whatever a model or a tool has put into a string."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import orjson

# Both are several times faster than `json`, which gets what they refuse, or would write in another way. orjson does
# not read for us: it turns large integers into floats.
_decode = msgspec.json.Decoder().decode
_REFUSED = (msgspec.DecodeError, UnicodeError, RecursionError)
_AS_JSON_DOES = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
# Made once: `json.dumps` with options makes an encoder for every call.
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=str).encode


def dumps(value: Any) -> str:
    """Compact JSON text. NaN and infinities become null; a value that isn't JSON becomes its text."""
    return encoded(value).decode()


def encoded(value: Any) -> bytes:
    """`dumps` in UTF-8."""
    try:
        return orjson.dumps(value, option=_AS_JSON_DOES)
    except TypeError:
        return _slow_dumps(value).encode()


def _slow_dumps(value: Any) -> str:
    try:
        text = _encode(value)
    except ValueError:
        text = _encode(_finite(value))
    try:
        text.encode()
    except UnicodeEncodeError:
        # Half a surrogate pair, as a cut stream leaves it: kept exactly, as an escape.
        return json.dumps(json.loads(text), ensure_ascii=True, separators=(",", ":"))
    return text


def loads(text: str | bytes) -> Any:
    """The inverse of `dumps`."""
    try:
        return _decode(text)
    except _REFUSED:
        return json.loads(text)


def strict_loads(text: str | bytes) -> Any:
    """JSON from outside. Raises ValueError for anything that isn't, NaN and bottomless nesting included."""
    try:
        return _decode(text)
    except _REFUSED:
        return _slow_strict_loads(text)


def _slow_strict_loads(text: str | bytes) -> Any:
    try:
        return json.loads(text, parse_constant=_reject)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def column_text(value: Any) -> str | None:
    """Text for a column that is filtered by: databases take neither NUL nor half a surrogate pair there."""
    if value is None:
        return None
    if isinstance(value, str) and value.isascii() and "\x00" not in value:
        return value
    return str(value).replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def _reject(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value
