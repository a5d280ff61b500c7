"""The rows of a cycle: written by its stages, each in one transaction, and found again when a stage runs again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from sqlmodel import col, select

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

    def adapter_named(self, name: str) -> tables.Adapter:
        base, _, version = name.rpartition("@")
        with self.database.session() as session:
            return session.exec(
                select(tables.Adapter).where(tables.Adapter.name == base, tables.Adapter.version == int(version))
            ).one()

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

    def end_run(self, run: str, adapter: str, result: dict[str, Any]) -> None:
        with self.database.transaction() as session:
            row = session.get_one(tables.TrainingRun, run)
            row.adapter, row.result, row.ended_at, row.state = adapter, result, time.time(), "done"
            session.add(row)

    def keep_steps(self, run: str, steps: Sequence[StepMetrics]) -> None:
        with self.database.transaction() as session:
            for step in steps:
                session.merge(
                    tables.TrainingStep(
                        run=run,
                        step=step.step,
                        loss=step.loss,
                        reward=step.reward,
                        informative_groups=step.informative,
                        tokens=step.sampled_tokens,
                        seconds=step.seconds_rollouts + step.seconds_training,
                        metrics=asdict(step),
                    )
                )
