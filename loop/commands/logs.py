"""Logs go to stderr, so that what a command prints on stdout can be piped."""

from __future__ import annotations

import logging
import os
import sys

import structlog


def to_stderr() -> None:
    """Human-readable events on stderr; TRACE_LOG sets the level (default warning)."""
    level = logging.getLevelName(os.environ.get("TRACE_LOG", "warning").upper())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level if isinstance(level, int) else logging.WARNING),
        # Resolved at every call: a test or a pager may have replaced sys.stderr.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )
