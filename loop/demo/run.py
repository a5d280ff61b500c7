"""The demo: the whole loop on the example agent, a real vLLM server and a small model, on a machine without a GPU."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlmodel import col, select

from harness.router import BASE
from harness.serving.policy import Arm, Policy
from loop import reports
from loop.cycle.graph import CycleState
from loop.cycle.measuring import Measuring, StepProgress
from loop.cycle.policies import served_name
from loop.cycle.run import begin, exclusive, run_cycle
from loop.cycle.settings import CalibrationSettings, CycleSettings, WarmStart
from loop.cycle.stages import TRAINING_SEEDS, WARM_START_SEEDS, CycleStages
from loop.cycle.workbench import workbench
from loop.demo.base_model import build_base
from loop.evaluation import ArmResult
from loop.training.steps import GRPOSettings
from storage import tables
from storage.database import Database, open_database
from storage.errors import TraceError
from storage.importers import FORMATS, read_file
from storage.importers.contract import BrokenRecord, Options
from storage.trajectories import save

AGENT = "support_desk"
TARGET = "examples.support_desk.evaluation:SupportDesk"


@dataclass(frozen=True, slots=True)
class DemoSize:
    """How much is recorded, trained and measured. ``report`` counts base and routed, ``side`` the other arms."""

    record: int
    fit: int
    gate: int
    report: int
    side: int
    warm_start: WarmStart
    training: GRPOSettings


# A third of SmolLM2's 30 blocks stay as they are: on a CPU the backward pass is most of a step.
QUICK = DemoSize(
    record=150,
    fit=12,
    gate=16,
    report=40,
    side=20,
    warm_start=WarmStart(solutions=48, steps=12, batch=4, first_layer=10),
    training=GRPOSettings(steps=5, groups_per_step=2, group_size=4, resample_rounds=0, learning_rate=3e-4, max_turns=5),
)
FULL = DemoSize(
    record=200,
    fit=48,
    gate=48,
    report=100,
    side=100,
    warm_start=WarmStart(solutions=160, steps=40, batch=4, first_layer=10),
    training=GRPOSettings(
        steps=15,
        groups_per_step=12,
        group_size=4,
        resample_rounds=0,
        learning_rate=8e-4,
        max_turns=5,
    ),
)


def repository() -> Path:
    """The checkout that holds the example agent. Raises TraceError where only the package is installed."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "examples" / "support_desk" / "agent.py").exists():
        raise TraceError(
            "the demo needs its example agent, which is not part of the installed package",
            where=str(root),
            fix="Run it from a checkout of the repository: `make demo`.",
        )
    return root


def run_demo(
    home: Path, size: DemoSize, *, fresh: bool, say: Callable[[str], None], progress: StepProgress, seed: int = 0
) -> dict[str, Any]:
    """Run the demo to its end, resuming what an earlier run left, and return the report.

    ``fresh`` forgets what was recorded, trained and measured in ``home``; the built base model is kept.
    """
    root = repository()
    if fresh and os.environ.get("TRACE_DATABASE_URL"):
        raise TraceError(
            "--fresh forgets a home folder, and the database is elsewhere",
            where="TRACE_DATABASE_URL",
            fix="Unset it for the demo, or run without --fresh.",
        )
    with exclusive(home):
        if fresh:
            _forget(home)
        began = time.monotonic()
        model = _base(home, progress)
        settings = CycleSettings(
            agent=AGENT,
            model=model,
            target=TARGET,
            target_cwd=root,
            target_python=sys.executable,
            concurrency=32,
            fit_tasks=size.fit,
            gate_tasks=size.gate,
            warm_start=size.warm_start,
            calibration=CalibrationSettings(tasks=4, repeats=4, turn=False),
            training=size.training,
            seed=seed,
        )
        with open_database(home=home) as database:
            say(f"{_import_references(database, root)} tickets handled by people are in the database")
            with workbench(database, home, settings, say, progress) as (measuring, stages):
                return _loop(measuring, stages, size, say, began)


def _base(home: Path, progress: StepProgress) -> Path:
    """The base model: converted and tuned on unrelated tools the first time, then found again."""
    names = {"convert": "converting SmolLM2", "tune": "tuning the base on unrelated tools"}
    return build_base(
        home / "models" / "base", progress=lambda stage, done, total: progress(names[stage], done, total, "")
    )


def _import_references(database: Database, root: Path) -> int:
    """The example's tickets that people handled; how many there are."""
    path = root / "examples" / "support_desk" / "references.jsonl"
    runs = []
    for record in read_file(FORMATS["openai"], path, Options(agent=AGENT, reference=True)):
        if isinstance(record, BrokenRecord):
            raise TraceError(f"a reference is broken: {record.reason}", where=f"{path}, {record.position}")
        runs.append(record)
    save(database, runs, "import:openai")
    return len(runs)


def _loop(
    measuring: Measuring, stages: CycleStages, size: DemoSize, say: Callable[[str], None], began: float
) -> dict[str, Any]:
    database, home = measuring.database, measuring.home
    cycle = _unreported(database) or begin(database, measuring.settings, say)
    try:
        serving = stages.serving_policy()
        recorded = measuring.measure("serving", serving, "train", size.record, cycle=cycle, label=serving.version)
        say(f"recorded {recorded.n} runs of the agent, {recorded.successes} solved")
        state = run_cycle(measuring, cycle, say)
        arms = _report_arms(measuring, stages, state, size)
        _keep_arms(database, cycle, arms, state, measuring.settings)
    finally:
        # Time at work, over all attempts: what lies between an interrupt and the next run does not count.
        _add_minutes(database, cycle, (time.monotonic() - began) / 60)
    report = reports.build(database, cycle)
    reports.write(report, home)
    return report


def _report_arms(measuring: Measuring, stages: CycleStages, state: CycleState, size: DemoSize) -> dict[str, ArmResult]:
    """Measure every arm on the report split, after everything was decided."""

    def arm(name: str, policy: Policy, n: int) -> ArmResult:
        return measuring.measure(name, policy, "report", n, cycle=state["cycle"])

    arms = {"base": arm("base", Policy.only(BASE, Arm(BASE)), size.report)}
    # The candidate is measured whatever the gate said of it: that line of the report says whether it serves.
    routed = stages.policy_of(stages.rows.get(tables.Policy, state["policy"])) if state["policy"] else None
    routed = routed or stages.serving_policy()
    if routed.router is not None:
        arms["routed"] = arm("routed", routed, size.report)
    hint = _hint(stages, state)
    if hint:
        arms["prompt_hint"] = arm("prompt_hint", Policy.only("hint", Arm("hint", "hint", hint=hint)), size.side)
    warm = _routed_with_warm_start(stages, state, routed)
    if warm is not None:
        arms["warm_start"] = arm("warm_start", warm, size.side)
    return arms


def _unreported(database: Database) -> str | None:
    """The newest cycle, if it ended and its report was interrupted."""
    with database.session() as session:
        query = select(tables.Cycle).where(tables.Cycle.agent == AGENT).order_by(col(tables.Cycle.started_at).desc())
        row = session.exec(query).first()
    ended = row is not None and row.state in ("promoted", "held", "rejected")
    return row.id if row is not None and ended and not (row.report or {}).get("arms") else None


def _hint(stages: CycleStages, state: CycleState) -> str | None:
    """The advice of the capability that was trained, or else first taken up: the cheap alternative to training."""
    taken = [*state["trained"], *state["tried"]]
    return stages.hint(taken[0]) if taken else None


def _routed_with_warm_start(stages: CycleStages, state: CycleState, routed: Policy) -> Policy | None:
    """The same router with the warm start in the trained adapter's place: what is left out is GRPO alone."""
    warm = stages.rows.warm_start_of(state["cycle"])
    if warm is None or not state["policy"]:
        return None
    stages.serve(warm.id)
    # The cycle's own adapter is the one that its policy added last.
    trained = routed.arms[-1].name
    arms = tuple(replace(arm, adapter=served_name(warm)) if arm.name == trained else arm for arm in routed.arms)
    return replace(routed, arms=arms)


def _keep_arms(
    database: Database, cycle: str, arms: dict[str, ArmResult], state: CycleState, settings: CycleSettings
) -> None:
    """Where the report's numbers stand, so that it can be recomputed."""
    with database.transaction() as session:
        row = session.get_one(tables.Cycle, cycle)
        row.report = {
            **(row.report or {}),
            "arms": {
                name: {"evaluation": result.evaluation, "tasks": sorted(result.outcomes)}
                for name, result in arms.items()
            },
            "seeds": {"cycle": settings.seed, "training": TRAINING_SEEDS, "warm_start": WARM_START_SEEDS},
            "versions": reports.versions(),
        }
        session.add(row)


def _add_minutes(database: Database, cycle: str, minutes: float) -> None:
    with database.transaction() as session:
        row = session.get_one(tables.Cycle, cycle)
        row.report = {**(row.report or {}), "minutes": (row.report or {}).get("minutes", 0.0) + minutes}
        session.add(row)


def _forget(home: Path) -> None:
    for name in ("trace.db", "trace.db-wal", "trace.db-shm", "cycles.db", "cycles.db-wal", "cycles.db-shm"):
        (home / name).unlink(missing_ok=True)
    for name in ("spool", "cycles", "mixtures", "reports"):
        shutil.rmtree(home / name, ignore_errors=True)
