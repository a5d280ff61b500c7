"""`trace-sdk analyze`: what does the agent lack?"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from loop.commands.context import database, home

if TYPE_CHECKING:
    from loop.analysis.analyst import Analyst
    from loop.analysis.analyze import AnalysisReport
    from loop.analysis.findings import Finding
    from storage.database import Database


def analyze(
    agent: str = typer.Option(..., "--agent", help="The agent's name."),
    passes: int = typer.Option(10, "--passes", min=1, help="Passes that a verdict is counted over."),
    passes_kept: int | None = typer.Option(
        None, "--passes-kept", min=1, help="Passes that must reach both thresholds; 80 % by default."
    ),
    gap: float = typer.Option(0.20, "--gap", min=0.0, max=1.0, help="Least contrastive gap."),
    coverage: float = typer.Option(0.10, "--coverage", min=0.0, max=1.0, help="Least share of failures."),
    model: str | None = typer.Option(None, "--model", help="Only runs of this model."),
    policy: str | None = typer.Option(None, "--policy", help="Only runs of this policy."),
    version: str | None = typer.Option(None, "--version", help="Only runs of this version of the agent."),
    analyst: str | None = typer.Option(None, "--analyst", help="A model (LiteLLM name) to label too."),
    api_base: str | None = typer.Option(None, "--api-base", help="Address of the analyst's server, if it is your own."),
    budget: float | None = typer.Option(None, "--budget", min=0.0, help="Most the analyst may cost, in dollars."),
    concurrency: int = typer.Option(8, "--concurrency", min=1, help="The analyst's calls at once."),
    seed: int = typer.Option(0, "--seed", help="Seed of the resampling."),
    as_json: bool = typer.Option(False, "--json", help="One JSON document on stdout."),
) -> None:
    """Contrast failures with successes and name the capabilities that the agent lacks."""
    from loop.analysis.analyze import analyze as run_analysis
    from loop.analysis.contrast import Thresholds

    if passes_kept is not None and passes_kept > passes:
        raise typer.BadParameter(f"{passes_kept} of {passes} passes cannot be kept", param_hint="--passes-kept")
    thresholds = Thresholds.of(gap, coverage, passes)
    if passes_kept is not None:
        thresholds = replace(thresholds, passes_kept=passes_kept)
    with database() as db:
        report = run_analysis(
            db,
            agent,
            thresholds=thresholds,
            model=model,
            policy=policy,
            version=version,
            analyst=_analyst(db, agent, analyst, api_base, budget, concurrency) if analyst else None,
            seed=seed,
        )
    print(json.dumps(report.to_json(), indent=2) if as_json else render(report))


def _analyst(
    db: Database, agent: str, model: str, api_base: str | None, budget: float | None, concurrency: int
) -> Analyst:
    from loop.analysis import history
    from loop.analysis.analyst import Analyst, LiteLLMClient

    client = LiteLLMClient(model, api_base=api_base)
    return Analyst(client, home() / "analyst", budget, concurrency, history.proposals(db, agent))


def render(report: AnalysisReport) -> str:
    """What a person reads: the counts, the verdict, a line for each capability, and what was not the agent's fault."""
    counts = report.counts
    lines = [
        f"{report.agent}: {counts['failed']} failed, {counts['succeeded']} succeeded, {counts['unknown']} unknown, "
        f"{counts['excluded']} excluded, {counts['reference']} reference"
    ]
    lines += [f"  note: {note}" for note in report.notes]
    lines += [
        f"  not the agent's fault ({len(p.trajectories)} runs, {p.boundary}): {p.description}" for p in report.problems
    ]
    shown = [f for f in report.findings if f.contrast.lacking_failed or f.contrast.lacking_succeeded]
    lines.append(report.conclusion)
    if shown:
        width = max(len(f.candidate.detector.name) for f in shown)
        head = f"{'capability':<{width}} {'coverage':>8} {'gap':>6}  {'95 %':<15} {'in tasks':>8} {'kept':>5}  verdict"
        lines += ["", f"  {head}", *(_line(f, report.thresholds.passes, width) for f in shown)]
    for finding in report.selected:
        lines.append("")
        lines.append(f"  {finding.candidate.detector.name}: {finding.candidate.detector.description}")
        examples = finding.to_json([r.id for r in report.runs], [r.success is False for r in report.runs])["examples"]
        lines += [f"    {e['trajectory']} step {e['step']}: {e['evidence']}" for e in examples[:3]]
    return "\n".join(lines)


def _line(finding: Finding, passes: int, width: int) -> str:
    c = finding.contrast
    gap = f"{c.gap:.2f}" if c.gap is not None else "–"
    interval = f"[{c.gap_ci[0]:.2f}, {c.gap_ci[1]:.2f}]" if c.gap_ci else "–"
    within = f"{c.stratified_gap:.2f}" if c.stratified_gap is not None else "–"
    verdict = "SELECTED" if c.selected else "undecided" if c.undecided else "no"
    more = f" (about {c.more_runs} more runs would settle it)" if not c.selected and c.more_runs else ""
    why = "" if c.selected else f": {c.reason}{more}"
    numbers = f"{c.coverage:>8.2f} {gap:>6}  {interval:<15} {within:>8} {c.passes_kept:>2}/{passes:<2}"
    return f"  {finding.candidate.detector.name:<{width}} {numbers}  {verdict}{why}"
