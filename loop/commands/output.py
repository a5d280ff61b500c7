"""How commands print: one JSON document, or text for people."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any


def print_json(document: Any) -> None:
    """One document on stdout. Characters outside ASCII are escaped, so that any terminal or pipe takes it."""
    print(json.dumps(document, indent=2, allow_nan=False))


def moment(at: float | None) -> str:
    """A time in this machine's zone, to the minute; a dash where there is none."""
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M") if at else "–"


def outcome(success: bool | None) -> str:
    """The word for an outcome."""
    return {True: "success", False: "failure", None: "unknown"}[success]


def table(rows: list[list[str]], header: list[str]) -> None:
    """Columns as wide as their content."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def printable(text: str) -> str:
    """Text that any terminal takes: half surrogate pairs and control characters are replaced."""
    safe = text.encode("utf-8", "replace").decode()
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in safe)
