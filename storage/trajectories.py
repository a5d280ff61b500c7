"""Runs in and out of the database, as the values of `storage.trajectory`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, cast

from sqlalchemy import Connection, Select, select, update
from sqlmodel import col

from storage import bulk, codec, tables
from storage.content import ContentReader, ContentWriter
from storage.database import Database
from storage.errors import TraceError
from storage.trajectory import Message, Status, Trajectory, message_from_dict, message_to_dict

_BATCH = 500


@dataclass(frozen=True, slots=True)
class SaveReport:
    """How many runs were new, and how many were there already."""

    added: int
    present: int


def save(db: Database, trajectories: Iterable[Trajectory], source: str) -> SaveReport:
    """Store runs, each under its id: one that is there already is left as it is, except that it gets the tool
    schemas if it had none. ``source`` says who wrote them ("import:openai", "episode").

    A known outcome is stored as the first verdict, given by ``source``. Commits every 500 runs.
    """
    added = present = 0
    for batch in bulk.chunks(trajectories, _BATCH):
        unique = {t.id: t for t in batch}
        with db.connection() as connection:
            there = bulk.existing(connection, tables.Trajectory.id, unique)
            new = [t for t in unique.values() if t.id not in there]
            _insert(connection, new, source)
            _add_missing_tools(connection, [t for t in unique.values() if t.id in there and t.tools])
        added += len(new)
        present += len(batch) - len(new)
    return SaveReport(added, present)


def load(
    db: Database,
    *,
    agent: str | None = None,
    ids: Iterable[str] | None = None,
    model: str | None = None,
    policy: str | None = None,
    session: str | None = None,
    reference: bool | None = None,
    success: bool | EllipsisType | None = ...,
    tag: str | None = None,
    limit: int | None = None,
) -> Iterator[Trajectory]:
    """Runs that match all filters, oldest first. ``success=None`` asks for unknown outcomes; leave it out for all.

    The matching ids are read at once, the runs as they are needed: no transaction stays open between two of
    them. Runs deleted in between are left out.
    """
    table = tables.Trajectory
    query = select(col(table.id)).order_by(col(table.started_at), col(table.id))
    equal = ((table.agent, agent), (table.model, model), (table.policy, policy), (table.session, session))
    for column, value in equal:
        if value is not None:
            query = query.where(col(column) == value)
    if reference is not None:
        query = query.where(col(table.reference) == reference)
    if success is not ...:
        query = query.where(col(table.success).is_(success))
    if tag is not None:
        query = query.join(tables.Tag, col(tables.Tag.trajectory) == table.id).where(col(tables.Tag.tag) == tag)
    wanted = None if ids is None else list(dict.fromkeys(ids))
    with db.engine.connect() as connection:
        found = list(_matching(connection, query, wanted))
    for batch in bulk.chunks(found[:limit], _BATCH):
        with db.engine.connect() as connection:
            yield from _read(connection, batch)


def get(db: Database, id: str) -> Trajectory:
    """One run. Raises TraceError if there is none of this id."""
    for trajectory in load(db, ids=[id]):
        return trajectory
    raise TraceError(f"no trajectory has the id {id}", where=db.location, fix="`trace-sdk trajectories list` has ids.")


def add_outcome(
    db: Database,
    id: str,
    success: bool | None,
    score: float | None = None,
    source: str = "user",
    reason: str | None = None,
    at: float | None = None,
) -> None:
    """Add a verdict to a run's history; the one with the latest time counts. The run may arrive later than it."""
    row = {
        "trajectory": id,
        "success": success,
        "score": score,
        "source": codec.column_text(source) or "unknown",
        "reason": codec.column_text(reason),
        "at": time.time() if at is None else at,
    }
    with db.connection() as connection:
        bulk.insert_rows(connection, tables.Outcome, [row])
        apply_outcomes(connection, [id])


def outcomes(db: Database, id: str) -> list[tables.Outcome]:
    """All verdicts on a run, oldest first; the last one counts."""
    query = select(tables.Outcome).where(col(tables.Outcome.trajectory) == id)
    with db.session() as session:
        return list(session.scalars(query.order_by(col(tables.Outcome.at), col(tables.Outcome.id))))


def apply_outcomes(connection: Connection, ids: Iterable[str]) -> None:
    """Write the verdict that counts into each of the runs that have any."""
    table, history = tables.Trajectory, tables.Outcome
    of_run = col(history.trajectory) == col(table.id)
    latest = (
        select(column).where(of_run).order_by(col(history.at).desc(), col(history.id).desc()).limit(1).scalar_subquery()
        for column in (col(history.success), col(history.score))
    )
    values = dict(zip(("success", "score"), latest, strict=True))
    judged = select(col(history.id)).where(of_run).exists()
    for chunk in bulk.chunks(ids, bulk.PARAMETERS):
        connection.execute(update(table).where(bulk.among(connection, table.id, chunk), judged).values(values))


def ensure_owners(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Agents, sessions and users that trajectory rows refer to."""
    now = time.time()
    for table, column, key in (
        (tables.Agent, "agent", "name"),
        (tables.Session, "session", "id"),
        (tables.User, "user", "id"),
    ):
        names = {row[column] for row in rows if row[column] is not None}
        bulk.insert_missing(connection, table, [{key: n, "created_at": now} for n in sorted(names)])


def _insert(connection: Connection, trajectories: Sequence[Trajectory], source: str) -> None:
    if not trajectories:
        return
    content = ContentWriter(connection)
    rows = [_to_row(t, content, source) for t in trajectories]
    content.flush()
    ensure_owners(connection, rows)
    bulk.insert_rows(connection, tables.Trajectory, rows)
    tags = [{"tag": codec.column_text(tag), "trajectory": t.id} for t in trajectories for tag in dict.fromkeys(t.tags)]
    bulk.insert_missing(connection, tables.Tag, tags)
    waiting = bulk.existing(connection, tables.Outcome.trajectory, [t.id for t in trajectories])
    now = time.time()
    verdicts = [
        {
            "trajectory": t.id,
            "success": t.success,
            "score": t.score,
            "source": source,
            "reason": None,
            "at": t.started_at or now,
        }
        for t in trajectories
        if t.success is not None or t.score is not None
    ]
    bulk.insert_rows(connection, tables.Outcome, verdicts)
    apply_outcomes(connection, waiting)


def _to_row(t: Trajectory, content: ContentWriter, source: str) -> dict[str, Any]:
    verdict = {"success": t.success, "score": t.score, "weight": 1.0}
    return {"id": t.id, "source": source, "reference": t.reference, **verdict, **recorded_columns(t, content)}


def recorded_columns(t: Trajectory, content: ContentWriter) -> dict[str, Any]:
    """The columns that say what the run did, without where it came from and how it was judged."""
    text = codec.column_text
    return {
        "agent": text(t.agent),
        "version": text(t.version),
        "task": text(t.task),
        "session": text(t.session),
        "user": text(t.user),
        "state": t.status,
        "trainable": t.trainable,
        "model": text(t.model),
        "policy": text(t.policy),
        "started_at": t.started_at,
        "tools": content.tools(t.tools),
        "messages": content.messages([message_to_dict(m) for m in t.messages]),
        "message_count": len(t.messages),
        "error": dict(t.error) if t.error is not None else None,
        "details": dict(t.metadata) or None,
    }


def _add_missing_tools(connection: Connection, trajectories: Sequence[Trajectory]) -> None:
    # Importing again with --tools, after it was forgotten, must help.
    table = tables.Trajectory
    without = set()
    for chunk in bulk.chunks([t.id for t in trajectories], 1000):
        query = select(col(table.id)).where(col(table.id).in_(chunk), col(table.tools).is_(None))
        without.update(connection.scalars(query))
    content = ContentWriter(connection)
    named = [(t.id, content.tools(t.tools)) for t in trajectories if t.id in without]
    content.flush()
    for id, name in named:
        connection.execute(update(table).where(col(table.id) == id).values(tools=name))


def _matching(connection: Connection, query: Select[Any], ids: list[str] | None) -> Iterator[str]:
    if ids is None:
        yield from connection.scalars(query)
        return
    for chunk in bulk.chunks(ids, 1000):
        yield from connection.scalars(query.where(col(tables.Trajectory.id).in_(chunk)))


def _read(connection: Connection, ids: Sequence[str]) -> Iterator[Trajectory]:
    table = tables.Trajectory
    rows = {row.id: row for row in connection.execute(select(table).where(col(table.id).in_(ids)))}
    tags: dict[str, list[str]] = {}
    tagged = select(col(tables.Tag.trajectory), col(tables.Tag.tag)).where(col(tables.Tag.trajectory).in_(ids))
    for id, tag in connection.execute(tagged.order_by(col(tables.Tag.tag))):
        tags.setdefault(id, []).append(tag)
    reader = ContentReader(connection)
    messages = reader.messages(row.messages for row in rows.values())
    tools = reader.tools(row.tools for row in rows.values())
    for id in ids:
        row = rows.get(id)
        if row is None:
            continue
        yield Trajectory(
            id=row.id,
            agent=row.agent,
            messages=tuple(as_message(m) for m in messages[row.messages]),
            tools=tools[row.tools],
            task=row.task,
            version=row.version,
            model=row.model,
            policy=row.policy,
            session=row.session,
            user=row.user,
            tags=tuple(tags.get(id, ())),
            status=cast(Status, row.state),
            success=row.success,
            score=row.score,
            reference=row.reference,
            trainable=row.trainable,
            error=row.error,
            started_at=row.started_at,
            metadata=row.details or {},
        )


def as_message(raw: Mapping[str, Any]) -> Message:
    """A stored message as a value. What no chat message can be (a provider's own item) is kept as a user's text."""
    try:
        return message_from_dict(raw)
    except ValueError:
        return Message("user", codec.dumps(raw))
