"""What the recorder says about itself: on stderr, through structlog, and each thing once."""

from __future__ import annotations

import sys
from typing import Any

_said: set[str] = set()


def reset() -> None:
    """A forked child says its own things once."""
    _said.clear()


def say_once(key: str, event: str, **fields: Any) -> None:
    """Log a warning unless ``key`` was said before in this process. Never raises."""
    if key in _said:
        return
    _said.add(key)
    say(event, **fields)


def say(event: str, **fields: Any) -> None:
    """Log a warning on stderr: the agent's stdout may be a protocol of its own."""
    try:
        import structlog

        if structlog.is_configured():
            structlog.get_logger("trace_sdk").warning(event, **fields)
            return
        logger = structlog.wrap_logger(
            structlog.PrintLogger(sys.stderr),
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso"),
                structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"]),
            ],
        )
        logger.warning(event, **fields)
    except Exception:
        try:
            print(f"trace_sdk: {event} {fields}", file=sys.stderr)
        except Exception:
            return
