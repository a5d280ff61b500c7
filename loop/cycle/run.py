"""Run one cycle, or resume the one that was interrupted."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path

from sqlmodel import col, select

from loop.cycle.graph import CycleState, run_graph
from loop.cycle.measuring import Measuring
from loop.cycle.settings import CycleSettings
from loop.cycle.stages import CycleStages
from storage import tables
from storage.database import Database
from storage.errors import TraceError


@contextlib.contextmanager
def exclusive(home: Path) -> Iterator[None]:
    """One cycle at a time in a home folder; the lock is the kernel's, so a killed worker leaves none behind."""
    home.mkdir(parents=True, exist_ok=True)
    path = home / "cycle.lock"
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TraceError(
                "another cycle is running in this home folder",
                where=str(path),
                fix="Wait for it, stop it, or set TRACE_HOME to another folder.",
            ) from None
        yield


def unfinished(database: Database, agent: str) -> tables.Cycle | None:
    """The newest cycle of this agent that has not come to an end."""
    with database.session() as session:
        query = select(tables.Cycle).where(
            tables.Cycle.agent == agent, col(tables.Cycle.state).in_(["running", "interrupted"])
        )
        return session.exec(query.order_by(col(tables.Cycle.started_at).desc())).first()


def begin(database: Database, settings: CycleSettings, say: Callable[[str], None]) -> str:
    """The id of the cycle to run: the interrupted one, else a new one."""
    found = unfinished(database, settings.agent)
    with database.transaction() as session:
        if found is None:
            row = tables.Cycle(agent=settings.agent, config=settings.to_json())
            session.add(row)
            return row.id
        row = session.get_one(tables.Cycle, found.id)
        if row.state == "interrupted":
            row.state = "running"
        session.add(row)
    say(f"resuming cycle {found.id} at stage {found.stage or 'analyze'}")
    return found.id


def run_cycle(measuring: Measuring, cycle: str, say: Callable[[str], None]) -> CycleState:
    """Run the cycle to its end and return its final state.

    The caller holds `exclusive`. An interrupt or an error leaves the cycle resumable.
    """
    stages = CycleStages(measuring, say)
    try:
        return run_graph(stages, cycle, measuring.home / "cycles.db")
    except BaseException:
        _interrupted(measuring.database, cycle)
        raise


def _interrupted(database: Database, cycle: str) -> None:
    with database.transaction() as session:
        row = session.get_one(tables.Cycle, cycle)
        if row.state == "running":
            row.state = "interrupted"
        session.add(row)
