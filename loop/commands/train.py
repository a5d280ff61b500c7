"""`trace-sdk train`: one adapter in one environment."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from loop.commands.context import database, home
from loop.commands.progress import Progress
from storage.errors import TraceError

if TYPE_CHECKING:
    from harness.serving.client import VLLMClient
    from storage import tables
    from storage.database import Database


def train(
    environment: str = typer.Option(..., help="Id or name of an admitted environment."),
    model: Path = typer.Option(..., help="Folder of the base model."),
    server: str = typer.Option("", help="Address of a running vLLM that serves this model; else one is started."),
    steps: int = typer.Option(10, min=1, help="Optimizer steps of GRPO."),
    groups: int = typer.Option(4, min=1, help="Tasks in a step."),
    group_size: int = typer.Option(8, min=2, help="Episodes of each task."),
    learning_rate: float = typer.Option(0.0, help="0: the default that was measured to work."),
    warm_start: int = typer.Option(0, min=0, help="Tune on this many reference solutions first."),
    warm_steps: int = typer.Option(4, min=1, help="Steps of the warm start."),
    seed: int = typer.Option(0, help="Of weights, sampling and warm start."),
    unadmitted: bool = typer.Option(False, "--unadmitted", help="Train although the environment is not admitted."),
    as_json: bool = typer.Option(False, "--json", help="The adapter as one JSON document on stdout."),
) -> None:
    """Train a LoRA adapter with GRPO. The same call goes on with what an interrupted one left.

    The adapter is kept as a candidate; a cycle's gate decides whether one serves.
    """
    from dataclasses import replace

    from loop.commands.adapters import describe, line
    from loop.cycle.run import exclusive
    from loop.synthesis.loading import from_spec
    from loop.training.single import SingleSettings, train_single
    from loop.training.steps import GRPOSettings, StepMetrics

    progress = Progress()
    grpo = GRPOSettings(steps=steps, groups_per_step=groups, group_size=group_size)
    if learning_rate:
        grpo = replace(grpo, learning_rate=learning_rate)

    def say_step(step: StepMetrics) -> None:
        progress.say(
            f"step {step.step}/{steps}: reward {step.reward:.2f}, solved {step.success:.0%}, "
            f"{step.informative:.0%} of groups informative, "
            f"{step.seconds_rollouts:.0f} + {step.seconds_training:.0f} s"
        )

    with exclusive(home()), database() as db:
        row = _environment(db, environment, unadmitted)
        make = from_spec(row.spec, f"environment {row.id}")
        settings = SingleSettings(warm_start=warm_start, warm_steps=warm_steps, grpo=grpo, seed=seed)
        with _serving(server, model, progress) as client:
            adapter = train_single(
                db, home(), client, model.resolve(), row, make, settings, say=progress.say, on_step=say_step
            )
        found = describe(db, adapter)
    print(json.dumps(found, indent=2) if as_json else line(found))


def _environment(db: Database, key: str, unadmitted: bool) -> tables.Environment:
    from sqlmodel import col, or_, select

    from storage import tables

    table = tables.Environment
    with db.session() as session:
        query = select(table).where(or_(table.id == key, table.name == key))
        rows = session.exec(query.order_by(col(table.created_at).desc())).all()
    if not rows:
        raise TraceError(
            f"no environment is called {key!r}", where=db.location, fix="`trace-sdk environments list` shows them."
        )
    usable = [row for row in rows if unadmitted or row.state == "admitted"]
    if not usable:
        raise TraceError(
            f"environment {key} is {rows[0].state}, not admitted",
            where=db.location,
            fix="`trace-sdk environments show` says why; --unadmitted trains in it all the same.",
        )
    return usable[0]


@contextlib.contextmanager
def _serving(url: str, model: Path, progress: Progress) -> Iterator[VLLMClient]:
    from harness.serving.adapters import linear_shapes
    from harness.serving.client import VLLMClient
    from harness.serving.vllm import VLLMServer

    if not (model / "config.json").is_file():
        raise TraceError("there is no model in this folder", where=str(model), fix="Give a folder with a config.json.")
    if url:
        client = VLLMClient(url.rstrip("/").removesuffix("/v1"), served=linear_shapes(model))
        try:
            client.models()
            yield client
        finally:
            client.close()
        return
    progress.say("starting vLLM")
    with VLLMServer(model, log=home() / "logs" / "vllm.log", adapters_dir=home() / "mixtures") as server:
        yield server
