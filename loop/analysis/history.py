"""What was found stays: analyses, their labels, and each capability's history under one name."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlmodel import col, select

from loop.analysis.analyst.analyst import Proposal
from loop.analysis.analyze import AnalysisReport, Finding
from loop.analysis.identity import Known, match
from storage import tables
from storage.database import Database
from storage.errors import TraceError


def agents(db: Database) -> list[str]:
    """Names of all agents that have runs, sorted."""
    with db.session() as session:
        return sorted(session.exec(select(tables.Trajectory.agent).distinct()))


def proposals(db: Database, agent: str) -> list[Proposal]:
    """Capabilities that a model found before, which it is to label again; dismissed ones are not."""
    with db.session() as session:
        query = select(tables.Capability).where(tables.Capability.agent == agent, tables.Capability.source == "llm")
        return [Proposal(r.name, r.description, r.description) for r in session.exec(query) if r.state != "dismissed"]


def keep(db: Database, report: AnalysisReport) -> AnalysisReport:
    """Store an analysis with its labels, in one transaction. Returns it with the ids that it got.

    An analysis that says of the same runs what the agent's latest one said is that one, and is not stored again: it
    adds nothing to the history, and a cycle that was killed after storing it finds it when it resumes.
    """
    with db.transaction() as session:
        found = session.exec(select(tables.Capability).where(tables.Capability.agent == report.agent))
        rows = {row.id: row for row in found}
        findings, new = _named(report, rows)
        latest = _latest(session, report.agent)
        if latest is not None and not new:
            again = replace(report, findings=findings, analysis=latest.id)
            if _says(latest.report) == _says(again.to_json()) and _runs_of(session, latest, findings) == {
                run.id for run in report.runs
            }:
                return again
        analysis = tables.Analysis(
            agent=report.agent,
            model=report.group.model,
            policy=report.group.policy,
            version=report.group.version,
            passes=report.thresholds.passes,
            min_gap=report.thresholds.gap,
            min_coverage=report.thresholds.coverage,
            min_passes=report.thresholds.passes_kept,
            failed=report.counts["failed"],
            succeeded=report.counts["succeeded"],
            unknown=report.counts["unknown"],
            excluded=report.counts["excluded"],
            reference=report.counts["reference"],
            harness_problems=[p.to_json() for p in report.problems],
        )
        # Parents first: rows are told apart by foreign keys, and the unit of work does not sort what has no relation.
        session.add_all([analysis, *new])
        rows |= {row.id: row for row in new}
        for finding in findings:
            rows[finding.id].state = _next_state(rows[finding.id].state, finding.contrast.selected)
        session.flush()
        kept = replace(report, findings=findings, analysis=analysis.id)
        document = kept.to_json()
        session.add_all(_observation(analysis.id, row) for row in document["capabilities"])
        session.add_all(label for finding in findings for label in _labels(analysis.id, finding, report))
        analysis.report = document
        analysis.ended_at = time.time()
        analysis.state = "done"
    return kept


def _named(
    report: AnalysisReport, rows: Mapping[str, tables.Capability]
) -> tuple[tuple[Finding, ...], list[tables.Capability]]:
    """The findings under the ids of the capabilities that they are, and the capabilities that are new."""
    known = {row.id: Known(row.id, row.name, row.description, row.detector) for row in rows.values()}
    names = {row.name for row in rows.values()}
    renamed: dict[str, str] = {}
    new: list[tables.Capability] = []
    # Detectors first: where a model names its own alike, theirs keeps the plain name.
    for finding in sorted(report.findings, key=lambda f: f.candidate.source == "llm"):
        detector = finding.candidate.detector
        # No two findings of one analysis are the same capability, whatever a model calls its own.
        own = finding.candidate.detector_id
        free = [k for k in known.values() if k.detector in (None, own) and k.id not in renamed.values()]
        found = match(detector.name, detector.description, own, free)
        if found is None:
            name = detector.name if detector.name not in names else f"{detector.name} ({finding.candidate.source})"
            names.add(name)
            row = tables.Capability(
                agent=report.agent,
                name=name,
                description=detector.description,
                source="llm" if finding.candidate.source == "llm" else "detector",
                detector=own,
            )
            new.append(row)
            found = Known(row.id, row.name, row.description, row.detector)
        renamed[finding.id] = found.id
    findings = tuple(
        replace(f, id=renamed[f.id], merged_into=renamed.get(f.merged_into or "", f.merged_into))
        for f in report.findings
    )
    return findings, new


def _latest(session: Any, agent: str) -> tables.Analysis | None:
    query = select(tables.Analysis).where(tables.Analysis.agent == agent, tables.Analysis.state == "done")
    return session.exec(query.order_by(col(tables.Analysis.started_at).desc()).limit(1)).first()


def _says(document: Any) -> Any:
    """What a report claims, without its own id and without notes, which tell what it took."""
    return {key: value for key, value in json.loads(json.dumps(document)).items() if key not in ("analysis", "notes")}


def _runs_of(session: Any, analysis: tables.Analysis, findings: Sequence[Finding]) -> set[str]:
    """The runs that an analysis labelled; any capability tells, because each labels all."""
    if not findings:
        return set()
    label = tables.Label
    query = select(label.trajectory).where(
        label.analysis == analysis.id, label.capability == findings[0].id, label.pass_number == 0
    )
    return set(session.exec(query))


def _next_state(state: str, selected: bool) -> str:
    """A person's dismissal stands. What was trained and is found lacking again is up for selection again."""
    if selected:
        return "selected" if state in ("candidate", "trained") else state
    return "candidate" if state == "selected" else state


def _labels(analysis: str, finding: Finding, report: AnalysisReport) -> list[tables.Label]:
    return [
        tables.Label(
            analysis=analysis,
            capability=finding.id,
            trajectory=run.id,
            value=None if label is None else label.value,
            pass_number=number,
            step=None if label is None else label.step,
            evidence="" if label is None else label.evidence,
        )
        for number, labels in enumerate(finding.candidate.rounds or (finding.candidate.cited,))
        for run, label in zip(report.runs, labels, strict=True)
    ]


_COLUMNS = (
    "coverage gap stratified_gap lacking_failed present_failed na_failed lacking_succeeded present_succeeded "
    "na_succeeded passes_kept selected undecided reason"
)


def _observation(analysis: str, row: dict[str, Any]) -> tables.CapabilityObservation:
    low, high = row["gap_ci"] or (None, None)
    columns = {name: row[name] for name in _COLUMNS.split()}
    detail = {k: row[k] for k in ("coverage_ci", "stratified_ci", "strata", "missing", "agreement", "p_adjusted")}
    detail |= {k: row[k] for k in ("more_runs", "merged_into", "examples", "hint", "detector")}
    return tables.CapabilityObservation(
        analysis=analysis, capability=row["id"], gap_low=low, gap_high=high, detail=detail, **columns
    )


def capabilities(db: Database, agent: str | None = None) -> list[dict[str, Any]]:
    """Every capability with what the latest analysis that measured it said, those selected first."""
    with db.session() as session:
        query = select(tables.Capability)
        if agent is not None:
            query = query.where(tables.Capability.agent == agent)
        rows = list(session.exec(query))
        found = [_row(capability, _observations(session, capability.id)) for capability in rows]
    return sorted(found, key=lambda r: (r["agent"], not r["selected"], -(r["gap"] if r["gap"] is not None else -1.0)))


def find(db: Database, key: str, agent: str | None = None) -> tables.Capability:
    """A capability by id, detector or name. Raises TraceError when there is none, or several agents have it."""
    with db.session() as session:
        query = select(tables.Capability)
        if agent is not None:
            query = query.where(tables.Capability.agent == agent)
        rows = list(session.exec(query))
    wanted = key.casefold()
    exact = [r for r in rows if r.id == key] or [
        r for r in rows if wanted in (r.name.casefold(), (r.detector or "").casefold())
    ]
    if len(exact) > 1:
        names = ", ".join(sorted(r.agent for r in exact))
        raise TraceError(f"several agents have a capability {key!r}: {names}", fix="say which with --agent")
    if not exact:
        known = ", ".join(sorted({r.name for r in rows})[:12])
        raise TraceError(
            f"there is no capability {key!r}",
            where=db.location,
            fix=f"known: {known}" if known else "none was found yet: run `trace-sdk analyze --agent NAME`",
        )
    return exact[0]


def show(db: Database, capability: tables.Capability) -> dict[str, Any]:
    """One capability with its history: what analyses measured, its adapters, what was decided, and when they served.

    Everything is an event with ``at`` (seconds since the epoch), oldest first.
    """
    with db.session() as session:
        observations = _observations(session, capability.id)
        events: list[dict[str, Any]] = [_event(analysis, observation) for analysis, observation in observations]
        query = select(tables.Adapter).where(tables.Adapter.capability == capability.id)
        adapters = list(session.exec(query.order_by(col(tables.Adapter.version))))
        for adapter in adapters:
            served = f"{adapter.name}@{adapter.version}"
            events.append({"event": "adapter", "at": adapter.created_at, "adapter": served, "state": adapter.state})
            decisions = session.exec(select(tables.GateDecision).where(tables.GateDecision.adapter == adapter.id))
            events += [_decision(decision, served) for decision in decisions]
        if adapters:
            names = {f"{adapter.name}@{adapter.version}" for adapter in adapters}
            promoted = session.exec(select(tables.Policy).where(col(tables.Policy.activated_at).is_not(None)))
            events += [_promotion(policy, names) for policy in promoted if names.intersection(policy.adapters or ())]
    return _row(capability, observations) | {"history": sorted(events, key=lambda e: e["at"])}


def _decision(decision: tables.GateDecision, served: str) -> dict[str, Any]:
    values = {"verdict": decision.verdict, "gain": decision.gain, "reason": decision.reason}
    return {"event": "gate", "at": decision.at, "adapter": served} | values


def _promotion(policy: tables.Policy, names: set[str]) -> dict[str, Any]:
    """``names``: the adapters as they are served."""
    adapters = [name for name in policy.adapters if name in names]
    values = {"policy": policy.version, "state": policy.state, "adapters": adapters}
    return {"event": "promotion", "at": policy.activated_at} | values


Observed = tuple[tables.Analysis, tables.CapabilityObservation]


def _observations(session: Any, capability: str) -> list[Observed]:
    """Oldest first."""
    query = (
        select(tables.Analysis, tables.CapabilityObservation)
        .where(tables.CapabilityObservation.analysis == tables.Analysis.id)
        .where(tables.CapabilityObservation.capability == capability)
        .order_by(col(tables.Analysis.started_at))
    )
    return [(analysis, observation) for analysis, observation in session.exec(query)]


def _event(analysis: tables.Analysis, o: tables.CapabilityObservation) -> dict[str, Any]:
    return {
        "event": "analysis",
        "at": analysis.started_at,
        "analysis": analysis.id,
        "model": analysis.model,
        "policy": analysis.policy,
        "version": analysis.version,
        "coverage": o.coverage,
        "gap": o.gap,
        "gap_ci": [o.gap_low, o.gap_high] if o.gap_low is not None else None,
        "selected": o.selected,
        "undecided": o.undecided,
        "reason": o.reason,
    }


def _row(capability: tables.Capability, observations: Sequence[Observed]) -> dict[str, Any]:
    latest = _event(*observations[-1]) if observations else {}
    lacking_since = next((a.started_at for a, o in observations if o.selected), None)
    return {
        "id": capability.id,
        "agent": capability.agent,
        "name": capability.name,
        "description": capability.description,
        "source": capability.source,
        "detector": capability.detector,
        "state": capability.state,
        "coverage": latest.get("coverage"),
        "gap": latest.get("gap"),
        "gap_ci": latest.get("gap_ci"),
        "selected": bool(latest.get("selected")),
        "undecided": bool(latest.get("undecided")),
        "reason": latest.get("reason", ""),
        "analyses": len(observations),
        "selected_since": lacking_since,
        "observed_at": latest.get("at"),
    }
