"""`@trace.evaluation`: how a team's agent is run on tasks, by `python -m trace_sdk.runner`."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Evaluation(Protocol):
    """The tasks of a split, and how one is run. A task is a JSON value; splits are train, gate and report."""

    def suite(self, split: str) -> list[Any]: ...

    def run(self, task: Any) -> Any:
        """Run the agent on the task. A bool, a score in 0..1, an `Outcome`, or None when nobody can tell."""
        ...


def evaluation(target: T) -> T:
    """Mark a class or an object with ``suite(split)`` and ``run(task)`` as an evaluation; returns it unchanged.

    Raises TypeError when one of the two is missing.

        @trace.evaluation
        class Desk:
            def suite(self, split): return [{"question": "..."}]
            def run(self, task): return answer(task["question"]) == "..."
    """
    missing = [name for name in ("suite", "run") if not callable(getattr(target, name, None))]
    if missing:
        raise TypeError(f"@trace.evaluation: {target!r} has no {' and no '.join(missing)}")
    return target
