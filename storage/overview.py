"""What commands and pages show of the database: counts, lists and whole runs, as documents ready for JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, select
from sqlmodel import col

from storage import tables, trajectories
from storage.content import ContentReader
from storage.database import Database
from storage.errors import TraceError

_OUTCOMES = {True: "succeeded", False: "failed", None: "unknown"}


def agents(db: Database) -> list[dict[str, Any]]:
    """Each agent with its counts; reference runs are counted apart, as the contrast leaves them out."""
    table = tables.Trajectory
    query = (
        select(col(table.agent), col(table.reference), col(table.success), func.count(), func.max(table.started_at))
        .group_by(col(table.agent), col(table.reference), col(table.success))
        .order_by(col(table.agent))
    )
    found: dict[str, dict[str, Any]] = {}
    with db.engine.connect() as connection:
        for agent, reference, success, count, last in connection.execute(query):
            empty = {"id": agent, "trajectories": 0, "succeeded": 0, "failed": 0, "unknown": 0, "reference": 0}
            row = found.setdefault(agent, {**empty, "last_at": None})
            row["trajectories"] += count
            row["reference" if reference else _OUTCOMES[success]] += count
            row["last_at"] = max(row["last_at"] or 0.0, last) or None
    return list(found.values())


def made_from_runs(db: Database, agent: str | None) -> dict[str, list[str]]:
    """Names of the environments that were induced from an agent's runs (of all agents: None), and of the adapters
    that were trained in them."""
    made, trained = tables.Environment, tables.Adapter
    environments = select(col(made.name)).where(col(made.kind) == "induced").distinct().order_by(col(made.name))
    adapters = (
        select(col(trained.name), col(trained.version))
        .join(made, col(made.id) == col(trained.environment))
        .order_by(col(trained.name), col(trained.version))
    )
    if agent is not None:
        environments, adapters = (query.where(col(made.agent) == agent) for query in (environments, adapters))
    with db.engine.connect() as connection:
        return {
            "environments": list(connection.scalars(environments)),
            "adapters": [f"{name}@{version}" for name, version in connection.execute(adapters)],
        }


def status(db: Database, home: Path) -> dict[str, Any]:
    """The whole of it in one document: what was recorded, found, trained, and is being served."""
    with db.session() as session:
        capabilities = session.scalars(select(tables.Capability).order_by(col(tables.Capability.created_at))).all()
        adapters = session.scalars(select(tables.Adapter).order_by(col(tables.Adapter.created_at))).all()
        policy = session.scalars(
            select(tables.Policy)
            .where(col(tables.Policy.state) == "active")
            .order_by(col(tables.Policy.version).desc())
            .limit(1)
        ).first()
        cycle = session.scalars(select(tables.Cycle).order_by(col(tables.Cycle.started_at).desc()).limit(1)).first()
    return {
        "home": str(home),
        "database": db.location,
        "agents": agents(db),
        "capabilities": [_pick(c, "id", "agent", "name", "state") for c in capabilities],
        "adapters": [
            {"id": a.id, "name": f"{a.name}@{a.version}", "base": a.base, "state": a.state, "created_at": a.created_at}
            for a in adapters
        ],
        "policy": _pick(policy, "id", "version", "base", "adapters", "activated_at") if policy else None,
        "last_cycle": _pick(cycle, "id", "agent", "state", "stage", "started_at", "ended_at") if cycle else None,
        "spool": spool(home),
    }


def spool(home: Path) -> dict[str, int]:
    """Segments that lie in the spool, their bytes, and files of lines that could not be read."""
    sizes: list[int] = []
    for path in (home / "spool").glob("*.jsonl"):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:
            continue
    broken = len(list((home / "spool").glob("*.jsonl.broken")))
    return {"segments": len(sizes), "bytes": sum(sizes), "broken": broken}


def rows(
    db: Database,
    *,
    agent: str | None = None,
    outcome: str | None = None,
    reference: bool | None = None,
    session: str | None = None,
    task: str | None = None,
    limit: int | None = None,
) -> list[dict[str, Any]]:
    """Runs without their messages, newest first. ``outcome`` is "success", "failure" or "unknown"."""
    table = tables.Trajectory
    names = "id agent version task session user model policy source reference trainable success score started_at"
    columns = [col(getattr(table, name)) for name in names.split()]
    query = select(*columns, col(table.state).label("status"), col(table.message_count).label("messages"))
    for column, value in ((table.agent, agent), (table.session, session), (table.task, task)):
        if value is not None:
            query = query.where(col(column) == value)
    if outcome is not None:
        query = query.where(col(table.success).is_({"success": True, "failure": False, "unknown": None}[outcome]))
    if reference is not None:
        query = query.where(col(table.reference) == reference)
    # Imported runs often have no time; their ids keep them in the order of their file.
    query = query.order_by(col(table.started_at).desc(), col(table.id)).limit(limit)
    with db.engine.connect() as connection:
        return [dict(row._mapping) for row in connection.execute(query)]


def whole(db: Database, id: str) -> dict[str, Any]:
    """Everything that is stored of one run. Raises TraceError if there is none of this id."""
    with db.session() as session:
        run = session.get(tables.Trajectory, id)
        if run is None:
            raise TraceError(
                f"no trajectory has the id {id}", where=db.location, fix="`trace-sdk trajectories list` has ids."
            )
        calls = session.scalars(_of(tables.ModelCall, id).order_by(col(tables.ModelCall.seq))).all()
        events = session.scalars(_of(tables.RunEvent, id).order_by(col(tables.RunEvent.at))).all()
        tags = session.scalars(select(col(tables.Tag.tag)).where(col(tables.Tag.trajectory) == id)).all()
        children = session.scalars(select(col(tables.Trajectory.id)).where(col(tables.Trajectory.parent) == id)).all()
        document = _without(run, "state", "messages", "message_count", "tools", "segment", "details")
        reader = ContentReader(session.connection())
        messages = reader.messages([run.messages, *(call.messages for call in calls)])
        tools = reader.tools([run.tools, *(call.tools for call in calls)])
    return {
        **document,
        "status": run.state,
        "tags": sorted(tags),
        "children": sorted(children),
        "metadata": run.details or {},
        "outcomes": [verdict(outcome) for outcome in trajectories.outcomes(db, id)],
        "tools": list(tools[run.tools]),
        "messages": messages[run.messages],
        "calls": [_call(call, messages[call.messages], tools[call.tools]) for call in calls],
        "events": [_pick(event, "kind", "at", "data") for event in events],
    }


def verdict(outcome: tables.Outcome) -> dict[str, Any]:
    """One entry of a run's history of outcomes."""
    return _pick(outcome, "success", "score", "source", "reason", "at")


def _call(call: tables.ModelCall, messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A model call as it went over the wire, put together again."""
    document = _without(call, "trajectory", "messages", "request_count", "tools", "params", "response")
    response = call.response
    if response is not None and "message" not in response and call.request_count < len(messages):
        response = {"message": messages[call.request_count], **response}
    request = {"messages": messages[: call.request_count], "tools": list(tools), "params": call.params}
    return {**document, "request": request, "response": response}


def _of(table: type[tables.ModelCall] | type[tables.RunEvent], id: str) -> Any:
    return select(table).where(col(table.trajectory) == id)


def _pick(row: tables.Row, *names: str) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}


def _without(row: tables.Row, *names: str) -> dict[str, Any]:
    # Not model_dump: it forgets the order of the columns for rows that were loaded.
    return _pick(row, *(name for name in type(row).model_fields if name not in names))


def is_known(connection: Connection, id: str) -> bool:
    """Whether there is a run of this id."""
    return connection.scalar(select(col(tables.Trajectory.id)).where(col(tables.Trajectory.id) == id)) is not None
