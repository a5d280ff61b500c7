"""Running the detectors: every run is read once, labelled by all, and what a label cites is checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from loop.analysis.contrast import LACKING, MISSING, NA, PRESENT, Labels
from loop.analysis.detectors.sequence import Rule, cross_fit
from loop.analysis.labels import Detector, Label, is_valid
from loop.analysis.view import ToolBooks, View
from storage.trajectory import Trajectory

CODES = {"NA": NA, "PRESENT": PRESENT, "LACKING": LACKING}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A capability with its labels. ``codes`` is (passes, runs): one pass for detectors, which have no noise.

    ``cited`` has the labels of the first pass, None where missing; ``rounds`` those of all passes, if several.
    """

    detector: Detector
    codes: Labels
    cited: tuple[Label | None, ...]
    source: str = "detector"
    rounds: tuple[tuple[Label | None, ...], ...] = ()

    @property
    def detector_id(self) -> str | None:
        """The id under which `detectors.find` knows it; None where a model labelled it."""
        return None if self.source == "llm" else self.detector.id

    @property
    def first_step(self) -> float:
        """Where in a run it is typically lacking first: the mean cited message, infinite if never lacking."""
        at = [c.message for c in self.cited if c is not None and c.value == "LACKING" and c.message is not None]
        return float(np.mean(at)) if at else float("inf")


def label_runs(
    runs: Sequence[Trajectory],
    detectors: Sequence[Detector],
    references: Iterable[Trajectory] = (),
    *,
    rules: bool = True,
    books: ToolBooks | None = None,
) -> list[Candidate]:
    """Label all runs with all detectors, and with the sequence rules that the runs themselves give."""
    books = books or ToolBooks()
    views = [View.of(run, books) for run in runs]
    found = [_with_detector(detector, views) for detector in detectors]
    if rules:
        tasks = [task_of(run) for run in runs]
        called = [[a.tool for a in view.actions] for view in views]
        fitted = cross_fit(
            [(task, run.success, names) for task, run, names in zip(tasks, runs, called, strict=True)],
            [[step.call.name for step in reference.steps()] for reference in references],
        )
        found += [_with_rule(rule, views, [allowed(task) for task in tasks]) for rule, allowed in fitted.items()]
    return found


def task_of(run: Trajectory) -> str:
    """What runs are clustered by: the task, else the run itself."""
    return run.task if run.task is not None else run.id


def _with_detector(detector: Detector, views: Sequence[View]) -> Candidate:
    return _candidate(detector, [_checked(detector.look(view), view) for view in views])


def _with_rule(rule: Rule, views: Sequence[View], allowed: Sequence[bool]) -> Candidate:
    labels = [rule.look(view) if may else None for view, may in zip(views, allowed, strict=True)]
    return _candidate(rule.detector(), labels, "sequence rule")


def _checked(label: Label, view: View) -> Label | None:
    return label if is_valid(label, view) else None


def _candidate(detector: Detector, labels: Sequence[Label | None], source: str = "detector") -> Candidate:
    return Candidate(detector, encode([labels]), tuple(labels), source)


def encode(rounds: Sequence[Sequence[Label | None]]) -> Labels:
    """Labels as the contrast reads them, (passes, runs)."""
    rows = [[MISSING if label is None else CODES[label.value] for label in labels] for labels in rounds]
    return np.array(rows, dtype=np.int8)
