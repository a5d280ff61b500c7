"""A detector as admission needs it: a label for an episode's messages, and the lapse of a solution."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.admission import Mutate
from loop.analysis.labels import Detector, LapseContext
from storage.trajectory import Trajectory, message_from_dict

Json = Any


def labeler(detector: Detector) -> Callable[[Sequence[Mapping[str, Json]], Sequence[Mapping[str, Json]]], str]:
    """(messages, tools) → the detector's label of that episode."""

    def label(messages: Sequence[Mapping[str, Json]], tools: Sequence[Mapping[str, Json]]) -> str:
        run = Trajectory("episode", "", tuple(message_from_dict(m) for m in messages), tuple(tools))
        return detector.label(run).value

    return label


def lapser(detector: Detector, tools: Sequence[Mapping[str, Json]]) -> Mutate:
    """The detector's mutation of a solution, for admission; ``tools`` are the target's."""
    return lambda acts, task: detector.lapse(acts, LapseContext(task.messages, tools))
