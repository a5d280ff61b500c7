"""Bytes of the spool, read: events grouped by run, and each message encoded once.

Nothing here touches a database, so it can be done by a process of its own (`storage.read_ahead`) while another writes.
What a piece of a run comes to depends on what is stored of that run; `storage.assembly` decides that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, TypeGuard

from storage import codec
from storage.texts import Messages, Texts, tools_text

Event = Mapping[str, Any]
Row = dict[str, Any]

_LARGEST = 2**63
_LARGEST_COUNT = 2**31
_KINDS = ("start", "call", "tool", "note", "outcome", "end")


@dataclass(slots=True)
class Call:
    """One request to a model and its answer. ``row`` lacks what depends on the run's other messages."""

    row: Row
    whole: Texts
    """The request's messages and the answer."""
    asked: int
    """How many of them are the request's."""
    answered: bool


@dataclass(slots=True)
class Piece:
    """What one reading says of one run."""

    events: int = 0
    start: Row | None = None
    """The run's row as it begins."""
    tags: list[str] = field(default_factory=list)
    end: Event | None = None
    calls: list[Call] = field(default_factory=list)
    longest: Call | None = None
    main: Texts | None = None
    """Messages of the longest call, and the results that the tools returned to it."""
    side: list[Row] = field(default_factory=list)
    """Rows of tool executions and notes."""

    @property
    def executed(self) -> list[Row]:
        """What its tools were given and returned."""
        return [row["data"] for row in self.side if row["kind"] == "tool"]


@dataclass(slots=True)
class Reading:
    """What ``size`` bytes say, and how many of their lines are events and how many are not."""

    size: int
    events: int = 0
    broken: int = 0
    pieces: dict[str, Piece] = field(default_factory=dict)
    outcomes: list[Row] = field(default_factory=list)
    tool_sets: dict[str, str] = field(default_factory=dict)


def whole_lines(file: BinaryIO, position: int, size: int, torn: bool = False) -> tuple[bytes, bool]:
    """The whole lines in the next ``size`` bytes, and whether they reach the end. A longer line is read whole. Its
    writer dead, a ``torn`` last line counts as a line."""
    file.seek(position)
    data = file.read(size)
    while True:
        more = file.read(1)
        cut = len(data) if not more and torn else data.rfind(b"\n") + 1
        if cut or not more:
            return data[:cut], not more
        data += more + file.read(size)


def read(data: bytes) -> Reading:
    """Read whole lines of a segment."""
    reading = Reading(len(data))
    runs: dict[str, list[Event]] = {}
    for line in data.split(b"\n"):
        if not line.strip():
            continue
        try:
            event = codec.strict_loads(line)
        except ValueError:
            event = None
        if not is_event(event):
            reading.broken += 1
            continue
        reading.events += 1
        if event["type"] == "outcome":
            reading.outcomes.append(_outcome_row(event))
        else:
            runs.setdefault(event["id"], []).append(event)
    for id, events in runs.items():
        reading.pieces[id] = _piece(events, reading.tool_sets)
    return reading


def is_event(value: object) -> TypeGuard[Event]:
    """Whether a line of the spool is an event that this version reads."""
    if not isinstance(value, dict):
        return False
    id = value.get("id")
    # What no column can hold would keep everything else in its reading out, at every attempt.
    storable = isinstance(id, str) and codec.column_text(id) == id
    return storable and value.get("type") in _KINDS and is_number(value.get("ts"))


def is_number(value: object) -> TypeGuard[float]:
    """A number that a column can hold, and not a truth value, which Python counts among them."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -_LARGEST < value < _LARGEST


def started_row(start: Event) -> Row:
    """The row of a run that has begun."""
    text = codec.column_text
    pid = start.get("pid")
    return {
        "id": start["id"],
        "agent": text(start.get("agent")) or "unknown",
        "version": text(start.get("version")),
        "task": text(start.get("task")),
        "session": text(start.get("session")),
        "user": text(start.get("user")),
        "parent": text(start.get("parent")),
        "root": text(start.get("root")),
        "source": "spool",
        "state": "running",
        "reference": False,
        "trainable": start.get("trainable") is not False,
        "weight": 1.0,
        "model": None,
        "policy": None,
        "started_at": float(start["ts"]),
        "ended_at": None,
        "tools": None,
        "messages": None,
        "message_count": 0,
        "prompt_tokens": None,
        "completion_tokens": None,
        "input": start.get("input"),
        "output": None,
        "error": None,
        "details": {"pid": pid} if pid is not None else None,
        "segment": None,
    }


def missing_results(messages: Texts, executed: Sequence[Mapping[str, Any]]) -> Messages:
    """Tool messages for those calls of the last reply that no message answers, from what the tools returned.

    The last tool's result reaches a model only with the next request; a run that ends there would lose it.
    """
    if not executed:
        return []
    answered: list[Any] = []
    for text in reversed(messages.texts):
        message = codec.loads(text)
        if message.get("role") == "assistant":
            return _results(_dicts(message.get("tool_calls")), answered, list(executed))
        if message.get("role") != "tool":
            break
        answered.append(message.get("tool_call_id"))
    return []


def _results(calls: Messages, answered: list[Any], unused: list[Mapping[str, Any]]) -> list[Row]:
    results: list[Row] = []
    for call in calls:
        name = _mapping(call.get("function")).get("name")
        if call.get("id") in answered:
            continue
        ran = next((e for e in unused if e.get("name") == name), None)
        if ran is not None:
            unused.remove(ran)
            results.append({"role": "tool", "tool_call_id": call.get("id"), "content": _result_text(ran)})
    return results


def _result_text(ran: Mapping[str, Any]) -> str:
    error = _mapping(ran.get("error"))
    if error:
        return f"error: {error.get('type')}: {error.get('message')}"
    result = ran.get("result")
    return result if isinstance(result, str) else codec.dumps(result)


def _piece(events: Sequence[Event], tool_sets: dict[str, str]) -> Piece:
    piece = Piece(len(events))
    after_longest: list[Row] = []
    for event in events:
        kind = event["type"]
        if kind == "start" and piece.start is None:
            piece.start, piece.tags = started_row(event), _tags(event)
        elif kind == "call":
            call = _call(event, tool_sets)
            piece.calls.append(call)
            # Of equally long ones the last.
            if piece.longest is None or _rank(call) >= _rank(piece.longest):
                piece.longest, after_longest = call, []
        elif kind == "end" and piece.end is None:
            piece.end = event
        elif kind in ("tool", "note"):
            row = _side_row(event)
            piece.side.append(row)
            if kind == "tool":
                after_longest.append(row["data"])
    if piece.longest is not None:
        whole = piece.longest.whole
        piece.main = whole.plus(missing_results(whole, after_longest)) if after_longest else whole
    return piece


def _rank(call: Call) -> tuple[bool, int]:
    return call.answered, len(call.whole)


def _call(event: Event, tool_sets: dict[str, str]) -> Call:
    request, response = _mapping(event.get("request")), dict(_mapping(event.get("response")))
    messages = _dicts(request.get("messages"))
    answer = response.get("message")
    answered = isinstance(answer, dict)
    if answered:  # its place is in the list
        del response["message"]
    tools = tools_text(_dicts(request.get("tools")))
    if tools is not None:
        tool_sets.setdefault(*tools)
    usage = _mapping(response.get("usage"))
    text = codec.column_text
    row = {
        "id": text(event.get("call_id")) or f"{event['id']}-{event.get('seq')}",
        "trajectory": event["id"],
        "seq": _count(event.get("seq")) or 0,
        "attempt": _count(event.get("attempt")) or 1,
        "thread": text(event.get("thread")),
        "started_at": _number(event.get("started")) or event["ts"],
        "latency": _number(event.get("latency")),
        "provider": text(event.get("provider")) or "unknown",
        "url": text(event.get("url")),
        "model": text(event.get("model")),
        "policy": text(response.get("policy")),
        "messages": None,
        "request_count": len(messages),
        "tools": tools[0] if tools else None,
        "params": request.get("params"),
        "response": response or None,
        "prompt_tokens": _count(usage.get("prompt_tokens")),
        "completion_tokens": _count(usage.get("completion_tokens")),
        "error": event.get("error"),
    }
    return Call(row, Texts.of([*messages, answer] if answered else messages), len(messages), answered)


def _outcome_row(event: Event) -> Row:
    success, score = event.get("success"), event.get("score")
    return {
        "trajectory": event["id"],
        "success": success if isinstance(success, bool) else None,
        "score": float(score) if is_number(score) else None,
        "source": codec.column_text(event.get("source")) or "unknown",
        "reason": codec.column_text(event.get("reason")),
        "at": float(event["ts"]),
    }


def _side_row(event: Event) -> Row:
    keep = ("name", "arguments", "result", "error", "latency")
    data = {k: event.get(k) for k in keep} if event["type"] == "tool" else event.get("data")
    return {
        "trajectory": event["id"],
        "kind": event["type"],
        "at": _number(event.get("started"), event["ts"]),
        "data": data,
    }


def _tags(start: Event) -> list[str]:
    tags = start.get("tags")
    return list(dict.fromkeys(codec.column_text(t) or "" for t in tags)) if isinstance(tags, list) else []


def _number(value: object, otherwise: float | None = None) -> float | None:
    return value if is_number(value) else otherwise


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < _LARGEST_COUNT else None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _dicts(value: object) -> list[Row]:
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []
