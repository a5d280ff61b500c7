"""Deleting runs, with everything that says something about them and nothing else.

SQLite otherwise leaves deleted text readable in its file until the space is used again: here it is overwritten, and
the write-ahead log is emptied.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, select, update
from sqlmodel import col

from storage import bulk, tables
from storage.database import Database

_CHUNK = 500


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many of what are gone. ``running`` runs matched and stay: their writer is alive and would go on."""

    trajectories: int
    message_lists: int
    tool_sets: int
    running: int


def matching(
    db: Database,
    *,
    ids: Collection[str] = (),
    session: str | None = None,
    user: str | None = None,
    agent: str | None = None,
    before: float | None = None,
) -> tuple[list[str], int]:
    """Ids of the runs that match *all* conditions given, with the runs that they started; and how many still run.

    ``before``: only runs that are known to have begun before it (seconds since the epoch). Without any condition
    nothing matches.
    """
    table = tables.Trajectory
    conditions: list[Any] = []
    for column, value in ((table.session, session), (table.user, user), (table.agent, agent)):
        if value is not None:
            conditions.append(col(column) == value)
    if before is not None:
        # 0 is an import that did not say when: unknown is not old.
        conditions += [col(table.started_at) > 0, col(table.started_at) < before]
    if not conditions and not ids:
        return [], 0
    found: dict[str, str] = {}
    with db.engine.connect() as connection:
        for chunk in bulk.chunks(ids, _CHUNK) if ids else [None]:
            query = select(col(table.id), col(table.state)).where(*conditions)
            if chunk is not None:
                query = query.where(col(table.id).in_(chunk))
            found.update((id, state) for id, state in connection.execute(query))
        level = list(found)
        while level:
            fresh: dict[str, str] = {}
            for chunk in bulk.chunks(level, _CHUNK):
                query = select(col(table.id), col(table.state)).where(col(table.parent).in_(chunk))
                fresh.update((id, state) for id, state in connection.execute(query) if id not in found)
            found.update(fresh)
            level = list(fresh)
    return [id for id, state in found.items() if state != "running"], sum(s == "running" for s in found.values())


def prune(db: Database, ids: Iterable[str], *, running: int = 0) -> Pruned:
    """Delete runs with their calls, events, tags, verdicts and labels, and content that no other run shares.

    Numbers that were computed with them stay (analyses, evaluations): they are history, and hold no text of a run.
    """
    lists: set[str] = set()
    sets: set[str] = set()
    gone = 0
    on_sqlite = db.engine.dialect.name == "sqlite"
    with db.transaction() as opened:
        connection = opened.connection()
        if on_sqlite:
            connection.exec_driver_sql("PRAGMA secure_delete = ON")
        for chunk in bulk.chunks(ids, _CHUNK):
            for table in (tables.Trajectory, tables.ModelCall):
                key = col(table.id) if table is tables.Trajectory else col(tables.ModelCall.trajectory)
                query = select(col(table.messages), col(table.tools)).where(key.in_(chunk))
                for messages, tools in connection.execute(query):
                    lists.update([messages] if messages else [])
                    sets.update([tools] if tools else [])
            for table in (tables.Tag, tables.ModelCall, tables.RunEvent, tables.Outcome, tables.Label):
                connection.execute(delete(table).where(col(table.trajectory).in_(chunk)))
            episodes = tables.EvaluationEpisode
            connection.execute(
                update(episodes).where(col(episodes.trajectory).in_(chunk)).values(trajectory=None, detail=None)
            )
            gone += connection.execute(delete(tables.Trajectory).where(col(tables.Trajectory.id).in_(chunk))).rowcount
        removed_lists = _unshared_lists(connection, lists)
        removed_sets = _unshared(connection, tables.ToolSet, sets, _tool_set_users())
        _nobodys(connection, tables.Session, tables.Trajectory.session)
        _nobodys(connection, tables.User, tables.Trajectory.user)
    if on_sqlite:
        # The write-ahead log still has the old pages. Past SQLAlchemy: it may not stand in a transaction.
        raw = db.engine.raw_connection()
        try:
            raw.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            raw.close()
    return Pruned(gone, removed_lists, removed_sets, running)


def _unshared_lists(connection: Connection, names: set[str]) -> int:
    """Delete message lists that no run, call or longer list needs; then look at what they began with."""
    users = [tables.Trajectory.messages, tables.ModelCall.messages, tables.MessageList.parent]
    removed = 0
    while names:
        parents: set[str] = set()
        for chunk in bulk.chunks(names, _CHUNK):
            query = select(col(tables.MessageList.parent)).where(col(tables.MessageList.sha256).in_(chunk))
            parents.update(parent for parent in connection.scalars(query) if parent)
        here = _unshared(connection, tables.MessageList, names, users)
        removed += here
        # Nothing new can have become free where nothing was deleted.
        names = parents if here else set()
    return removed


def _unshared(connection: Connection, table: Any, names: set[str], users: list[Any]) -> int:
    free = set(names)
    for user in users:
        free -= bulk.existing(connection, col(user), free)
    for chunk in bulk.chunks(free, _CHUNK):
        connection.execute(delete(table).where(col(table.sha256).in_(chunk)))
    return len(free)


def _tool_set_users() -> list[Any]:
    return [tables.Trajectory.tools, tables.ModelCall.tools, tables.Environment.tools]


def _nobodys(connection: Connection, table: Any, used: Any) -> None:
    """Delete sessions or users that have no runs left."""
    connection.execute(delete(table).where(~select(col(used)).where(col(used) == col(table.id)).exists()))
