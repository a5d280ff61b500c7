"""The contract of a labeler: what a label is, and what a detector promises.

A detector is a small pure function from what the agent did to a label. It is *blind by construction*: it is given a
`View`, which holds messages and tools and has no outcome, score, error or status to look at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from harness.environment import Act
from loop.analysis.view import View
from storage.trajectory import Trajectory

Value = Literal["NA", "PRESENT", "LACKING"]


@dataclass(frozen=True, slots=True)
class Label:
    """One verdict. ``step`` is an index into `Trajectory.steps()`, ``message`` one into `Trajectory.messages`.

    A LACKING cites a message always, and a step wherever the run has one that shows it: a run that should have
    called a tool and never called any has no step to cite.
    """

    value: Value
    step: int | None = None
    message: int | None = None
    evidence: str = ""


NA = Label("NA")


@dataclass(frozen=True, slots=True)
class LapseContext:
    """What a lapse may know: the task's first messages, and the tools, both in chat form.

    A `harness.environment.Task` may stand in for it: then which tools change something is told from their names.
    """

    messages: Sequence[Mapping[str, Any]] = ()
    tools: Sequence[Mapping[str, Any]] = ()


# The second argument is a LapseContext or a Task.
Lapse = Callable[[Sequence[Act], Any], "Sequence[Act] | None"]


@dataclass(frozen=True, slots=True)
class Detector:
    """One capability that can be seen in what an agent does.

    ``hint`` is one sentence of advice that could stand in the agent's prompt. ``look`` labels a view. ``lapse``
    turns a good solution into one that lacks the capability, or answers None where the solution has no place for it.
    ``needs_schemas``: without tool schemas the label is NA.
    """

    id: str
    name: str
    description: str
    hint: str
    look: Callable[[View], Label]
    lapse: Lapse = field(repr=False)
    needs_schemas: bool = False

    def label(self, trajectory: Trajectory) -> Label:
        """Label one trajectory. To run many detectors on one trajectory, build its view once and use `look`."""
        return self.look(View.of(trajectory))


def is_valid(label: Label, view: View) -> bool:
    """Whether what a label cites exists. An invalid LACKING is void: missing, which is not NA."""
    if label.value != "LACKING":
        return True
    if label.step is not None:
        return 0 <= label.step < len(view.actions)
    return label.message is not None and 0 <= label.message < len(view.messages) and not view.actions
