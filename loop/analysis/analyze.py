"""`analyze`: from an agent's recorded runs to the capabilities that it lacks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from harness.serving.policy import version_of
from loop.analysis.contrast import LACKING, Thresholds, contrast
from loop.analysis.detectors import DETECTORS, registered
from loop.analysis.findings import Finding, merge
from loop.analysis.labelling import label_runs, task_of
from loop.analysis.labels import Detector
from loop.analysis.view import ToolBooks, View
from loop.triage import HarnessProblem, triage
from storage.database import Database
from storage.errors import TraceError
from storage.trajectories import load
from storage.trajectory import Trajectory

if TYPE_CHECKING:
    from loop.analysis.analyst import Analyst


class Group(NamedTuple):
    """What must not be mixed: runs of one model, policy and agent version.

    ``policy`` is its version: which arm the router chose for a run is part of what the policy does.
    """

    model: str | None
    policy: str | None
    version: str | None


@dataclass(frozen=True, slots=True)
class AnalysisReport:
    """What one analysis found. ``runs`` are the contrasted ones; findings are ordered, those selected first."""

    agent: str
    group: Group
    other_groups: tuple[tuple[Group, int], ...]
    runs: tuple[Trajectory, ...]
    counts: dict[str, int]
    excluded: dict[str, int]
    thresholds: Thresholds
    problems: tuple[HarnessProblem, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    analysis: str | None = None

    @property
    def selected(self) -> tuple[Finding, ...]:
        """The capabilities to train, the most worthwhile first (gap × coverage)."""
        return tuple(f for f in self.findings if f.contrast.selected)

    @property
    def conclusion(self) -> str:
        """The verdict in one sentence: what is lacking, or why nothing is selected."""
        if self.selected:
            return f"lacks: {', '.join(f.candidate.detector.name for f in self.selected)}"
        seen = [f for f in self.findings if f.contrast.lacking_failed or f.contrast.lacking_succeeded]
        if not self.runs:
            why = "no runs with a known outcome are left to contrast"
        elif not self.counts["failed"]:
            why = "no run failed"
        elif not self.counts["succeeded"]:
            why = "no run succeeded, so there is nothing to contrast failures with"
        elif not seen:
            why = "nothing was seen lacking anywhere; what goes wrong is not in the form of the calls"
        elif all(f.contrast.undecided for f in seen):
            why = "too few runs to decide"
        else:
            why = "no capability is lacking in failures clearly more often than in successes"
        return f"nothing selected: {why}"

    def to_json(self) -> dict[str, Any]:
        """The document of `trace-sdk analyze --json`."""
        ids = [run.id for run in self.runs]
        failed = [run.success is False for run in self.runs]
        return {
            "agent": self.agent,
            "analysis": self.analysis,
            "group": self.group._asdict(),
            "other_groups": [{**group._asdict(), "trajectories": n} for group, n in self.other_groups],
            "trajectories": self.counts,
            "excluded": self.excluded,
            "passes": self.thresholds.passes,
            "thresholds": {
                "gap": self.thresholds.gap,
                "coverage": self.thresholds.coverage,
                "passes_kept": self.thresholds.passes_kept,
            },
            "harness_problems": [problem.to_json() for problem in self.problems],
            "conclusion": self.conclusion,
            "notes": list(self.notes),
            "capabilities": [finding.to_json(ids, failed) for finding in self.findings],
        }


def analyze(
    db: Database,
    agent: str,
    *,
    thresholds: Thresholds | None = None,
    model: str | None = None,
    policy: str | None = None,
    version: str | None = None,
    detectors: Sequence[Detector] | None = None,
    analyst: Analyst | None = None,
    seed: int = 0,
    save: bool = True,
) -> AnalysisReport:
    """Analyse an agent's runs in the database and, unless ``save`` is False, keep what was found in one transaction.

    ``model``, ``policy`` and ``version`` restrict the runs; of those that are left, the group of one model, policy
    and version with most known outcomes is contrasted. ``detectors``: all that are registered, unless given.
    ``analyst``: a model that labels beside the detectors. Raises TraceError for an agent that has no runs, and
    for an analyst that cannot go on; then nothing is kept.
    """
    from loop.analysis import history

    detectors = registered() if detectors is None else detectors
    runs = list(load(db, agent=agent))
    if not runs:
        known = history.agents(db)
        if not known:
            fix = "record some with @trace.agent, or bring some in with `trace-sdk import`"
            raise TraceError("the database has no runs", where=db.location, fix=fix)
        fix = f"known agents: {', '.join(known)}"
        raise TraceError(f"no runs of an agent called {agent!r}", where=db.location, fix=fix)
    wanted = [
        run
        for run in runs
        if (model is None or run.model == model)
        and (policy is None or policy in (run.policy, _policy_of(run)))
        and (version is None or run.version == version)
    ]
    if not wanted:
        raise TraceError(f"{agent!r} has no runs of that model, policy or version", where=db.location)
    report = analyze_runs(agent, wanted, thresholds=thresholds, detectors=detectors, analyst=analyst, seed=seed)
    # Runs that the filter left out belong to the agent too, and the counts add up to all of them.
    left_out = len(runs) - len(wanted)
    if left_out:
        counts = {**report.counts, "excluded": report.counts["excluded"] + left_out}
        report = replace(report, counts=counts, excluded={**report.excluded, "not asked for": left_out})
    return history.keep(db, report) if save else report


def analyze_runs(
    agent: str,
    runs: Iterable[Trajectory],
    *,
    thresholds: Thresholds | None = None,
    detectors: Sequence[Detector] = DETECTORS,
    analyst: Analyst | None = None,
    rules: bool = True,
    seed: int = 0,
) -> AnalysisReport:
    """The same on trajectories in memory; pure without an analyst. Ids of findings are those of their detectors.

    ``rules``: whether sequence rules are mined from these runs too.
    """
    thresholds = thresholds or Thresholds()
    everything = list(runs)
    references = [run for run in everything if run.reference]
    own = [run for run in everything if not run.reference]
    group, others, mine = _choose_group(own)
    books = ToolBooks()
    known = [run for run in mine if run.success is not None and run.status != "running"]
    triaged = triage(known, books)
    usable = [run for run in known if run.id not in triaged.spoiled]
    # References may come from a stronger model and another prompt; only those with the same tools show an order.
    names = {_tool_names(run) for run in usable}
    alike = [run for run in references if not run.tools or _tool_names(run) in names]
    candidates = label_runs(usable, detectors, alike, rules=rules, books=books)
    success = np.array([bool(run.success) for run in usable], dtype=bool)
    notes = _notes(usable, mine, group, others)
    if analyst is not None and usable:
        read = analyst.candidates([View.of(run, books) for run in usable], success, thresholds)
        notes.append(analyst.note(len(usable), len(read), thresholds.passes))
        candidates += read
    results = contrast([c.codes for c in candidates], success, [task_of(run) for run in usable], thresholds, seed=seed)
    findings = [Finding(c.detector.id, c, r) for c, r in zip(candidates, results, strict=True)]
    excluded = {
        "other model, policy or version": sum(n for _, n in others),
        "still running": sum(run.status == "running" for run in mine),
        "harness problem": len(triaged.spoiled),
    }
    unknown = sum(run.success is None and run.status != "running" for run in mine)
    return AnalysisReport(
        agent=agent,
        group=group,
        other_groups=others,
        runs=tuple(usable),
        counts={
            "failed": int((~success).sum()),
            "succeeded": int(success.sum()),
            "unknown": unknown,
            "excluded": sum(excluded.values()),
            "reference": len(references),
        },
        excluded={reason: count for reason, count in excluded.items() if count},
        thresholds=thresholds,
        problems=triaged.problems,
        findings=_order(merge(findings, success)),
        notes=tuple(notes),
    )


def _choose_group(runs: Sequence[Trajectory]) -> tuple[Group, tuple[tuple[Group, int], ...], list[Trajectory]]:
    """The group with most known outcomes; of equally large ones the most recent."""
    groups: dict[Group, list[Trajectory]] = defaultdict(list)
    for run in runs:
        groups[Group(run.model, _policy_of(run), run.version)].append(run)
    if not groups:
        return Group(None, None, None), (), []

    def rank(item: tuple[Group, list[Trajectory]]) -> tuple[int, float]:
        members = item[1]
        return sum(run.success is not None for run in members), max(run.started_at for run in members)

    ordered = sorted(groups.items(), key=rank, reverse=True)
    chosen, members = ordered[0]
    return chosen, tuple((group, len(rest)) for group, rest in ordered[1:]), members


def _policy_of(run: Trajectory) -> str | None:
    return version_of(run.policy) if run.policy else None


def _order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    def rank(f: Finding) -> tuple[Any, ...]:
        c = f.contrast
        # A rule names tools; what a detector says holds for other tools too, and is worth more to train.
        special = c.selected and f.candidate.source == "sequence rule"
        worth = (c.gap or 0.0) * c.coverage if c.selected else c.gap if c.gap is not None else -1.0
        return not c.selected, c.undecided, special, -worth, f.id

    return tuple(sorted(findings, key=rank))


def _notes(
    usable: Sequence[Trajectory],
    mine: Sequence[Trajectory],
    group: Group,
    others: Sequence[tuple[Group, int]],
) -> list[str]:
    """What a reader must know before trusting the numbers."""
    notes: list[str] = []
    if others:
        notes.append(
            f"analysed the {len(mine)} runs of {_describe(group)}; {sum(n for _, n in others)} runs of "
            f"{len(others)} other models, policies or versions were left out"
        )
    without = sum(not run.tools for run in usable)
    if without:
        notes.append(f"{without} of {len(usable)} runs have no tool schemas: what needs them is NA there")
    failed = sum(run.success is False for run in usable)
    if not failed:
        notes.append("no failed runs: there is nothing to explain")
    elif failed == len(usable):
        notes.append("no successful runs: without them a lack cannot be told from a task that nobody solves")
    counts = Counter(task_of(run) for run in usable)
    if len(counts) == 1 and len(usable) > 1:
        notes.append("all runs are of one task: intervals over tasks say nothing")
    return notes


def _describe(group: Group) -> str:
    parts = [f"{name} {value}" for name, value in group._asdict().items() if value is not None]
    return ", ".join(parts) or "no stated model, policy or version"


def _tool_names(run: Trajectory) -> frozenset[str]:
    return frozenset(str((tool.get("function") or tool).get("name")) for tool in run.tools)


def lacking_runs(finding: Finding, runs: Sequence[Trajectory]) -> list[Trajectory]:
    """The failed runs that a finding calls LACKING: the evidence that synthesis starts from."""
    return [r for r, code in zip(runs, finding.candidate.codes[0], strict=True) if code == LACKING and not r.success]
