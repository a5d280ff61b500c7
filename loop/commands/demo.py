"""`trace-sdk demo`: the whole loop, on this machine."""

from __future__ import annotations

import json

import typer

from loop.commands.context import home
from loop.commands.progress import Progress


def demo(
    full: bool = typer.Option(False, "--full", help="More tasks and more training steps: up to 75 minutes."),
    fresh: bool = typer.Option(False, "--fresh", help="Forget what earlier runs recorded, trained and measured."),
    seed: int = typer.Option(0, help="Seed of the training."),
    as_json: bool = typer.Option(False, "--json", help="The report as one JSON document on stdout."),
) -> None:
    """Record the example agent, find what it lacks, train it, gate it, hot-swap it, and measure the difference.

    Needs no GPU and no key. Interrupted, it goes on where it was; run again when it is done, it starts a new cycle.
    """
    from loop import reports
    from loop.demo.run import FULL, QUICK, run_demo

    progress = Progress()
    report = run_demo(home(), FULL if full else QUICK, fresh=fresh, say=progress.say, progress=progress.step, seed=seed)
    if as_json:
        print(json.dumps(report, indent=2))
        return
    print(reports.render(report))
    print(f"\n  database: {home() / 'trace.db'}   report: {home() / 'reports' / 'latest.json'}")
    if report["adapter"]:
        print(f"  adapter: {report['adapter']['name']} in {report['adapter']['path']}")
    print("\nTo look further:\n  trace-sdk status\n  trace-sdk capabilities list\n  trace-sdk adapters list")
