"""What a cycle is run with, declared in one place."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from loop.promotion import GateSettings


@dataclass(frozen=True, slots=True)
class WarmStart:
    """Supervised tuning on verified reference solutions before GRPO. ``solutions`` 0: none."""

    solutions: int = 16
    steps: int = 4
    batch: int = 4
    lr: float = 1e-3


@dataclass(frozen=True, slots=True)
class Training:
    """GRPO: ``steps`` optimizer steps, each on ``groups`` groups of ``group_size`` rollouts of one task."""

    steps: int = 6
    groups: int = 4
    group_size: int = 8
    lr: float = 3e-4
    temperature: float = 1.0


@dataclass(frozen=True, slots=True)
class CycleSettings:
    """One cycle of one agent on one served base model.

    ``target``: MODULE:FUNCTION of the team's ``@trace.evaluation``; it is run by ``target_python`` in ``target_cwd``.
    ``fit_tasks`` / ``gate_tasks``: how many tasks of the train split fit the router, and of the gate split decide.
    ``max_capabilities``: how many of the selected capabilities are taken up, those with most failures first.
    """

    agent: str
    model: Path
    target: str
    target_cwd: Path
    target_python: str
    concurrency: int = 16
    max_capabilities: int = 1
    fit_tasks: int = 24
    gate_tasks: int = 24
    warm_start: WarmStart = field(default_factory=WarmStart)
    training: Training = field(default_factory=Training)
    gate: GateSettings = field(default_factory=GateSettings)
    seed: int = 0
