"""Environments in the database: their rows, their admissions, and how one is found again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlmodel import col, select

from harness.admission import AdmissionReport, Check
from loop.analysis import detectors, history
from loop.analysis.labels import Detector
from storage import tables
from storage.database import Database
from storage.errors import TraceError

Json = Any


def capability_of(db: Database, agent: str, name: str | None) -> tuple[str | None, Detector | None]:
    """(the capability's row id, its detector) for a capability's name or id, or a detector's id.

    Raises TraceError when there is neither, or when the capability has no detector to tell good runs by.
    """
    if name is None:
        return None, None
    direct = detectors.find(name)
    with db.session() as session:
        query = select(tables.Capability).where(tables.Capability.agent == agent, tables.Capability.detector == name)
        row = session.exec(query).first() if direct else None
    if direct is not None:
        return (row.id if row else None), direct
    found = history.find(db, name, agent)
    detector = detectors.find(found.detector) if found.detector else None
    if detector is None:
        fix = f"Detectors: {', '.join(d.id for d in detectors.DETECTORS)}."
        raise TraceError("this capability has no detector, so good runs cannot be told apart", where=name, fix=fix)
    return found.id, detector


def keep(db: Database, agent: str, name: str, spec: Json, evidence: Json, capability: str | None) -> str:
    """Store a new environment as a draft; returns its id."""
    row = tables.Environment(name=name, agent=agent, capability=capability, spec=spec, evidence=evidence)
    with db.transaction() as session:
        session.add(row)
    return row.id


def find(db: Database, id: str) -> tables.Environment:
    """An environment by its id, or the newest of that name. Raises TraceError when there is none."""
    with db.session() as session:
        row = (
            session.get(tables.Environment, id)
            or session.exec(
                select(tables.Environment)
                .where(tables.Environment.name == id)
                .order_by(col(tables.Environment.created_at).desc())
            ).first()
        )
    if row is None:
        raise TraceError("there is no such environment", where=id, fix="`trace-sdk environments list` shows them.")
    return row


def listed(db: Database, agent: str | None = None) -> list[dict[str, Json]]:
    """Rows for a list, newest first; ``failed`` names the checks of the latest admission that did not pass."""
    query = select(tables.Environment).order_by(col(tables.Environment.created_at).desc())
    if agent is not None:
        query = query.where(tables.Environment.agent == agent)
    with db.session() as session:
        rows = session.exec(query).all()
        names = {c.id: c.name for c in session.exec(select(tables.Capability))}
    found: list[dict[str, Json]] = []
    for row in rows:
        checks = latest_checks(db, row.id)
        found.append(
            {
                "id": row.id,
                "name": row.name,
                "agent": row.agent,
                "capability": names.get(row.capability or "", (row.evidence or {}).get("capability")),
                "kind": row.kind,
                "state": row.state,
                "created_at": row.created_at,
                "checks": len(checks),
                "failed": [c["name"] for c in checks if not c["passed"]],
            }
        )
    return found


def latest_checks(db: Database, environment: str) -> list[dict[str, Json]]:
    """The checks of an environment's latest admission."""
    with db.session() as session:
        query = select(tables.AdmissionCheck).where(tables.AdmissionCheck.environment == environment)
        rows = session.exec(query).all()
    last = max((r.attempt for r in rows), default=0)
    names = ("attempt", "name", "value", "threshold", "passed", "detail", "at")
    return [{n: getattr(r, n) for n in names} for r in rows if r.attempt == last]


def keep_admission(db: Database, row: tables.Environment, report: AdmissionReport) -> None:
    """Store a report as the next attempt, and what it means for the environment's state: the latest one decides. One
    that was admitted before, and no longer is, retires."""
    with db.transaction() as session:
        query = select(tables.AdmissionCheck.attempt).where(tables.AdmissionCheck.environment == row.id)
        attempt = max(session.exec(query).all(), default=0) + 1
        session.add_all(_check_rows(row.id, attempt, report.checks))
        merged = session.get_one(tables.Environment, row.id)
        if report.admitted:
            merged.state = "admitted"
        elif merged.state in ("draft", "admitted"):
            merged.state = "rejected" if merged.state == "draft" else "retired"


def keep_or_find(db: Database, row: tables.Environment, report: AdmissionReport) -> str:
    """Store an environment with its admission. One of the same agent and content that is there already gets the
    admission as its next attempt. Returns the id of the row that has it."""
    query = select(tables.Environment).where(tables.Environment.agent == row.agent)
    with db.session() as session:
        found = next((r for r in session.exec(query) if r.spec == row.spec), None)
    if found is None:
        keep_judged(db, row, report)
        return row.id
    keep_admission(db, found, report)
    return found.id


def keep_judged(db: Database, row: tables.Environment, report: AdmissionReport) -> None:
    """Store a new environment together with its first admission: both are there, or neither."""
    with db.transaction() as session:
        if session.get(tables.Agent, row.agent) is None:
            session.add(tables.Agent(name=row.agent))
            session.flush()
        session.add(row)
        session.flush()
        row.state = "admitted" if report.admitted else "rejected"
        session.add_all(_check_rows(row.id, 1, report.checks))


def _check_rows(environment: str, attempt: int, checks: Sequence[Check]) -> list[tables.AdmissionCheck]:
    return [
        tables.AdmissionCheck(
            environment=environment,
            attempt=attempt,
            name=c.name,
            value=c.value,
            threshold=c.threshold,
            passed=c.passed,
            detail=c.detail,
        )
        for c in checks
    ]
