"""Measuring a policy on a split of the target's own tasks: resumable, and never measured twice.

The team's agent runs unchanged, in its own process, against the gateway; what differs between arms is only the
policy that the gateway serves. An arm is known by the fingerprint of what it serves, so that asking again for what
was measured reads the database, and an interrupted measurement goes on with the tasks that are missing.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from sqlmodel import select

from loop.statistics import wilson_interval
from storage.database import Database
from storage.errors import TraceError
from storage.tables import Evaluation, EvaluationEpisode

Split = Literal["train", "gate", "report"]


class TaskResult(Protocol):
    """What one run of the target left: `harness.target.RunResult` is one."""

    @property
    def trajectory(self) -> str | None: ...
    @property
    def success(self) -> bool | None: ...
    @property
    def score(self) -> float | None: ...
    @property
    def error(self) -> Mapping[str, Any] | None: ...


Runner = Callable[[list[Any], Callable[[int, Any], None]], None]
"""Runs tasks of the target and calls back with (index into the list, result) as each ends, on the calling thread."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A policy under measurement. ``fingerprint`` is equal exactly when what is served is equal."""

    name: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class ArmResult:
    """What an arm reached. ``outcomes`` has the tasks with a known outcome; ``unknown`` counts the others."""

    arm: str
    split: str
    evaluation: str
    outcomes: Mapping[str, bool]
    unknown: int

    @property
    def n(self) -> int:
        return len(self.outcomes)

    @property
    def successes(self) -> int:
        return sum(self.outcomes.values())

    @property
    def success(self) -> float:
        """Success rate, a fraction; 0 when nothing is known."""
        return self.successes / self.n if self.n else 0.0

    @property
    def ci(self) -> tuple[float, float]:
        """95 % Wilson interval of the success rate."""
        return wilson_interval(self.successes, self.n)

    def summary(self) -> dict[str, Any]:
        """The form that reports give an arm."""
        return {"n": self.n, "successes": self.successes, "success": self.success, "ci": list(self.ci)}


def fingerprint(*parts: Any) -> str:
    """A hash of what is served: of anything that has a canonical JSON form."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


def task_key(task: Any) -> str:
    """The name of a task, equal in every arm: its JSON, or a hash of it where that is long."""
    text = task if isinstance(task, str) else json.dumps(task, sort_keys=True)
    return text if len(text) <= 120 else fingerprint(text)


def measure(
    database: Database,
    arm: Arm,
    *,
    agent: str,
    split: Split,
    tasks: Iterable[Any],
    run: Runner,
    model: str,
    cycle: str | None = None,
    progress: Callable[[int, int, int], None] | None = None,
) -> ArmResult:
    """Bring the measurement of ``arm`` on ``tasks`` to its end, running only what is missing.

    ``progress`` is called with (done, total, successes). Raises TraceError when more than half of the tasks that
    were run ended without an outcome: that measures the infrastructure, not the policy.
    """
    wanted = {task_key(task): task for task in tasks}
    if not wanted:
        raise TraceError(f"the target has no tasks in the {split} split", fix="Let its suite() return some.")
    evaluation = _open(database, arm, agent, split, model, cycle)
    done = _episodes(database, evaluation)
    missing = [key for key in wanted if done.get(key) is None]
    failures: list[str] = []
    ended = len(wanted) - len(missing)

    def save(index: int, result: TaskResult) -> None:
        nonlocal ended
        ended += 1
        done[missing[index]] = result.success
        if result.success is None:
            failures.append(str((result.error or {}).get("message") or "the run gave no outcome"))
        _save(database, evaluation, missing[index], result)
        if progress is not None:
            progress(ended, len(wanted), sum(1 for key in wanted if done.get(key)))

    if missing:
        run([wanted[key] for key in missing], save)
    if len(failures) * 2 > len(wanted):
        raise TraceError(
            f"{len(failures)} of {len(wanted)} runs of the target ended without an outcome: {failures[0]}",
            where=f"{agent}, {split} split, arm {arm.name}",
            fix="Run the target by hand, and see the logs of the server; nothing of this was counted.",
        )
    return _close(database, evaluation, arm, split, wanted)


def outcomes_of(database: Database, evaluation: str) -> dict[str, bool]:
    """Task → solved, of one stored evaluation; tasks without an outcome are left out."""
    return {task: success for task, success in _episodes(database, evaluation).items() if success is not None}


def _open(database: Database, arm: Arm, agent: str, split: str, model: str, cycle: str | None) -> str:
    with database.session() as session:
        found = session.exec(
            select(Evaluation).where(
                # Not its name: the same policy is "serving" to one stage and "base" to another.
                Evaluation.split == split,
                Evaluation.policy == arm.fingerprint,
                Evaluation.model == model,
            )
        ).first()
        if found is None:
            found = Evaluation(
                cycle=cycle, arm=arm.name, split=split, policy=arm.fingerprint, model=model, detail={"agent": agent}
            )
            session.add(found)
            session.commit()
        return found.id


def _episodes(database: Database, evaluation: str) -> dict[str, bool | None]:
    with database.session() as session:
        rows = session.exec(select(EvaluationEpisode).where(EvaluationEpisode.evaluation == evaluation))
        return {row.task: row.success for row in rows}


def _save(database: Database, evaluation: str, key: str, result: TaskResult) -> None:
    with database.session() as session:
        session.merge(
            EvaluationEpisode(
                evaluation=evaluation,
                task=key,
                trajectory=result.trajectory,
                success=result.success,
                score=result.score,
                detail={"error": dict(result.error)} if result.error else None,
            )
        )
        session.commit()


def _close(database: Database, evaluation: str, arm: Arm, split: str, wanted: Mapping[str, Any]) -> ArmResult:
    stored = _episodes(database, evaluation)
    known = {key: success for key in wanted if (success := stored.get(key)) is not None}
    with database.session() as session:
        row = session.get_one(Evaluation, evaluation)
        # Over all its tasks: a later, larger measurement of the same arm goes on in the same row.
        outcomes = [success for success in stored.values() if success is not None]
        row.n, row.successes = len(outcomes), sum(outcomes)
        row.ended_at = time.time()
        if row.state == "running":
            row.state = "done"
        session.add(row)
        session.commit()
    return ArmResult(arm.name, split, evaluation, known, len(wanted) - len(known))
