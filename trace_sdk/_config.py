"""Settings of the recorder: from `init`, else from the environment, read once per process."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

Redactor = Callable[[str], str] | Mapping[str, str]
"""Patterns by kind (``{"EMAIL": r"..."}``), or a function that takes a text and returns it redacted. A replacement
of the form ``<KIND>`` is numbered, the same value by the same number, within a tree of runs."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What `init` sets. ``queue_bytes`` bounds what waits in memory for the writer."""

    home: Path
    redact: Redactor | None = None
    sample_successes: float = 1.0
    gateway: str | None = None
    ship_to: str | None = None
    ship_token: str | None = field(default=None, repr=False)
    enabled: bool = True
    queue_bytes: int = 64 * 2**20
    segment_bytes: int = 32 * 2**20
    interval: float = 0.1
    """Seconds that the writer waits to gather events into one write: part of the stated loss window."""
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def spool(self) -> Path:
        """Where segments are written. What goes to a collector lies apart, so that no reader of this home takes it."""
        return self.home / "spool" / "outbox" if self.ship_to else self.home / "spool"


def from_environment(
    home: str | os.PathLike[str] | None = None,
    redact: Redactor | None = None,
    sample_successes: float = 1.0,
    ship_to: str | None = None,
) -> Settings:
    """Settings with the environment's TRACE_HOME, TRACE_GATEWAY, TRACE_SHIP_TO, TRACE_TOKEN and TRACE_DISABLED where
    nothing was given.

    Raises ValueError when sample_successes is not in 0..1, or the gateway or the collector is not an http address.
    """
    if not 0.0 <= sample_successes <= 1.0:
        raise ValueError(f"sample_successes is {sample_successes}, not a fraction between 0 and 1")
    return Settings(
        # Absolute at once: the agent may change its working directory later.
        home=Path(os.path.abspath(home or os.environ.get("TRACE_HOME") or ".trace")),
        redact=redact,
        sample_successes=sample_successes,
        gateway=_address("TRACE_GATEWAY", os.environ.get("TRACE_GATEWAY")),
        ship_to=_address("TRACE_SHIP_TO" if ship_to is None else "ship_to", ship_to or os.environ.get("TRACE_SHIP_TO")),
        ship_token=os.environ.get("TRACE_TOKEN") or None,
        enabled=os.environ.get("TRACE_DISABLED", "").lower() in ("", "0", "false", "no"),
        secrets=_secrets_of_environment(),
    )


def _address(name: str, given: str | None) -> str | None:
    if not given:
        return None
    from urllib.parse import urlsplit  # slow to import, and seldom needed

    parts = urlsplit(given)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{name} is {given!r}, not an http address such as http://127.0.0.1:8811")
    return given


def _secrets_of_environment() -> tuple[str, ...]:
    """Values of variables whose names say that they are secret; long ones only, so no ordinary word is hit."""
    marks = ("API_KEY", "APIKEY", "SECRET", "PASSWORD", "TOKEN", "CREDENTIAL", "PRIVATE_KEY", "ACCESS_KEY")
    found = {v for k, v in os.environ.items() if len(v) >= 12 and any(mark in k.upper() for mark in marks)}
    return tuple(sorted(found, key=len, reverse=True))
