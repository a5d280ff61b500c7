"""`trace-sdk cycle`: one improvement cycle of one agent, run or resumed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import typer

from loop.commands.context import database, home
from loop.commands.progress import Progress
from storage.database import Database
from storage.errors import TraceError


def cycle(
    agent: str = typer.Option(..., help="Name of the agent, as its decorator gives it."),
    target: str = typer.Option(..., help="MODULE:NAME of the @trace.evaluation that runs the agent on tasks."),
    model: Path = typer.Option(..., help="Folder of the base model that serves the agent."),
    target_cwd: Path = typer.Option(Path("."), help="Folder that the target runs in."),
    target_python: str = typer.Option(sys.executable, help="Python of the target's environment."),
    capabilities: int = typer.Option(1, min=1, help="How many of the selected capabilities to take up."),
    steps: int = typer.Option(10, min=1, help="GRPO steps for each."),
    fit_tasks: int = typer.Option(24, min=8, help="Train tasks that the router is fitted on."),
    gate_tasks: int = typer.Option(40, min=8, help="Gate tasks that decide."),
    seed: int = typer.Option(0, help="Seed of the training."),
    as_json: bool = typer.Option(False, "--json", help="What the cycle did, as one JSON document on stdout."),
) -> None:
    """Analyse the recorded runs, train what is lacking, and promote it if it wins on the gate split.

    An interrupted cycle of this agent is resumed where it was; then the options of its first start should be given.
    """
    from loop.cycle.run import begin, exclusive, run_cycle
    from loop.cycle.settings import CycleSettings
    from loop.cycle.workbench import workbench
    from loop.training.steps import GRPOSettings

    progress = Progress()
    settings = CycleSettings(
        agent=agent,
        model=model,
        target=target,
        target_cwd=target_cwd,
        target_python=target_python,
        max_capabilities=capabilities,
        fit_tasks=fit_tasks,
        gate_tasks=gate_tasks,
        training=GRPOSettings(steps=steps),
        seed=seed,
    )
    with exclusive(home()):
        opened = database()
        _check_agent(opened, agent)
        with workbench(opened, home(), settings, progress.say, progress.step) as (measuring, _):
            id = begin(opened, settings, progress.say)
            state = run_cycle(measuring, id, progress.say)
    done = {"id": id, "analysis": state["analysis"], "promoted": state["promoted"]}
    if as_json:
        print(json.dumps(done, indent=2))
    else:
        print(f"cycle {id}: {len(done['promoted'])} adapters promoted; `trace-sdk status` shows what serves")


def _check_agent(opened: Database, agent: str) -> None:
    from loop.analysis.history import agents

    known = agents(opened)
    if agent not in known:
        fix = f"Known agents: {', '.join(known)}." if known else "Record some runs with @trace.agent first."
        raise TraceError(f"no runs of an agent called {agent!r}", where=opened.location, fix=fix)
