"""A capability with what the contrast says of it; and which of several findings are one lack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loop.analysis.contrast import LACKING, Contrast, Labels
from loop.analysis.labelling import Candidate

MERGED = 0.8
EXAMPLES = 5


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
            "detector": self.candidate.detector_id,
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


def merge(findings: Sequence[Finding], success: NDArray[np.bool_]) -> list[Finding]:
    """Of selected capabilities that are lacking in the same failures, keep the one that goes wrong first.

    What goes wrong later in the same runs is mostly its consequence: an agent that skips a look-up is refused, and
    then has something to repeat. A sequence rule is a special case, and gives way to any detector.
    """
    kept: list[Finding] = []
    merged: dict[str, Finding] = {}
    selected = [f for f in findings if f.contrast.selected]
    for finding in sorted(selected, key=_precedence):
        into = next((k for k in kept if _same_lack(finding.candidate.codes, k.candidate.codes, success)), None)
        if into is None and kept and finding.candidate.source == "sequence rule":
            # A rule may say in the tools' words what several detectors say together.
            together = np.max([k.candidate.codes[:1] for k in kept], axis=0)
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
    # "A before B" is asked where B is called, which is nearer to the lack than "B after A".
    after = f.candidate.source == "sequence rule" and f.candidate.detector.id.endswith(":after")
    return f.candidate.source == "sequence rule", after, f.candidate.first_step, -(f.contrast.gap or 0.0), f.id


def _same_lack(later: Labels, earlier: Labels, success: NDArray[np.bool_]) -> bool:
    inside, outside = contained(later, earlier, success)
    return inside >= MERGED and outside <= inside / 2


def contained(inner: Labels, outer: Labels, success: NDArray[np.bool_]) -> tuple[float, float]:
    """How often ``outer`` is LACKING in the failures where ``inner`` is, and in those where it isn't.

    The second number is what chance would give: a lack that nearly every failure has contains any other.
    """
    a = (inner[0] == LACKING) & ~success
    b = (outer[0] == LACKING) & ~success
    rest = ~success & ~a
    inside = float(b[a].mean()) if a.any() else 0.0
    outside = float(b[rest].mean()) if rest.any() else 0.0
    return inside, outside


def _count(value: float) -> int | float:
    return int(value) if float(value).is_integer() else round(value, 3)
