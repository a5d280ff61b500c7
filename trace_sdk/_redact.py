"""Redaction, in the writer's thread, before anything touches the disk."""

from __future__ import annotations

import json
from typing import Any

from trace_sdk._config import Redactor
from trace_sdk._snapshot import jsonable

_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False, allow_nan=False).encode


class Redaction:
    def __init__(self, redact: Redactor | None, secrets: tuple[str, ...]) -> None:
        self._redact = redact
        self._secrets = secrets

    def line(self, event: dict[str, Any]) -> bytes:
        return encode(event)


def encode(event: dict[str, Any]) -> bytes:
    """One JSON line. Pure ASCII, so that no reader can split it anywhere else than at its end."""
    try:
        text = _encode(event)
    except (ValueError, TypeError, RecursionError):
        text = _encode(jsonable(event))
    return text.encode("ascii") + b"\n"
