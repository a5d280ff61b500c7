"""`analyze`: from an agent's recorded runs to the capabilities that it lacks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from loop.analysis.contrast import LACKING, Contrast, Labels, Thresholds, contained, contrast, same_runs
from loop.analysis.detectors import DETECTORS
from loop.analysis.labelling import Candidate, label_runs, task_of
from loop.analysis.labels import Detector
from loop.analysis.view import ToolBooks
from loop.triage import HarnessProblem, triage
from storage.database import Database
from storage.errors import TraceError
from storage.trajectories import load
from storage.trajectory import Trajectory

MERGED = 0.8
EXAMPLES = 5


class Group(NamedTuple):
    """What must not be mixed: runs of one model, policy and agent version."""

    model: str | None
    policy: str | None
    version: str | None


@dataclass(frozen=True, slots=True)
class Finding:
    """One capability with its contrast. ``merged_into`` names the finding whose runs it shares, if it does."""

    id: str
    candidate: Candidate
    contrast: Contrast
    merged_into: str | None = None

    def to_json(self, ids: Sequence[str], failed: Sequence[bool]) -> dict[str, Any]:
        """The row of `analyze --json`."""
        c, d = self.contrast, self.candidate.detector
        return {
            "id": self.id,
            "name": d.name,
            "description": d.description,
            "source": self.candidate.source,
            "detector": d.id,
            "hint": d.hint,
            "coverage": c.coverage,
            "coverage_ci": list(c.coverage_ci),
            "gap": c.gap,
            "gap_ci": list(c.gap_ci) if c.gap_ci is not None else None,
            "stratified_gap": c.stratified_gap,
            "stratified_ci": list(c.stratified_ci) if c.stratified_ci is not None else None,
            "strata": c.strata,
            "lacking_failed": _count(c.lacking_failed),
            "present_failed": _count(c.present_failed),
            "na_failed": _count(c.na_failed),
            "lacking_succeeded": _count(c.lacking_succeeded),
            "present_succeeded": _count(c.present_succeeded),
            "na_succeeded": _count(c.na_succeeded),
            "missing": _count(c.missing),
            "passes_kept": c.passes_kept,
            "agreement": c.agreement,
            "p_adjusted": c.p_adjusted,
            "more_runs": c.more_runs,
            "selected": c.selected,
            "undecided": c.undecided,
            "reason": c.reason,
            "merged_into": self.merged_into,
            "examples": self._examples(ids, failed),
        }

    def _examples(self, ids: Sequence[str], failed: Sequence[bool]) -> list[dict[str, Any]]:
        found = [
            {"trajectory": id, "step": label.step, "message": label.message, "evidence": label.evidence}
            for id, fails, label in zip(ids, failed, self.candidate.cited, strict=True)
            if fails and label is not None and label.value == "LACKING"
        ]
        # A run that called nothing has no step to show; the others make better examples.
        return sorted(found, key=lambda e: e["step"] is None)[:EXAMPLES]


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
    detectors: Sequence[Detector] = DETECTORS,
    seed: int = 0,
    save: bool = True,
) -> AnalysisReport:
    """Analyse an agent's runs in the database and, unless ``save`` is False, keep what was found in one transaction.

    ``model``, ``policy`` and ``version`` restrict the runs; of those that are left, the group of one model, policy
    and version with most known outcomes is contrasted. Raises TraceError for an agent that has no runs.
    """
    from loop.analysis import history

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
        and (policy is None or run.policy == policy)
        and (version is None or run.version == version)
    ]
    if not wanted:
        raise TraceError(f"{agent!r} has no runs of that model, policy or version", where=db.location)
    report = analyze_runs(agent, wanted, thresholds=thresholds, detectors=detectors, seed=seed)
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
    seed: int = 0,
) -> AnalysisReport:
    """The same on trajectories in memory; pure. Ids of findings are those of their detectors."""
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
    candidates = label_runs(usable, detectors, alike, books=books)
    success = np.array([bool(run.success) for run in usable], dtype=bool)
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
        findings=_order(_merge(findings, success)),
        notes=tuple(_notes(usable, mine, group, others)),
    )


def _choose_group(runs: Sequence[Trajectory]) -> tuple[Group, tuple[tuple[Group, int], ...], list[Trajectory]]:
    """The group with most known outcomes; of equally large ones the most recent."""
    groups: dict[Group, list[Trajectory]] = defaultdict(list)
    for run in runs:
        groups[Group(run.model, run.policy, run.version)].append(run)
    if not groups:
        return Group(None, None, None), (), []

    def rank(item: tuple[Group, list[Trajectory]]) -> tuple[int, float]:
        members = item[1]
        return sum(run.success is not None for run in members), max(run.started_at for run in members)

    ordered = sorted(groups.items(), key=rank, reverse=True)
    chosen, members = ordered[0]
    return chosen, tuple((group, len(rest)) for group, rest in ordered[1:]), members


def _merge(findings: Sequence[Finding], success: np.ndarray) -> list[Finding]:
    """Of selected capabilities that are lacking in the same failures, keep the one that goes wrong first.

    What goes wrong later in the same runs is mostly its consequence: an agent that skips a look-up is refused, and
    then has something to repeat. A sequence rule is a special case, and gives way to any detector.
    """
    kept: list[Finding] = []
    merged: dict[str, Finding] = {}
    selected = [f for f in findings if f.contrast.selected]
    for finding in sorted(selected, key=_precedence):
        into = next((k for k in kept if _same_lack(finding.candidate.codes, k.candidate.codes, success)), None)
        if into is None and kept and finding.candidate.source != "detector":
            # A rule may say in the tools' words what several detectors say together.
            together = np.max([k.candidate.codes for k in kept], axis=0)
            if _same_lack(finding.candidate.codes, together, success):
                into = max(kept, key=lambda k: contained(finding.candidate.codes, k.candidate.codes, success)[0])
        if into is None:
            kept.append(finding)
            continue
        reason = f"lacking in the same runs as {into.candidate.detector.name!r}, which comes first"
        merged[finding.id] = replace(
            finding,
            contrast=replace(finding.contrast, selected=False, reason=reason),
            merged_into=into.id,
        )
    return [merged.get(f.id, f) for f in findings]


def _precedence(f: Finding) -> tuple[Any, ...]:
    return f.candidate.source != "detector", f.candidate.first_step, -(f.contrast.gap or 0.0), f.id


def _same_lack(later: Labels, earlier: Labels, success: np.ndarray) -> bool:
    if same_runs(later, earlier, success) >= MERGED:
        return True
    inside, outside = contained(later, earlier, success)
    return inside >= MERGED and outside <= inside / 2


def _order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    def rank(f: Finding) -> tuple[Any, ...]:
        c = f.contrast
        return not c.selected, c.undecided, -((c.gap or 0.0) * c.coverage if c.selected else (c.gap or -1.0)), f.id

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


def _count(value: float) -> int | float:
    return int(value) if float(value).is_integer() else round(value, 3)


def lacking_runs(finding: Finding, runs: Sequence[Trajectory]) -> list[Trajectory]:
    """The failed runs that a finding calls LACKING: the evidence that synthesis starts from."""
    return [r for r, code in zip(runs, finding.candidate.codes[0], strict=True) if code == LACKING and not r.success]
