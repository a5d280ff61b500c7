"""What was read of the spool becomes rows: runs, model calls, tool executions, notes and outcomes.

A run may arrive in pieces, over several readings and several segments. Each piece is applied to what is stored:
the messages of a run are those of its longest thread so far, so a later piece replaces a shorter list. Nothing
here commits; the caller does, together with how far it has read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, delete, select, update
from sqlmodel import col

from storage import bulk, codec, tables
from storage.content import ContentReader, ContentWriter
from storage.reading import Call, Event, Piece, Reading, Row, is_number, missing_results, started_row
from storage.texts import Texts
from storage.trajectories import apply_outcomes, ensure_owners

_STATES = ("completed", "raised")


@dataclass(slots=True)
class Applied:
    """What a reading came to."""

    runs: int = 0
    ended: int = 0
    outcomes: int = 0
    orphans: int = 0
    """Events of a run whose start never arrived."""
    dropped: int = 0
    """Runs that the recorder sampled out."""


@dataclass(slots=True)
class _Run:
    """A run's row with a piece applied to it."""

    row: Row
    piece: Piece
    new: bool


def apply(connection: Connection, reading: Reading, segment: str) -> Applied:
    """Write what was read. ``segment`` is where, and where a new run has begun."""
    applied = Applied()
    runs: dict[str, _Run] = {}
    stored = _stored(connection, reading.pieces)
    for id, piece in reading.pieces.items():
        if id in stored:
            runs[id] = _Run(stored[id], piece, False)
        elif piece.start is not None:
            runs[id] = _Run({**piece.start, "segment": segment}, piece, True)
        else:
            applied.orphans += piece.events
            continue
        if piece.end is not None and _end(runs[id].row, piece.end):
            applied.ended += 1
    out = {id for id, run in runs.items() if run.row["weight"] == 0}
    applied.dropped = len(out)
    _delete(connection, [id for id in out if not runs[id].new])
    kept = {id: run for id, run in runs.items() if id not in out}
    applied.runs = sum(run.new for run in kept.values())
    verdicts = [row for row in reading.outcomes if row["trajectory"] not in out]
    unsettled = _judge(connection, kept, verdicts)
    _write(connection, kept, reading.tool_sets)
    bulk.insert_rows(connection, tables.Outcome, verdicts)
    applied.outcomes = len(verdicts)
    apply_outcomes(connection, unsettled)
    return applied


def _judge(connection: Connection, runs: Mapping[str, _Run], verdicts: Sequence[Row]) -> set[str]:
    """Put the verdict that counts into the rows of new runs, and return the runs whose history has to be asked: those
    that are stored already, and those that verdicts have been waiting for."""
    new = {id for id, run in runs.items() if run.new}
    waited_for = bulk.existing(connection, tables.Outcome.trajectory, new)
    for id in new:
        runs[id].row.update(success=None, score=None)
    # Of equally late ones the last.
    for verdict in sorted(verdicts, key=lambda row: row["at"]):
        if verdict["trajectory"] in new:
            runs[verdict["trajectory"]].row.update(success=verdict["success"], score=verdict["score"])
    return waited_for | {row["trajectory"] for row in verdicts} - new


def abort(connection: Connection, segment: str) -> int:
    """Mark the runs that began in a dead writer's segment and have no end. Returns how many."""
    table = tables.Trajectory
    running = update(table).where(col(table.segment) == segment, col(table.state) == "running")
    return connection.execute(running.values(state="aborted", segment=None)).rowcount


def _write(connection: Connection, runs: Mapping[str, _Run], tool_sets: Mapping[str, str]) -> None:
    content = ContentWriter(connection)
    content.add_tools(tool_sets)
    calls: list[Row] = []
    side: list[Row] = []
    before = _messages_to_complete(connection, runs)
    for id, run in runs.items():
        calls += _apply_calls(run, content, before.get(id))
        side += run.piece.side
    content.flush()
    ensure_owners(connection, [run.row for run in runs.values()])
    bulk.insert_rows(connection, tables.Trajectory, [run.row for run in runs.values() if run.new])
    for run in runs.values():
        if not run.new:
            values = {k: v for k, v in run.row.items() if k != "id"}
            connection.execute(
                update(tables.Trajectory).where(col(tables.Trajectory.id) == run.row["id"]).values(values)
            )
    tags = [{"tag": tag, "trajectory": id} for id, run in runs.items() if run.new for tag in run.piece.tags]
    bulk.insert_missing(connection, tables.Tag, tags)
    # A retry has the id of the attempt that failed.
    bulk.insert_or_replace(connection, tables.ModelCall, list({call["id"]: call for call in calls}.values()))
    bulk.insert_rows(connection, tables.RunEvent, side)


def _apply_calls(run: _Run, content: ContentWriter, before: Texts | None) -> list[Row]:
    """Rows of the piece's model calls; the run's messages, tools, model and policy follow from its longest one."""
    row, piece = run.row, run.piece
    main = before
    if piece.longest is not None and len(piece.longest.whole) >= row["message_count"]:
        main = piece.main
        for column in ("tools", "model", "policy"):
            row[column] = piece.longest.row[column] or row[column]
    elif before is not None:
        main = before.plus(missing_results(before, piece.executed))
    if main:
        row["messages"], row["message_count"] = content.texts(main), len(main)
    for call in piece.calls:
        for kind in ("prompt_tokens", "completion_tokens"):
            used = call.row[kind]
            row[kind] = row[kind] if used is None else (row[kind] or 0) + used
    return [_call_row(call, main, content) for call in piece.calls]


def _call_row(call: Call, main: Texts | None, content: ContentWriter) -> Row:
    asked = call.asked
    listed = main if main and call.whole.begins_like(main, asked) else call.whole
    row = {**call.row, "messages": content.texts(listed)}
    if call.answered and not call.whole.begins_like(listed, asked + 1):
        # Another answer has its place in the list.
        row["response"] = {**(row["response"] or {}), "message": codec.loads(call.whole.texts[asked])}
    return row


def _messages_to_complete(connection: Connection, runs: Mapping[str, _Run]) -> dict[str, Texts]:
    """The stored messages of runs that have got more: new calls may be beginnings of them."""
    names = {
        id: run.row["messages"]
        for id, run in runs.items()
        if not run.new and run.row["messages"] and (run.piece.calls or run.piece.executed)
    }
    lists = ContentReader(connection).messages(names.values())
    return {id: Texts.of(lists[name]) for id, name in names.items()}


def _end(row: Row, end: Event) -> bool:
    # An abort was concluded; a real end corrects it. A second end changes nothing.
    if row["state"] in _STATES:
        return False
    weight = end.get("weight")
    row["state"] = "raised" if end.get("status") == "raised" else "completed"
    row["ended_at"] = float(end["ts"])
    row["error"] = end.get("error")
    row["output"] = end.get("output")
    row["weight"] = float(weight) if is_number(weight) else 1.0
    row["segment"] = None
    return True


def _stored(connection: Connection, ids: Iterable[str]) -> dict[str, Row]:
    table = tables.Trajectory
    # What a piece may change, no more: the verdict, for one, belongs to its history.
    columns = [col(getattr(table, name)) for name in started_row({"id": "", "ts": 0})]
    found: dict[str, Row] = {}
    for chunk in bulk.chunks(ids, bulk.PARAMETERS):
        for row in connection.execute(select(*columns).where(bulk.among(connection, table.id, chunk))):
            found[row.id] = dict(row._mapping)
    return found


def _delete(connection: Connection, ids: Sequence[str]) -> None:
    for chunk in bulk.chunks(ids, 1000):
        for column in (tables.Tag.trajectory, tables.ModelCall.trajectory, tables.RunEvent.trajectory):
            connection.execute(delete(column.class_).where(col(column).in_(chunk)))  # type: ignore[attr-defined]
        connection.execute(delete(tables.Outcome).where(col(tables.Outcome.trajectory).in_(chunk)))
        connection.execute(delete(tables.Trajectory).where(col(tables.Trajectory.id).in_(chunk)))
