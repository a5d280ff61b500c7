"""`trace-sdk adapters`: what was trained, from what, and who is served by it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

from loop.commands.context import database
from storage.errors import TraceError

if TYPE_CHECKING:
    from storage import tables
    from storage.database import Database

app = typer.Typer(no_args_is_help=True, help="The adapters that were trained, and where they came from.")

_JSON = typer.Option(False, "--json", help="One JSON document on stdout.")


@app.command("list")
def list_(
    state: str | None = typer.Option(None, help="Only adapters in this state: candidate, active, rejected, …"),
    as_json: bool = _JSON,
) -> None:
    """Every adapter, the newest first."""
    from sqlmodel import col, select

    from storage import tables

    with database() as db:
        query = select(tables.Adapter).order_by(col(tables.Adapter.created_at).desc())
        if state is not None:
            query = query.where(tables.Adapter.state == state)
        with db.session() as session:
            rows = [_fields(row) for row in session.exec(query)]
    if as_json:
        print(json.dumps({"adapters": rows}, indent=2))
        return
    if not rows:
        print("no adapters: `trace-sdk cycle` or `trace-sdk train` makes them")
    for row in rows:
        print(line(row))


@app.command("show")
def show(
    name: str = typer.Argument(help="`name@version`, an id, or a name for its newest version."), as_json: bool = _JSON
) -> None:
    """One adapter: its weights, what it was trained from, its training step by step, and the gate's decisions."""
    with database() as db:
        found = describe(db, _find(db, name))
    if as_json:
        print(json.dumps(found, indent=2))
        return
    print(line(found))
    print(f"  weights   {found['path']}\n  sha256    {found['sha256']}\n  base      {found['base']}")
    for ancestor in found["lineage"]:
        print(f"  from      {ancestor['adapter'] or 'unknown'} ({ancestor['sha256'][:12]})")
    for run in found["training"]:
        print(f"  {run['kind']:<9} {run['state']}, {len(run['steps'])} steps, {run['seconds'] / 60:.1f} min")
        for step in run["steps"]:
            reward = "–" if step["reward"] is None else f"{step['reward']:.2f}"
            success = "–" if step["success"] is None else f"{step['success']:.0%}"
            print(f"    step {step['step']:>3}  reward {reward}  solved {success:>4}  {step['seconds'] or 0:.0f} s")
    for decision in found["decisions"]:
        print(f"  gate      {decision['verdict']}: {decision['reason']}")


def line(row: dict[str, Any]) -> str:
    """One adapter in one line."""
    day = datetime.fromtimestamp(row["created_at"], UTC).strftime("%Y-%m-%d %H:%M")
    return f"{day}  {row['adapter']:<40} {row['state']:<11} rank {row['rank']:<3} {row['sha256'][:12]}"


def describe(db: Database, adapter: tables.Adapter) -> dict[str, Any]:
    """An adapter with its lineage (nearest first), its trainings and the gate's decisions on it."""
    from sqlmodel import col, select

    from storage import tables

    with db.session() as session:
        decisions = session.exec(
            select(tables.GateDecision)
            .where(tables.GateDecision.adapter == adapter.id)
            .order_by(col(tables.GateDecision.at))
        ).all()
        runs = session.exec(select(tables.TrainingRun).where(tables.TrainingRun.adapter == adapter.id)).all()
        training = []
        for run in runs:
            steps = session.exec(
                select(tables.TrainingStep)
                .where(tables.TrainingStep.run == run.id)
                .order_by(col(tables.TrainingStep.step))
            ).all()
            training.append(
                {
                    "id": run.id,
                    "kind": run.kind,
                    "state": run.state,
                    "seed": run.seed,
                    "seconds": sum(step.seconds or 0.0 for step in steps),
                    "config": run.config,
                    "steps": [
                        {
                            "step": step.step,
                            "reward": step.reward,
                            "success": (step.metrics or {}).get("success"),
                            "informative": step.informative_groups,
                            "seconds": step.seconds,
                        }
                        for step in steps
                    ],
                }
            )
        lineage = []
        parent, seen = adapter.parent_sha256, {adapter.sha256}
        while parent is not None and parent not in seen:
            seen.add(parent)
            row = session.exec(select(tables.Adapter).where(tables.Adapter.sha256 == parent)).first()
            lineage.append({"adapter": f"{row.name}@{row.version}" if row else None, "sha256": parent})
            parent = row.parent_sha256 if row else None
    return {
        **_fields(adapter),
        "lineage": lineage,
        "training": training,
        "decisions": [
            {"verdict": d.verdict, "reason": d.reason, "gain": d.gain, "gain_ci": [d.gain_low, d.gain_high], "at": d.at}
            for d in decisions
        ],
    }


def _fields(row: tables.Adapter) -> dict[str, Any]:
    return {
        "id": row.id,
        "adapter": f"{row.name}@{row.version}",
        "name": row.name,
        "version": row.version,
        "capability": row.capability,
        "environment": row.environment,
        "state": row.state,
        "rank": row.rank,
        "base": row.base,
        "path": row.path,
        "sha256": row.sha256,
        "parent_sha256": row.parent_sha256,
        "created_at": row.created_at,
    }


def _find(db: Database, key: str) -> tables.Adapter:
    from sqlmodel import col, or_, select

    from storage import tables

    table = tables.Adapter
    name, _, version = key.rpartition("@")
    with db.session() as session:
        query = select(table).where(or_(table.id == key, table.name == key))
        if version.isdigit():
            query = select(table).where(table.name == name, table.version == int(version))
        found = session.exec(query.order_by(col(table.version).desc())).first()
    if found is None:
        raise TraceError(
            f"no adapter is called {key!r}", where=db.location, fix="`trace-sdk adapters list` shows them."
        )
    return found
