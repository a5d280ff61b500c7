"""`trace-sdk trajectories`: recorded runs, as a list or one of them whole."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

import typer

from loop.commands.context import database
from loop.commands.output import moment, outcome, print_json, printable, table
from storage.errors import TraceError

if TYPE_CHECKING:
    from storage.database import Database

app = typer.Typer(no_args_is_help=True, help="List or show recorded runs.")

_JSON = typer.Option(False, "--json", help="One JSON document on stdout.")
_SHOWN = 50


class Verdict(StrEnum):
    """How a run ended, as it is said on the command line."""

    success = "success"
    failure = "failure"
    unknown = "unknown"


@app.command("list")
def list_(
    agent: str | None = typer.Option(None, "--agent", help="Only this agent's."),
    verdict: Verdict | None = typer.Option(None, "--outcome", help="Only runs that ended so."),
    reference: bool | None = typer.Option(None, "--reference/--no-reference", help="Only reference runs, or none."),
    session: str | None = typer.Option(None, "--session", help="Only this conversation's."),
    task: str | None = typer.Option(None, "--task", help="Only runs of this task."),
    limit: int | None = typer.Option(
        None, "--limit", min=1, help=f"At most so many; without --json {_SHOWN} if not given."
    ),
    as_json: bool = _JSON,
) -> None:
    """Runs, newest first, without their messages."""
    from storage import overview

    shown = limit if limit is not None or as_json else _SHOWN
    with database() as db:
        rows = overview.rows(
            db,
            agent=agent,
            outcome=verdict.value if verdict else None,
            reference=reference,
            session=session,
            task=task,
            limit=shown,
        )
    if as_json:
        print_json({"trajectories": rows})
        return
    if not rows:
        print("no trajectories match")
        return
    table(
        [
            [
                row["id"],
                row["agent"],
                printable(row["task"] or "–")[:32],
                row["status"],
                outcome(row["success"]) + (" (reference)" if row["reference"] else ""),
                str(row["messages"]),
                moment(row["started_at"]),
            ]
            for row in rows
        ],
        ["id", "agent", "task", "status", "outcome", "messages", "started"],
    )
    if limit is None and len(rows) == _SHOWN:
        print(f"… the newest {_SHOWN}; --limit shows more")


@app.command("show")
def show(
    id: str | None = typer.Argument(None, help="Id of a run."),
    session: str | None = typer.Option(None, "--session", help="Instead: all runs of a conversation, oldest first."),
    as_json: bool = _JSON,
) -> None:
    """Everything that is stored of one run, or of the runs of one conversation."""
    from storage import overview

    if (id is None) == (session is None):
        raise typer.BadParameter("give the id of a run, or --session", param_hint="ID")
    with database() as db:
        runs = [overview.whole(db, known) for known in ([id] if id is not None else _ids_of(db, str(session)))]
    if as_json:
        print_json(runs[0] if id is not None else {"session": session, "trajectories": runs})
        return
    for number, run in enumerate(runs):
        if number:
            print()
        _show(run)


def _ids_of(db: Database, session: str) -> list[str]:
    from storage import overview

    ids = [row["id"] for row in overview.rows(db, session=session)]
    if not ids:
        raise TraceError(
            "no runs of this session", where=session, fix="`trace-sdk trajectories list` shows what there is."
        )
    return ids[::-1]


def _show(run: dict[str, Any]) -> None:
    print(f"{run['id']}  {run['agent']}  {run['status']}, {outcome(run['success'])}  {moment(run['started_at'])}")
    hidden = {"id", "agent", "status", "success", "started_at", "messages", "calls", "events", "outcomes", "tools"}
    for name, value in run.items():
        if name not in hidden and value not in (None, [], {}, ""):
            print(f"  {name}: {printable(str(value))}")
    for verdict in run["outcomes"]:
        reason = f": {verdict['reason']}" if verdict["reason"] else ""
        score = f" ({verdict['score']:g})" if verdict["score"] is not None else ""
        said = f"{outcome(verdict['success'])}{score}, says {verdict['source']}{reason}"
        print(f"  outcome {moment(verdict['at'])}: {printable(said)}")
    names = [t.get("function", t).get("name") for t in run["tools"]]
    print(f"  tools: {', '.join(map(str, names)) or 'none'}\n")
    for position, message in enumerate(run["messages"]):
        _message(position, message)
    for call in run["calls"]:
        took = f"{call['latency']:.2f} s" if call["latency"] is not None else "–"
        failed = f"  {call['error'].get('type')}" if call["error"] else ""
        tokens = f"{call['prompt_tokens'] or '–'} + {call['completion_tokens'] or '–'} tokens"
        print(f"call {call['seq']}: {call['model']}  {call['policy'] or ''}  {tokens}  {took}{failed}")
    for event in run["events"]:
        print(f"{event['kind']} {moment(event['at'])}: {printable(str(event['data']))}")


def _message(position: int, message: dict[str, Any]) -> None:
    content = message.get("content")
    print(
        f"[{position}] {message.get('role')}: {printable(content if isinstance(content, str) else str(content or ''))}"
    )
    for call in message.get("tool_calls") or []:
        function = call.get("function") or {}
        print(f"      → {printable(str(function.get('name')))}({printable(str(function.get('arguments')))})")
