"""`trace-sdk feedback`: how a run ended, said by whoever knows it, also days later."""

from __future__ import annotations

import typer

from loop.commands.context import database, require_known
from loop.commands.output import outcome, print_json
from loop.commands.trajectories import Verdict


def feedback(
    id: str = typer.Argument(help="Id of a run."),
    verdict: Verdict = typer.Argument(help="How it ended."),
    score: float | None = typer.Option(None, "--score", min=0.0, max=1.0, help="How well, 0 to 1."),
    reason: str | None = typer.Option(None, "--reason", help="Why, in your words."),
    source: str = typer.Option("user", "--source", help="Who says so."),
    as_json: bool = typer.Option(False, "--json", help="One JSON document on stdout."),
) -> None:
    """Say how a recorded run ended. All verdicts are kept; the latest counts."""
    from storage import overview, trajectories

    success = {Verdict.success: True, Verdict.failure: False, Verdict.unknown: None}[verdict]
    with database() as db:
        require_known(db, [id])
        trajectories.add_outcome(db, id, success, score, source, reason)
        history = trajectories.outcomes(db, id)
    if as_json:
        print_json(
            {
                "id": id,
                "success": history[-1].success,
                "score": history[-1].score,
                "outcomes": [overview.verdict(o) for o in history],
            }
        )
        return
    before = f", before that {outcome(history[-2].success)}" if len(history) > 1 else ""
    print(f"{id}: {outcome(history[-1].success)}{before}")
