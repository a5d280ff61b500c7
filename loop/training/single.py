"""Train one adapter in one stored environment, outside a cycle: rows, folders and the warm start around GRPO.

The training's row is written first and names its folder, so a run that was killed is found again and goes on after
its last finished step when the same training is asked for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import structlog
from sqlmodel import Session, col, or_, select

from harness.environment import Environment
from harness.episodes import run_episodes
from harness.policies import ReferencePolicy
from loop.names import slug
from loop.training.grpo import AdapterServer, train_grpo
from loop.training.sft import Dialogue, train_sft
from loop.training.steps import GRPOSettings, StepMetrics
from storage import tables
from storage.database import Database
from storage.errors import TraceError

log = structlog.get_logger()

# Streams of seeds that don't meet, nor those of a cycle's admission and gate.
WARM_START_SEEDS = 5_000_000
TRAINING_SEEDS = 6_000_000


@dataclass(frozen=True, slots=True)
class SingleSettings:
    """``warm_start``: how many verified reference solutions are tuned on before GRPO; 0 for none."""

    warm_start: int = 0
    warm_steps: int = 4
    warm_batch: int = 4
    warm_learning_rate: float = 1e-3
    grpo: GRPOSettings = field(default_factory=GRPOSettings)
    seed: int = 0


def train_single(
    database: Database,
    home: Path,
    server: AdapterServer,
    model: Path,
    environment: tables.Environment,
    make: Callable[[], Environment],
    settings: SingleSettings,
    *,
    say: Callable[[str], None],
    on_step: Callable[[StepMetrics], None] | None = None,
) -> tables.Adapter:
    """The trained adapter as a candidate in the database. An interrupted run of the same settings is gone on with.

    Raises TraceError when no reference solution is solved, and what `train_grpo` raises.
    """
    run = _open_run(database, environment.id, model, settings)
    folder = home / "training" / run.id
    try:
        warm = _warm_start(database, folder, model, environment, make, settings, say) if settings.warm_start else None
        result = train_grpo(
            model_dir=model,
            server=server,
            env_factory=make,
            out_dir=folder / "grpo",
            name=served_step_name(environment.name, run.id),
            init_adapter=Path(warm.path) if warm is not None else None,
            config=settings.grpo,
            seed=settings.seed,
            seeds=lambda draw: TRAINING_SEEDS + draw,
            on_step=lambda step: _report_step(database, run.id, step, on_step),
        )
    except KeyboardInterrupt:
        _set_state(database, run.id, "interrupted")
        raise
    with database.transaction() as session:
        for step in result.steps:
            session.merge(step_row(run.id, step))
        row = _adapter(
            session, environment, environment.name, result.adapter_path, result.sha256, result.init_sha256, model
        )
        row.rank, row.detail = settings.grpo.rank, {"training_run": run.id}
        session.add(row)
        session.flush()
        done = session.get_one(tables.TrainingRun, run.id)
        done.adapter, done.state, done.ended_at = row.id, "done", time.time()
        done.result = {"rollouts": result.rollouts, "tokens": result.tokens, "informative": result.informative_groups}
        session.add(done)
    return row


def reference_dialogues(make: Callable[[], Environment], seeds: Sequence[int]) -> list[Dialogue]:
    """The environment's own solutions of these tasks as dialogues; only those that the scorer finds solved."""
    episodes = asyncio.run(run_episodes(make, seeds, ReferencePolicy()))
    tools = list(make().tools)
    return [Dialogue(list(e.messages), tools) for e in episodes if e.score is not None and e.score.success]


def step_row(run: str, step: StepMetrics) -> tables.TrainingStep:
    """A finished step as a row; merging it again changes nothing."""
    return tables.TrainingStep(
        run=run,
        step=step.step,
        loss=step.loss,
        reward=step.reward,
        informative_groups=step.informative,
        tokens=step.sampled_tokens,
        seconds=step.seconds_rollouts + step.seconds_training,
        metrics=asdict(step),
    )


def served_step_name(environment: str, run: str) -> str:
    """What the adapters of a training's steps are served under, before it has a version."""
    return f"{slug(environment)}@{run.lower()}"


def _open_run(database: Database, environment: str, model: Path, settings: SingleSettings) -> tables.TrainingRun:
    """The row that an interrupted attempt at the same training left, or a new one."""
    config = {**asdict(settings), "model": str(model)}
    run = tables.TrainingRun
    with database.transaction() as session:
        query = select(run).where(
            run.environment == environment,
            run.kind == "grpo",
            col(run.cycle).is_(None),
            or_(run.state == "running", run.state == "interrupted"),
        )
        for row in session.exec(query.order_by(col(run.started_at).desc())):
            if row.config == config:
                row.state = "running"
                session.add(row)
                return row
        row = run(kind="grpo", environment=environment, seed=settings.seed, config=config)
        session.add(row)
        return row


def _warm_start(
    database: Database,
    folder: Path,
    model: Path,
    environment: tables.Environment,
    make: Callable[[], Environment],
    settings: SingleSettings,
    say: Callable[[str], None],
) -> tables.Adapter:
    target = folder / "warm_start"
    with database.session() as session:
        found = session.exec(select(tables.Adapter).where(tables.Adapter.path == str(target))).first()
    if found is not None:
        return found
    seeds = range(WARM_START_SEEDS, WARM_START_SEEDS + settings.warm_start)
    dialogues = reference_dialogues(make, seeds)
    if not dialogues:
        raise TraceError(
            "no reference solution of this environment is solved",
            where=environment.name,
            fix="Admit it again: `trace-sdk environments admit`; or train with --warm-start 0.",
        )
    result = train_sft(
        model,
        dialogues,
        target,
        rank=settings.grpo.rank,
        lr=settings.warm_learning_rate,
        steps=settings.warm_steps,
        batch=settings.warm_batch,
        seed=settings.seed,
    )
    say(f"warm start on {len(dialogues)} solutions, {settings.warm_steps} steps, {result.seconds:.0f} s")
    with database.transaction() as session:
        row = _adapter(session, environment, f"{environment.name}-warm", target, result.sha256, None, model)
        row.rank = settings.grpo.rank
        session.add(row)
    return row


def _adapter(
    session: Session,
    environment: tables.Environment,
    name: str,
    path: Path,
    sha256: str,
    parent: str | None,
    model: Path,
) -> tables.Adapter:
    name = slug(name)
    versions = session.exec(select(tables.Adapter.version).where(tables.Adapter.name == name)).all()
    return tables.Adapter(
        name=name,
        version=max(versions, default=0) + 1,
        capability=environment.capability,
        environment=environment.id,
        path=str(path),
        sha256=sha256,
        base=str(model),
        parent_sha256=parent,
    )


def _report_step(
    database: Database, run: str, step: StepMetrics, on_step: Callable[[StepMetrics], None] | None
) -> None:
    with database.transaction() as session:
        session.merge(step_row(run, step))
    if on_step is not None:
        on_step(step)


def _set_state(database: Database, run: str, state: str) -> None:
    with database.transaction() as session:
        row = session.get_one(tables.TrainingRun, run)
        row.state = state
        session.add(row)
