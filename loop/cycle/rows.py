"""The rows of a cycle: written by its stages, each in one transaction, and found again when a stage runs again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from sqlmodel import col, select

from harness.router import Router
from loop.cycle.policies import next_version
from loop.training.single import step_row
from loop.training.steps import StepMetrics
from storage import tables
from storage.database import Database

T = TypeVar("T", bound=tables.Row)


class Rows:
    """What stages ask of the database."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def get(self, table: type[T], id: str) -> T:
        with self.database.session() as session:
            return session.get_one(table, id)

    def add(self, row: Any) -> None:
        with self.database.transaction() as session:
            session.add(row)

    def update(self, row: Any, **values: Any) -> None:
        with self.database.transaction() as session:
            merged = session.merge(row)
            for name, value in values.items():
                setattr(merged, name, value)
                setattr(row, name, value)

    def warm_start_of(self, cycle: str) -> tables.Adapter | None:
        """The last warm start that this cycle trained."""
        with self.database.session() as session:
            return session.exec(
                select(tables.Adapter)
                .join(tables.TrainingRun, col(tables.TrainingRun.adapter) == tables.Adapter.id)
                .where(tables.TrainingRun.cycle == cycle, tables.TrainingRun.kind == "sft")
                .order_by(col(tables.Adapter.created_at).desc())
            ).first()

    def adapter_at(self, folder: Path) -> tables.Adapter | None:
        with self.database.session() as session:
            return session.exec(select(tables.Adapter).where(tables.Adapter.path == str(folder))).first()

    def next_adapter_version(self, name: str) -> int:
        with self.database.session() as session:
            versions = session.exec(select(tables.Adapter.version).where(tables.Adapter.name == name)).all()
        return max(versions, default=0) + 1

    def environment_of(self, cycle: str, capability: str) -> str | None:
        with self.database.session() as session:
            rows = session.exec(select(tables.Environment).where(tables.Environment.capability == capability)).all()
        return next((row.id for row in rows if (row.evidence or {}).get("cycle") == cycle), None)

    def keep_checks(self, environment: str, checks: Sequence[Any]) -> None:
        with self.database.transaction() as session:
            for check in checks:
                session.merge(
                    tables.AdmissionCheck(
                        environment=environment,
                        name=check.name,
                        value=check.value,
                        threshold=check.threshold,
                        passed=check.passed,
                        detail=check.detail,
                    )
                )

    def training_run(self, kind: str, *, cycle: str, environment: str, seed: int, config: dict[str, Any]) -> str:
        """The row of this training: the one that an interrupted attempt left, or a new one."""
        with self.database.transaction() as session:
            row = session.exec(
                select(tables.TrainingRun).where(
                    tables.TrainingRun.cycle == cycle,
                    tables.TrainingRun.kind == kind,
                    tables.TrainingRun.environment == environment,
                )
            ).first()
            if row is None:
                row = tables.TrainingRun(kind=kind, cycle=cycle, environment=environment, seed=seed, config=config)
                session.add(row)
            return row.id

    def end_training(
        self, run: str, adapter: tables.Adapter, result: dict[str, Any], *, steps: Sequence[StepMetrics] = ()
    ) -> None:
        """Store a finished training whole: its adapter, its steps and its end, or nothing of it."""
        with self.database.transaction() as session:
            session.add(adapter)
            session.flush()
            row = session.get_one(tables.TrainingRun, run)
            row.adapter, row.result, row.ended_at, row.state = adapter.id, result, time.time(), "done"
            session.add(row)
            for step in steps:
                session.merge(step_row(run, step))

    def policy_with(self, adapter: str) -> tables.Policy | None:
        """The policy that was made for this adapter (its served name): the first that has it."""
        with self.database.session() as session:
            rows = session.exec(select(tables.Policy).order_by(col(tables.Policy.version))).all()
        return next((row for row in rows if adapter in (row.adapters or [])), None)

    def add_policy(self, router: Router, base: str, adapters: list[str]) -> tables.Policy:
        """Store a fitted gate and the candidate policy that uses it."""
        gate = tables.Router(
            version=next_version(self.database, tables.Router), arms=list(router.arms), weights=router.to_json()
        )
        policy = tables.Policy(
            version=next_version(self.database, tables.Policy), base=base, adapters=adapters, router=gate.id
        )
        with self.database.transaction() as session:
            session.add(gate)
            session.flush()
            session.add(policy)
        return policy

    def keep_decision(self, decision: tables.GateDecision) -> None:
        """Store a decision, once for a policy, with what a rejection changes. One that is held stays a candidate."""
        with self.database.transaction() as session:
            made = select(tables.GateDecision).where(tables.GateDecision.policy == decision.policy)
            if session.exec(made).first() is not None:
                return
            session.add(decision)
            if decision.verdict == "reject":
                policy = session.get_one(tables.Policy, decision.policy)
                adapter = session.get_one(tables.Adapter, decision.adapter)
                policy.state = adapter.state = "rejected"
                session.add_all([policy, adapter])
