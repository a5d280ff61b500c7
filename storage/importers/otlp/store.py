"""Parts of runs into the database: what is new is inserted, what is known grows."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, update
from sqlmodel import col

from storage import bulk, codec, tables, trajectories
from storage.content import ContentWriter
from storage.database import Database
from storage.importers.otlp import parts
from storage.trajectories import SaveReport
from storage.trajectory import Trajectory

_BATCH = 200


def save(
    db: Database, runs: Iterable[Trajectory], source: str = "import:otlp", *, closing: Sequence[Trajectory] = ()
) -> SaveReport:
    """Store runs that `storage.importers.otlp` read, each united with what is stored of the same trace.

    ``closing`` ends runs that are stored already, and adds none. A verdict that comes with a later part is added to
    the run's history. Two writers of the same trace at once can each miss what the other adds: let one process
    receive.
    """
    added = present = 0
    for batch in bulk.chunks(runs, _BATCH):
        united = _united(batch)
        known = _stored(db, united)
        report = trajectories.save(db, [run for id, run in united.items() if id not in known], source)
        _grow(db, [(known[id], run) for id, run in united.items() if id in known], source)
        added += report.added
        present += len(batch) - report.added
    known = _stored(db, {run.id: run for run in closing})
    _grow(db, [(known[run.id], run) for run in closing if run.id in known], source)
    return SaveReport(added, present)


def _united(runs: Iterable[Trajectory]) -> dict[str, Trajectory]:
    found: dict[str, Trajectory] = {}
    for run in runs:
        found[run.id] = _unite(found[run.id], run) if run.id in found else run
    return found


def _unite(old: Trajectory, new: Trajectory) -> Trajectory:
    """Both parts as one run. A run that has ended has ended, whatever comes later."""
    one, two = parts.from_run(old), parts.from_run(new)
    if one is None or two is None:
        return old
    complete = old.status != "running" or new.status != "running"
    fields = parts.run_of(parts.merged(one, two), complete=complete)
    agent = fields.pop("agent") or old.agent
    # What a person said of the file (--agent, --model) stays; it is not in the spans.
    if one.agents and old.agent != one.agents[max(one.agents)][1]:
        agent = old.agent
    main = old.metadata["otlp"].get("main") or {}
    if one.threads and old.model != main.get("model"):
        fields["model"] = old.model
    if old.status in ("completed", "raised"):
        fields |= {"status": old.status, "error": old.error}
    fields["model"] = fields["model"] or old.model or new.model
    fields["tools"] = fields["tools"] or old.tools or new.tools
    return Trajectory(id=old.id, agent=agent, reference=old.reference, **fields)


def _stored(db: Database, runs: dict[str, Trajectory]) -> dict[str, Trajectory]:
    return {run.id: run for run in trajectories.load(db, ids=list(runs))} if runs else {}


def _grow(db: Database, pairs: Sequence[tuple[Trajectory, Trajectory]], source: str) -> None:
    changed = [(old, grown) for old, new in pairs if (grown := _unite(old, new)) != old]
    if not changed:
        return
    with db.connection() as connection:
        _update(connection, [grown for _, grown in changed])
    for old, grown in changed:
        verdict = (grown.success, grown.score)
        if verdict != (None, None) and not any(
            o.source == source and (o.success, o.score) == verdict for o in trajectories.outcomes(db, old.id)
        ):
            trajectories.add_outcome(db, old.id, *verdict, source=source, at=grown.started_at or time.time())


def _update(connection: Connection, runs: Sequence[Trajectory]) -> None:
    content = ContentWriter(connection)
    rows = [trajectories.recorded_columns(run, content) for run in runs]
    content.flush()
    trajectories.ensure_owners(connection, rows)
    for run, row in zip(runs, rows, strict=True):
        connection.execute(update(tables.Trajectory).where(col(tables.Trajectory.id) == run.id).values(row))
    tags = [{"tag": codec.column_text(tag), "trajectory": run.id} for run in runs for tag in dict.fromkeys(run.tags)]
    bulk.insert_missing(connection, tables.Tag, tags)
