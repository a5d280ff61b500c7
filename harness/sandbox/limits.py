"""What a sandboxed module may use up, and what is said when it fails."""

from __future__ import annotations

from dataclasses import dataclass

from storage.errors import TraceError


class SandboxError(TraceError):
    """A fault of a foreign module: it died, was too slow, said too much, no JSON, or something of a wrong shape."""


@dataclass(frozen=True, slots=True)
class Limits:
    """``seconds`` of wall time for one request, ``load_seconds`` for start and import together.

    ``cpu_seconds`` and ``memory_mb`` (address space) are those of one process, which serves at most ``environments``
    at a time. ``message_bytes`` bounds one answer, ``scratch_mb`` all files together, ``files`` the open descriptors.
    A state of at most ``enclosed_bytes`` comes with the answer that it follows; a longer one is asked for by itself.
    Without containment only the times, the bytes and ``environments`` are enforced.
    """

    seconds: float = 10.0
    load_seconds: float = 30.0
    cpu_seconds: int = 600
    memory_mb: int = 512
    scratch_mb: int = 16
    files: int = 32
    message_bytes: int = 4 << 20
    enclosed_bytes: int = 1 << 18
    environments: int = 64
