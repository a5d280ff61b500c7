"""Reads a spool the way the worker does: every line, runs put together by id."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def events(home: Path) -> list[dict[str, Any]]:
    """All events in the order of their segments; a torn last line is left out, any other broken line is a fault."""
    found: list[dict[str, Any]] = []
    # Also what waits there for a collector.
    for segment in sorted((home / "spool").rglob("*.jsonl")):
        *lines, last = segment.read_bytes().split(b"\n")
        found += [json.loads(line) for line in lines if line]
        assert not last or not last.endswith(b"}") or json.loads(last)
    return found


class Stored:
    """One run as the spool holds it."""

    def __init__(self, id: str, own: list[dict[str, Any]]) -> None:
        self.id = id
        self.events = own
        self.start = next((e for e in own if e["type"] == "start"), {})
        ends = [e for e in own if e["type"] == "end"]
        assert len(ends) <= 1, "a run ends once"
        self.end = ends[0] if ends else {}
        latest = {e["call_id"]: e for e in own if e["type"] == "call"}
        self.calls = sorted(latest.values(), key=lambda e: e["seq"])
        self.tools = [e for e in own if e["type"] == "tool"]
        self.outcomes = [e for e in own if e["type"] == "outcome"]
        self.notes = [e["data"] for e in own if e["type"] == "note"]

    @property
    def status(self) -> str:
        return self.end.get("status", "open")

    @property
    def input(self) -> Any:
        return self.start.get("input")

    @property
    def output(self) -> Any:
        return self.end.get("output")

    def threads(self) -> list[set[str]]:
        """What the calls of each message thread begin with."""
        begin: dict[str, set[str]] = {}
        for call in self.calls:
            begin.setdefault(call["thread"], set()).add(call["request"]["messages"][0]["content"])
        return sorted(begin.values(), key=str)

    def reply(self, index: int = -1) -> dict[str, Any]:
        return self.calls[index]["response"]["message"]


def runs(home: Path) -> list[Stored]:
    """Runs in the order in which they began."""
    grouped: dict[str, list[dict[str, Any]]] = {}
    for event in events(home):
        grouped.setdefault(event["id"], []).append(event)
    stored = [Stored(id, own) for id, own in grouped.items()]
    return sorted(stored, key=lambda run: run.start.get("ts", 0.0))


def only_run(home: Path) -> Stored:
    stored = runs(home)
    assert len(stored) == 1, [run.start.get("agent") for run in stored]
    return stored[0]
