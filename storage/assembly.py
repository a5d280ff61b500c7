"""Events of the spool become rows: runs, model calls, tool executions, notes and outcomes.

A run may arrive in pieces, over several readings and several segments. Each piece is applied to what is stored:
the messages of a run are those of its longest thread so far, so a later piece replaces a shorter list. Nothing
here commits; the caller does, together with how far it has read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from sqlalchemy import Connection, delete, select, update
from sqlmodel import col

from storage import bulk, codec, tables
from storage.content import ContentReader, ContentWriter
from storage.trajectories import apply_outcomes, ensure_owners

Event = Mapping[str, Any]
Messages = list[dict[str, Any]]

_KINDS = ("start", "call", "tool", "note", "outcome", "end")
_STATES = ("completed", "raised")


@dataclass(slots=True)
class Applied:
    """What a batch of events came to."""

    runs: int = 0
    ended: int = 0
    outcomes: int = 0
    orphans: int = 0
    """Events of a run whose start never arrived."""
    dropped: int = 0
    """Runs that the recorder sampled out."""


@dataclass(slots=True)
class _Piece:
    """What one batch says of one run, in the order of the events."""

    events: list[Event] = field(default_factory=list)
    row: dict[str, Any] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    new: bool = False

    def of(self, kind: str) -> list[Event]:
        return [e for e in self.events if e["type"] == kind]


def is_event(value: object) -> TypeGuard[Event]:
    """Whether a line of the spool is an event that this version reads."""
    if not isinstance(value, dict):
        return False
    return value.get("type") in _KINDS and isinstance(value.get("id"), str) and is_number(value.get("ts"))


def is_number(value: object) -> TypeGuard[float]:
    """A number, and not a truth value, which Python counts among them."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def apply(connection: Connection, events: Sequence[Event], segment: str) -> Applied:
    """Write what the events say. ``segment`` is where they were read, and where a new run has begun."""
    applied = Applied()
    pieces: dict[str, _Piece] = {}
    outcomes: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "outcome":
            outcomes.append(_outcome_row(event))
        else:
            pieces.setdefault(event["id"], _Piece()).events.append(event)
    stored = _stored(connection, pieces)
    for id in list(pieces):
        piece = pieces[id]
        if id in stored:
            piece.row = stored[id]
        elif starts := piece.of("start"):
            piece.row, piece.tags, piece.new = _started_row(starts[0], segment), _tags(starts[0]), True
        else:
            applied.orphans += len(piece.events)
            del pieces[id]
            continue
        if _end(piece):
            applied.ended += 1
    out = {id for id, piece in pieces.items() if piece.row["weight"] == 0}
    applied.dropped = len(out)
    applied.runs = sum(piece.new for piece in pieces.values()) - len(out & {i for i, p in pieces.items() if p.new})
    _delete(connection, [id for id in out if not pieces[id].new])
    _write(connection, {id: piece for id, piece in pieces.items() if id not in out})
    kept = [row for row in outcomes if row["trajectory"] not in out]
    bulk.insert_rows(connection, tables.Outcome, kept)
    applied.outcomes = len(kept)
    # New runs too: their verdict may have been waiting for them.
    apply_outcomes(connection, {row["trajectory"] for row in kept} | {id for id, p in pieces.items() if p.new})
    return applied


def abort(connection: Connection, segment: str) -> int:
    """Mark the runs that began in a dead writer's segment and have no end. Returns how many."""
    table = tables.Trajectory
    running = update(table).where(col(table.segment) == segment, col(table.state) == "running")
    return connection.execute(running.values(state="aborted", segment=None)).rowcount


def _write(connection: Connection, pieces: Mapping[str, _Piece]) -> None:
    content = ContentWriter(connection)
    calls: list[dict[str, Any]] = []
    side: list[dict[str, Any]] = []
    before = _messages_to_complete(connection, pieces)
    for id, piece in pieces.items():
        calls += _apply_calls(piece, content, before.get(id, []))
        side += [_side_row(e) for e in piece.events if e["type"] in ("tool", "note")]
    content.flush()
    rows = [piece.row for piece in pieces.values()]
    ensure_owners(connection, rows)
    bulk.insert_rows(connection, tables.Trajectory, [p.row for p in pieces.values() if p.new])
    for piece in pieces.values():
        if not piece.new:
            values = {k: v for k, v in piece.row.items() if k != "id"}
            connection.execute(
                update(tables.Trajectory).where(col(tables.Trajectory.id) == piece.row["id"]).values(values)
            )
    tags = [{"tag": tag, "trajectory": id} for id, piece in pieces.items() for tag in piece.tags]
    bulk.insert_missing(connection, tables.Tag, tags)
    # A retry has the id of the attempt that failed.
    bulk.insert_or_replace(connection, tables.ModelCall, list({call["id"]: call for call in calls}.values()))
    bulk.insert_rows(connection, tables.RunEvent, side)


def _apply_calls(piece: _Piece, content: ContentWriter, before: Messages) -> list[dict[str, Any]]:
    """Rows of the piece's model calls; the run's messages, tools, model and policy follow from its longest one."""
    calls = piece.of("call")
    lists = [_whole(call) for call in calls]
    longest = max(range(len(calls)), key=lambda i: (_answered(calls[i]), len(lists[i]), i), default=None)
    row = piece.row
    main = before
    if longest is not None and len(lists[longest]) >= row["message_count"]:
        call = calls[longest]
        after = piece.events[piece.events.index(call) :]
        main = lists[longest] + _missing_results(lists[longest], [e for e in after if e["type"] == "tool"])
        tools = _dicts(_mapping(call.get("request")).get("tools"))
        row["tools"] = content.tools(tools) or row["tools"]
        row["model"] = codec.column_text(call.get("model")) or row["model"]
        row["policy"] = _policy(call) or row["policy"]
    elif before:
        main = before + _missing_results(before, piece.of("tool"))
    if main:
        row["messages"], row["message_count"] = content.messages(main), len(main)
    for call in calls:
        for kind in ("prompt_tokens", "completion_tokens"):
            used = _usage(call, kind)
            row[kind] = row[kind] if used is None else (row[kind] or 0) + used
    return [_call_row(call, whole, main, row["messages"], content) for call, whole in zip(calls, lists, strict=True)]


def _call_row(
    call: Event, whole: Messages, main: Messages, main_name: str | None, content: ContentWriter
) -> dict[str, Any]:
    request = _mapping(call.get("request"))
    response = dict(_mapping(call.get("response")))
    asked = len(_dicts(request.get("messages")))
    follows_main = bool(main) and whole[:asked] == main[:asked]
    listed = main if follows_main else whole
    # In its place in the list, the answer needs no second copy.
    if "message" in response and listed[asked : asked + 1] == [response["message"]]:
        del response["message"]
    number = lambda key: call[key] if is_number(call.get(key)) else None  # noqa: E731
    return {
        "id": codec.column_text(call.get("call_id")) or f"{call['id']}-{call.get('seq')}",
        "trajectory": call["id"],
        "seq": int(number("seq") or 0),
        "attempt": int(number("attempt") or 1),
        "thread": codec.column_text(call.get("thread")),
        "started_at": number("started") or call["ts"],
        "latency": number("latency"),
        "provider": codec.column_text(call.get("provider")) or "unknown",
        "url": codec.column_text(call.get("url")),
        "model": codec.column_text(call.get("model")),
        "policy": _policy(call),
        "messages": main_name if follows_main else content.messages(whole),
        "request_count": asked,
        "tools": content.tools(_dicts(request.get("tools"))),
        "params": request.get("params"),
        "response": response or None,
        "prompt_tokens": _usage(call, "prompt_tokens"),
        "completion_tokens": _usage(call, "completion_tokens"),
        "error": call.get("error"),
    }


def _missing_results(messages: Messages, executed: Sequence[Event]) -> Messages:
    """Tool messages for those calls of the last reply that no message answers, from what the tools returned.

    The last tool's result reaches a model only with the next request; a run that ends there would lose it.
    """
    last = next((i for i in range(len(messages) - 1, -1, -1) if messages[i].get("role") == "assistant"), None)
    if last is None or any(m.get("role") != "tool" for m in messages[last + 1 :]):
        return []
    answered = {m.get("tool_call_id") for m in messages[last + 1 :]}
    unused = list(executed)
    results: Messages = []
    for call in _dicts(messages[last].get("tool_calls")):
        name = _mapping(call.get("function")).get("name")
        if call.get("id") in answered:
            continue
        event = next((e for e in unused if e.get("name") == name), None)
        if event is not None:
            unused.remove(event)
            results.append({"role": "tool", "tool_call_id": call.get("id"), "content": _result_text(event)})
    return results


def _result_text(event: Event) -> str:
    error = _mapping(event.get("error"))
    if error:
        return f"error: {error.get('type')}: {error.get('message')}"
    result = event.get("result")
    return result if isinstance(result, str) else codec.dumps(result)


def _messages_to_complete(connection: Connection, pieces: Mapping[str, _Piece]) -> dict[str, Messages]:
    """The stored messages of runs that have got more: new calls may be beginnings of them."""
    names = {
        id: piece.row["messages"]
        for id, piece in pieces.items()
        if not piece.new and piece.row["messages"] and any(e["type"] in ("call", "tool") for e in piece.events)
    }
    lists = ContentReader(connection).messages(names.values())
    return {id: lists[name] for id, name in names.items()}


def _started_row(start: Event, segment: str) -> dict[str, Any]:
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
        "segment": segment,
    }


def _end(piece: _Piece) -> bool:
    ends = piece.of("end")
    row = piece.row
    # An abort was concluded; a real end corrects it. A second end changes nothing.
    if not ends or row["state"] in _STATES:
        return False
    end = ends[0]
    weight = end.get("weight")
    row["state"] = "raised" if end.get("status") == "raised" else "completed"
    row["ended_at"] = float(end["ts"])
    row["error"] = end.get("error")
    row["output"] = end.get("output")
    row["weight"] = float(weight) if isinstance(weight, int | float) else 1.0
    row["segment"] = None
    return True


def _stored(connection: Connection, ids: Mapping[str, _Piece]) -> dict[str, dict[str, Any]]:
    table = tables.Trajectory
    # Only what a piece may change: the verdict, for one, belongs to its history.
    keys = list(_started_row({"id": "", "ts": 0}, ""))
    columns = [col(getattr(table, key)) for key in keys]
    found: dict[str, dict[str, Any]] = {}
    for chunk in bulk.chunks(ids, 1000):
        for row in connection.execute(select(*columns).where(col(table.id).in_(chunk))):
            found[row.id] = dict(row._mapping)
    return found


def _delete(connection: Connection, ids: Sequence[str]) -> None:
    for chunk in bulk.chunks(ids, 1000):
        for column in (tables.Tag.trajectory, tables.ModelCall.trajectory, tables.RunEvent.trajectory):
            connection.execute(delete(column.class_).where(col(column).in_(chunk)))  # type: ignore[attr-defined]
        connection.execute(delete(tables.Outcome).where(col(tables.Outcome.trajectory).in_(chunk)))
        connection.execute(delete(tables.Trajectory).where(col(tables.Trajectory.id).in_(chunk)))


def _outcome_row(event: Event) -> dict[str, Any]:
    success, score = event.get("success"), event.get("score")
    return {
        "trajectory": event["id"],
        "success": success if isinstance(success, bool) else None,
        "score": float(score) if is_number(score) else None,
        "source": codec.column_text(event.get("source")) or "unknown",
        "reason": codec.column_text(event.get("reason")),
        "at": float(event["ts"]),
    }


def _side_row(event: Event) -> dict[str, Any]:
    keep = ("name", "arguments", "result", "error", "latency") if event["type"] == "tool" else ("data",)
    data = {k: event.get(k) for k in keep} if event["type"] == "tool" else event.get("data")
    at = event.get("started") if is_number(event.get("started")) else event["ts"]
    return {"trajectory": event["id"], "kind": event["type"], "at": at, "data": data}


def _whole(call: Event) -> Messages:
    """The request's messages and the answer."""
    messages = _dicts(_mapping(call.get("request")).get("messages"))
    answer = _mapping(call.get("response")).get("message")
    return [*messages, answer] if isinstance(answer, dict) else messages


def _answered(call: Event) -> bool:
    return isinstance(_mapping(call.get("response")).get("message"), dict)


def _policy(call: Event) -> str | None:
    return codec.column_text(_mapping(call.get("response")).get("policy"))


def _usage(call: Event, kind: str) -> int | None:
    used = _mapping(_mapping(call.get("response")).get("usage")).get(kind)
    return int(used) if isinstance(used, int) and not isinstance(used, bool) else None


def _tags(start: Event) -> list[str]:
    tags = start.get("tags")
    return list(dict.fromkeys(codec.column_text(t) or "" for t in tags)) if isinstance(tags, list) else []


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _dicts(value: object) -> Messages:
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []
