"""The team's agent, unchanged, against a policy that the gateway serves: how every arm is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import update
from sqlmodel import col, select

from harness.router import BASE
from harness.serving.gateway import Gateway
from harness.serving.policy import Policy
from harness.serving.vllm import VLLMServer
from harness.target import TargetProcess
from loop.cycle.settings import CycleSettings
from loop.evaluation import Arm, ArmResult, Split, fingerprint, measure
from storage.database import Database
from storage.errors import TraceError
from storage.ingest import ingest_spool
from storage.tables import Evaluation, EvaluationEpisode, Trajectory

StepProgress = Callable[[str, int, int, str], None]


class Measuring:
    """A context manager: the target's process starts with the first measurement and ends with the context."""

    def __init__(
        self,
        database: Database,
        home: Path,
        settings: CycleSettings,
        server: VLLMServer,
        gateway: Gateway,
        progress: StepProgress,
    ) -> None:
        self.database = database
        self.home = home
        self.settings = settings
        self.server = server
        self.gateway = gateway
        self._progress = progress
        # What else decides an outcome: the weights, and which agent is run by which evaluation.
        built = (settings.model / "config.json").stat().st_mtime_ns
        self._model = fingerprint(str(settings.model.resolve()), built, settings.agent, settings.target)
        self._target: TargetProcess | None = None
        self._suites: dict[str, list[Any]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._target is not None:
            self._target.stop()
            self._target = None

    def held_out(self) -> list[str]:
        """Every text of the gate and report tasks that is a request rather than a name: four words or more."""
        tasks = [task for split in ("gate", "report") for task in self._suite(split)]
        return [text for task in tasks for text in _texts(task) if len(text.split()) >= 4]

    def tasks(self, split: Split, n: int) -> list[Any]:
        """The first ``n`` tasks of a split. Raises TraceError when the suite has fewer."""
        found = self._suite(split)
        if len(found) < n:
            raise TraceError(
                f"the suite has {len(found)} tasks in the {split} split, {n} are needed",
                where=self.settings.target,
                fix="Let suite() return more, or ask for fewer.",
            )
        return found[:n]

    def measure(
        self, name: str, policy: Policy, split: Split, n: int, *, cycle: str | None = None, label: str | None = None
    ) -> ArmResult:
        """Run the first ``n`` tasks of ``split`` with ``policy`` serving; what was measured before isn't run again.

        ``label`` is the policy version that the runs are recorded under (default: one that says they were
        measured), so that they are never contrasted with what production saw. The gateway's policy is put back.
        """
        served = self.fingerprint(policy)
        tasks = self.tasks(split, n)
        before = self.gateway.policy
        self.gateway.set_policy(replace(policy, version=label or f"measured-{served[:8]}"))
        try:
            return measure(
                self.database,
                Arm(name, served),
                agent=self.settings.agent,
                split=split,
                tasks=tasks,
                run=self._run,
                model=self._model,
                cycle=cycle,
                progress=lambda done, total, solved: self._progress(
                    f"{name} on {split} tasks", done, total, f"{solved} solved"
                ),
            )
        finally:
            self.gateway.set_policy(before)
            ingest_spool(self.database, self.home)
            if split != "train":
                self._withhold(split)

    def fingerprint(self, policy: Policy) -> str:
        """What is served, whatever it is called. An adapter's name stands for its weights: names are immutable."""
        if policy.router is None and policy.arm(policy.forced or BASE).kind == "base":
            return fingerprint(BASE)
        raw = policy.to_json()
        raw.pop("version")
        return fingerprint(raw)

    def _run(self, tasks: list[Any], save: Callable[[int, Any], None]) -> None:
        self._process().run_many(tasks, on_result=lambda result: save(result.task_index, result))

    def _suite(self, split: Split) -> list[Any]:
        if split not in self._suites:
            self._suites[split] = self._process().suite(split)
        return self._suites[split]

    def _process(self) -> TargetProcess:
        if self._target is None:
            self._target = TargetProcess(
                self.settings.target,
                log=self.home / "logs" / "target.log",
                python=self.settings.target_python,
                cwd=self.settings.target_cwd,
                env={
                    **dict(self.settings.target_environment),
                    "TRACE_HOME": str(self.home.resolve()),
                    "TRACE_GATEWAY": self.gateway.base_url,
                },
                concurrency=self.settings.concurrency,
            )
        return self._target

    def _withhold(self, split: Split) -> None:
        """Runs on gate and report tasks must never become training material."""
        measured = (
            select(EvaluationEpisode.trajectory)
            .join(Evaluation, col(Evaluation.id) == EvaluationEpisode.evaluation)
            .where(Evaluation.split == split, col(EvaluationEpisode.trajectory).is_not(None))
        )
        with self.database.transaction() as session:
            session.connection().execute(
                update(Trajectory).where(col(Trajectory.id).in_(measured)).values(trainable=False)
            )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)
