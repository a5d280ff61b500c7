"""Does a served model have this lack too? A gap found in one model's runs is not another's, so it is measured again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlmodel import select

from loop.analysis.analyze import analyze_runs
from loop.analysis.detectors import find
from loop.analysis.labels import Detector
from storage import tables
from storage.database import Database
from storage.errors import TraceError
from storage.trajectories import load


def detector_of(capability: tables.Capability) -> Detector:
    """What labels a capability without a model. Raises TraceError for one that only a model labels."""
    detector = find(capability.detector) if capability.detector else None
    if detector is None:
        raise TraceError(
            f"{capability.name!r} has no detector here, so it cannot be measured on other runs by itself",
            fix="serve the model to the agent, and label its runs with `trace-sdk analyze --analyst MODEL`",
        )
    return detector


def lack(db: Database, capability: tables.Capability, evaluation: str) -> dict[str, Any]:
    """The capability's row, as in `analyze --json`, over the runs of one evaluation: those of the model that served.

    Outcomes are those of the evaluation. Raises TraceError where its runs were not recorded.
    """
    detector = detector_of(capability)
    with db.session() as session:
        episodes = session.exec(
            select(tables.EvaluationEpisode).where(tables.EvaluationEpisode.evaluation == evaluation)
        )
        outcomes = {episode.trajectory: episode.success for episode in episodes if episode.trajectory}
    runs = [replace(run, success=outcomes[run.id]) for run in load(db, ids=outcomes)]
    if not runs:
        raise TraceError(
            "the runs of the evaluation were not recorded", where=db.location, fix="see `trace-sdk doctor`"
        )
    report = analyze_runs(capability.agent, runs, detectors=(detector,), rules=False)
    row = report.findings[0].to_json([run.id for run in report.runs], [run.success is False for run in report.runs])
    return row | {"id": capability.id, "trajectories": report.counts, "harness_problems": len(report.problems)}
