"""`trace-sdk status`: where everything stands, on one screen."""

from __future__ import annotations

from typing import Any

import typer

from loop.commands.context import database, home
from loop.commands.output import moment, print_json, table


def status(as_json: bool = typer.Option(False, "--json", help="One JSON document on stdout.")) -> None:
    """What was recorded, found, trained and is being served."""
    from storage import overview

    with database() as db:
        document = overview.status(db, home())
    if as_json:
        print_json(document)
        return
    print(f"home      {document['home']}\ndatabase  {document['database']}")
    spool = document["spool"]
    waiting = f"{spool['segments']} open segments, {spool['bytes']:,} bytes, all read"
    print(f"spool     {waiting if spool['segments'] else 'empty'}")
    if spool["broken"]:
        print(f"          {spool['broken']} files with unreadable lines, kept as *.jsonl.broken")
    _agents(document["agents"])
    _found(document)


def _agents(agents: list[dict[str, Any]]) -> None:
    print()
    if not agents:
        print("nothing recorded yet: decorate an agent with @trace.agent, or run `trace-sdk import`")
        return
    counts = ("trajectories", "succeeded", "failed", "unknown", "reference")
    rows = [[a["id"], *(str(a[c]) for c in counts), moment(a["last_at"])] for a in agents]
    table(rows, ["agent", *counts, "last"])


def _found(document: dict[str, Any]) -> None:
    print()
    capabilities = [f"{c['name']} ({c['agent']}, {c['state']})" for c in document["capabilities"]]
    adapters = [f"{a['name']} ({a['state']})" for a in document["adapters"]]
    policy, cycle = document["policy"], document["last_cycle"]
    print(f"capabilities  {', '.join(capabilities) or 'none yet: `trace-sdk analyze --agent NAME`'}")
    print(f"adapters      {', '.join(adapters) or 'none yet'}")
    if policy:
        parts = ", ".join(policy["adapters"] or []) or "no adapters"
        print(
            f"policy        {policy['version']}: {policy['base']} with {parts}, since {moment(policy['activated_at'])}"
        )
    else:
        print("policy        none active")
    if cycle:
        stage = f" in {cycle['stage']}" if cycle["stage"] and cycle["ended_at"] is None else ""
        print(f"last cycle    {cycle['agent']}: {cycle['state']}{stage}, begun {moment(cycle['started_at'])}")
    else:
        print("last cycle    none yet")
