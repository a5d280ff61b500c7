"""`trace-sdk capabilities`: what was found lacking, and since when."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import typer

from loop.commands.context import database

app = typer.Typer(no_args_is_help=True, help="The capabilities found so far, and their history.")

_AGENT = typer.Option(None, "--agent", help="Only this agent's.")
_JSON = typer.Option(False, "--json", help="One JSON document on stdout.")


@app.command("list")
def list_(agent: str | None = _AGENT, as_json: bool = _JSON) -> None:
    """Every capability with what the latest analysis measured, those selected first."""
    from loop.analysis import history

    with database() as db:
        rows = history.capabilities(db, agent)
    if as_json:
        print(json.dumps({"capabilities": rows}, indent=2))
        return
    if not rows:
        print("no capabilities yet: run `trace-sdk analyze --agent NAME`")
        return
    print(f"{'agent':<16} {'capability':<38} {'coverage':>8} {'gap':>6}  {'state':<10} lacking since")
    for row in rows:
        print(
            f"{row['agent'][:16]:<16} {row['name'][:38]:<38} {_rate(row['coverage']):>8} {_rate(row['gap']):>6}  "
            f"{row['state']:<10} {_day(row['selected_since'])}"
        )


@app.command("show")
def show(
    name: str = typer.Argument(help="Name, id or detector of a capability."),
    agent: str | None = _AGENT,
    as_json: bool = _JSON,
) -> None:
    """One capability: gap and coverage over time, with adapters, decisions and promotions on the same axis."""
    from loop.analysis import history

    with database() as db:
        found = history.show(db, history.find(db, name, agent))
    if as_json:
        print(json.dumps(found, indent=2))
        return
    print(f"{found['name']} ({found['agent']}, {found['state']})\n{found['description']}\n")
    for event in found["history"]:
        print(f"{_day(event['at'])}  {_describe(event)}")


def _describe(event: dict[str, Any]) -> str:
    if event["event"] == "analysis":
        interval = f" [{event['gap_ci'][0]:.2f}, {event['gap_ci'][1]:.2f}]" if event["gap_ci"] else ""
        of = " · ".join(str(event[k]) for k in ("model", "policy", "version") if event[k])
        verdict = "selected" if event["selected"] else "undecided" if event["undecided"] else "not selected"
        return f"gap {_rate(event['gap'])}{interval}, coverage {_rate(event['coverage'])}, {verdict}  {of}".rstrip()
    if event["event"] == "adapter":
        return f"adapter {event['adapter']} trained, {event['state']}"
    if event["event"] == "promotion":
        return f"policy {event['policy']} with {', '.join(event['adapters'])} began to serve; now {event['state']}"
    return f"gate: {event['adapter']} {event['verdict']}: {event['reason']}"


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _day(at: float | None) -> str:
    return "–" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")
