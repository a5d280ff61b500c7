"""`trace-sdk prune`: delete recorded runs, by age or because somebody asks for it."""

from __future__ import annotations

import re
import time

import typer

from loop.commands.context import database, require_known
from loop.commands.output import print_json

_UNITS = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


def prune(
    older_than: str | None = typer.Option(
        None, "--older-than", metavar="AGE", help="Known to have begun longer ago: 12h, 30d, 8w."
    ),
    user: str | None = typer.Option(None, "--user", help="Only this user's."),
    session: str | None = typer.Option(None, "--session", help="Only this conversation's."),
    ids: list[str] = typer.Option([], "--id", help="Only this run; may be given several times."),
    agent: str | None = typer.Option(None, "--agent", help="Only this agent's."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Say how many, delete nothing."),
    as_json: bool = typer.Option(False, "--json", help="One JSON document on stdout."),
) -> None:
    """Delete runs that match all that is given, with all that is stored of them, also from the spool.

    What was made from them (environments, adapters) stays and is named, so that you can decide.
    """
    from storage import overview, pruning

    before = time.time() - _age(older_than) if older_than is not None else None
    if before is None and not ids and user is None and session is None:
        raise typer.BadParameter("say which runs: --older-than, --user, --session or --id")
    # The spool is read in first: a run that is only there would come back with the next command.
    with database() as db:
        require_known(db, ids)
        found, running = pruning.matching(db, ids=ids, user=user, session=session, agent=agent, before=before)
        made = overview.made_from_runs(db, agent)
        done = pruning.Pruned(len(found), 0, 0, running) if dry_run else pruning.prune(db, found, running=running)
    if as_json:
        print_json(
            {
                "deleted": 0 if dry_run else done.trajectories,
                "matching": len(found),
                "running": running,
                "message_lists": done.message_lists,
                "tool_sets": done.tool_sets,
                "kept": made,
            }
        )
        return
    print(f"{done.trajectories} runs {'match' if dry_run else 'deleted'}")
    if running:
        print(f"{running} are still running and stay; run this again when they have ended")
    if found and made["environments"]:
        named = ", ".join(made["environments"])
        print(f"kept: environments {named}: requests in them were re-written from runs, with other names and values")


def _age(text: str) -> float:
    """Seconds of ``12h``, ``30d`` or ``8w``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([hdw])", text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is not an age like 12h, 30d or 8w", param_hint="--older-than")
    return float(match[1]) * _UNITS[match[2]]
