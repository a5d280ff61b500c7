"""`trace-sdk evaluate`: measure what serves on a task suite, or recompute a report from the database."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from loop.commands.context import database, home
from loop.commands.progress import Progress
from storage.errors import TraceError

if TYPE_CHECKING:
    from loop.evaluation import Split


def evaluate(
    report: bool = typer.Option(False, "--report", help="Recompute the latest cycle's report; measures nothing."),
    cycle: str = typer.Option("", help="With --report: the cycle, instead of the latest."),
    agent: str = typer.Option("", help="Name of the agent."),
    target: str = typer.Option("", help="MODULE:NAME of the @trace.evaluation."),
    target_cwd: Path = typer.Option(Path("."), help="Folder that the target runs in."),
    target_python: str = typer.Option(sys.executable, help="Python of the target's environment."),
    model: Path = typer.Option(Path(), help="Folder of the served base model."),
    split: str = typer.Option("report", help="train, gate or report."),
    capability: str | None = typer.Option(None, "--capability", help="Also: how far each arm lacks this capability."),
    tasks: int = typer.Option(40, min=1, help="How many tasks of the split."),
    as_json: bool = typer.Option(False, "--json", help="One JSON document on stdout."),
) -> None:
    """Measure the policy that serves, beside base, on the target's own tasks; what was measured isn't run again."""
    if report:
        _report(cycle, as_json)
        return
    if not agent or not target or model == Path():
        raise typer.BadParameter("give --agent, --target and --model, or --report")
    if split not in ("train", "gate", "report"):
        raise typer.BadParameter(f"{split!r} is not train, gate or report", param_hint="--split")
    from loop.analysis import history, served
    from loop.cycle.settings import CycleSettings
    from loop.cycle.workbench import evaluate_serving

    progress = Progress()
    settings = CycleSettings(
        agent=agent, model=model, target=target, target_cwd=target_cwd, target_python=target_python
    )
    opened = database()
    wanted = history.find(opened, capability, agent) if capability else None
    if wanted is not None:
        served.detector_of(wanted)  # what cannot be measured is said before anything runs
    results = evaluate_serving(opened, home(), settings, cast("Split", split), tasks, progress.say, progress.step)
    lacks = {r.arm: served.lack(opened, wanted, r.evaluation) for r in results} if wanted is not None else {}
    if as_json:
        document: dict[str, Any] = {"split": split, "arms": {r.arm: r.summary() for r in results}}
        print(json.dumps(document | ({"capability": lacks} if lacks else {}), indent=2))
        return
    for result in results:
        low, high = result.ci
        print(f"{result.arm:<10} {result.successes}/{result.n} solved, {result.success:.0%} ({low:.0%} – {high:.0%})")
    for arm, row in lacks.items():
        gap = f"gap {row['gap']:.2f}" if row["gap"] is not None else "no gap"
        print(f"{arm:<10} {row['name']}: {gap}, coverage {row['coverage']:.2f}; {row['reason']}")


def _report(cycle: str, as_json: bool) -> None:
    from loop import reports

    opened = database(ingest=False)
    chosen = cycle or reports.latest_cycle(opened).id
    built = reports.build(opened, chosen)
    if not built["arms"]:
        raise TraceError(f"cycle {chosen} measured no arm on the report split", where=opened.location)
    print(json.dumps(built, indent=2) if as_json else reports.render(built))
