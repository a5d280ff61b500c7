"""From the database to an admitted environment in it: evidence, rounds, and every attempt kept."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlmodel import Session, col, select

from harness.admission import AdmissionReport, Check, Thresholds
from harness.sandbox.host import Limits
from loop.analysis import detectors, history
from loop.analysis.analyst.client import CachedClient, Client, Ledger
from loop.analysis.labels import Detector
from loop.names import slug
from loop.synthesis import store
from loop.synthesis.generated.brief import Brief, brief_of, systems_of
from loop.synthesis.generated.generate import ROUNDS, Attempt, generate, judge_for
from loop.synthesis.generated.module import FORMAT, spec_of
from storage import tables
from storage.database import Database
from storage.errors import TraceError
from storage.trajectories import load
from storage.trajectory import Trajectory

Json = Any
LONGEST_SHORT = 4
"""Words; held-out texts of fewer are names rather than requests."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The capability to write for. ``row`` is its id in the database; one that a model found has no detector."""

    row: str | None
    name: str
    description: str
    detector: Detector | None

    @property
    def key(self) -> str:
        """What finds it again, whether or not it is in the database."""
        return self.detector.id if self.detector else self.name


@dataclass(frozen=True, slots=True)
class Outcome:
    """``id`` is of the environment that the last attempt became, admitted or not."""

    id: str
    attempt: Attempt
    ledger: Ledger


def wanted(db: Database, agent: str, key: str) -> Wanted:
    """The capability of this name, id, or detector's id. Raises TraceError when there is none."""
    detector = detectors.find(key)
    with db.session() as session:
        query = select(tables.Capability).where(tables.Capability.agent == agent, tables.Capability.detector == key)
        row = session.exec(query).first() if detector else None
    if row is None and detector is not None:
        return Wanted(None, detector.name, detector.description, detector)
    row = row or history.find(db, key, agent)
    return Wanted(row.id, row.name, row.description, detector or detectors.find(row.detector or ""))


def write_environment(
    db: Database,
    agent: str,
    capability: Wanted,
    client: Client,
    home: Path,
    *,
    rounds: int = ROUNDS,
    budget: float | None = None,
    tools: Sequence[Mapping[str, Json]] | None = None,
    held_out: Sequence[str] = (),
    allow_weaker: bool = False,
    limits: Limits | None = None,
    thresholds: Thresholds | None = None,
    cycle: str | None = None,
    on_round: Callable[[Attempt], None] = lambda attempt: None,
) -> Outcome:
    """Let ``client`` write an environment for a capability of ``agent``. Modules and answers lie under ``home``.

    Every attempt becomes an environment of kind "generated" with its checks. Rounds that were interrupted go on where
    they were; after an admission or ``rounds`` rejections the next call begins anew. ``budget`` in US dollars.
    ``held_out``: requests of the gate and report splits, to which those that were measured there are added.
    """
    measured = _measured(db)
    all_runs = list(load(db, agent=agent))
    if not all_runs:
        raise TraceError("this agent has no recorded runs", where=agent, fix="`trace-sdk status` names the agents.")
    apart = [*held_out, *_requests(run for run in all_runs if run.id in measured)]
    runs = [run for run in all_runs if run.id not in measured]
    labels = _labels(db, capability, runs)
    brief = brief_of(runs, labels, capability.name, capability.description, tools=tools, held_out=apart)
    generation, earlier = _earlier(db, agent, capability.key)
    folder = home / "environments" / f"{slug(agent)}-{slug(capability.name)}-{generation}"
    ledger = Ledger(budget)
    kept: list[str] = []

    def keep(attempt: Attempt, path: Path) -> None:
        spent = {"prompt_tokens": ledger.prompt_tokens, "completion_tokens": ledger.completion_tokens}
        series = {"generation": generation, "round": attempt.number, "rounds": rounds}
        evidence = {**series, **spent, **_told(brief, capability), "model": client.model, "file": str(path)}
        if cycle is not None:
            evidence["cycle"] = cycle
        row = tables.Environment(
            name=f"{slug(capability.name)}-generated",
            agent=agent,
            capability=capability.row,
            kind="generated",
            spec=spec_of(attempt.source),
            evidence=evidence,
        )
        store.keep_judged(db, row, attempt.report)
        kept.append(row.id)
        on_round(attempt)

    judge = judge_for(
        brief,
        capability.detector,
        systems=systems_of(runs),
        held_out=apart,
        allow_weaker=allow_weaker,
        limits=limits,
        thresholds=thresholds,
    )
    asker = CachedClient(client, home / "generated", ledger)
    last = asyncio.run(
        generate(
            brief,
            asker,
            judge,
            folder,
            rounds=rounds,
            variant=generation,
            earlier=[attempt for attempt, _ in earlier],
            keep=keep,
        )
    )
    return Outcome(kept[-1] if kept else earlier[-1][1], last, ledger)


def _told(brief: Brief, capability: Wanted) -> dict[str, Json]:
    """What the brief rested on, for whoever looks at the environment later."""
    shown = {"present": len(brief.present), "lacking": len(brief.lacking), "tools": len(brief.results)}
    return {"capability": capability.key, "shown": shown}


def _measured(db: Database) -> set[str]:
    """Runs that measured gate or report tasks."""
    with db.session() as session:
        query = (
            select(tables.EvaluationEpisode.trajectory)
            .join(tables.Evaluation, col(tables.Evaluation.id) == tables.EvaluationEpisode.evaluation)
            .where(col(tables.Evaluation.split).in_(("gate", "report")))
        )
        return {id for id in session.exec(query) if id}


def _requests(runs: Any) -> list[str]:
    texts = (m.content for run in runs for m in run.messages if m.role == "user")
    return [text for text in texts if len(text.split()) >= LONGEST_SHORT]


def _labels(db: Database, capability: Wanted, runs: Sequence[Trajectory]) -> dict[str, str]:
    """Run → PRESENT or LACKING: by the detector, else what most passes of the latest analyses said."""
    if capability.detector is not None:
        return {run.id: capability.detector.label(run).value for run in runs}
    with db.session() as session:
        query = (
            select(tables.Label, tables.Analysis.started_at)
            .join(tables.Analysis, col(tables.Analysis.id) == tables.Label.analysis)
            .where(tables.Label.capability == capability.row)
        )
        votes: dict[tuple[str, float], Counter[str]] = defaultdict(Counter)
        for label, at in session.exec(query):
            if label.value is not None:
                votes[label.trajectory, at][label.value] += 1
    latest = sorted(votes, key=lambda key: key[1])
    return {run: votes[run, at].most_common(1)[0][0] for run, at in latest}


def _earlier(db: Database, agent: str, key: str) -> tuple[int, list[tuple[Attempt, str]]]:
    """(the number of the series to go on with, its attempts with their ids)."""
    with db.session() as session:
        query = select(tables.Environment).where(
            tables.Environment.agent == agent, tables.Environment.kind == "generated"
        )
        rows = [r for r in session.exec(query) if (r.evidence or {}).get("capability") == key]
        if not rows:
            return 1, []
        last = max(r.evidence["generation"] for r in rows)
        series = sorted((r for r in rows if r.evidence["generation"] == last), key=lambda r: r.evidence["round"])
        if series[-1].state != "rejected" or series[-1].evidence["round"] >= series[-1].evidence["rounds"]:
            return last + 1, []
        return last, [(_attempt(session, row), row.id) for row in series]


def _attempt(session: Session, row: tables.Environment) -> Attempt:
    query = select(tables.AdmissionCheck).where(tables.AdmissionCheck.environment == row.id)
    checks = tuple(
        Check(c.name, c.value or 0.0, c.threshold, c.passed, c.detail) for c in session.exec(query) if c.attempt == 1
    )
    source = str(row.spec.get("module") or "") if (row.spec or {}).get("format") == FORMAT else ""
    return Attempt(row.evidence["round"], source, AdmissionReport(row.name, checks))
