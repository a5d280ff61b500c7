"""What a cycle is run with, declared in one place."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from loop.promotion import GateSettings
from loop.training.steps import GRPOSettings


@dataclass(frozen=True, slots=True)
class WarmStart:
    """Supervised tuning on verified reference solutions before GRPO. ``solutions`` 0: none.

    Kept weak on purpose: what it reaches is measured on its own, and GRPO has to add to it.
    """

    solutions: int = 16
    steps: int = 4
    batch: int = 4
    learning_rate: float = 1e-3
    first_layer: int = 0
    """Blocks before it get no LoRA, also not in the GRPO that goes on from it: a cheaper backward pass."""


@dataclass(frozen=True, slots=True)
class CalibrationSettings:
    """How many tasks, each how often, tell whether the environment suits the policy that is about to be trained.

    ``turn``: turn an induced environment's knobs until it does, each setting measured with as many tasks. With a few
    tasks that would follow chance.
    """

    tasks: int = 12
    repeats: int = 4
    turn: bool = True


@dataclass(frozen=True, slots=True)
class CycleSettings:
    """One cycle of one agent on one served base model.

    ``target``: MODULE:NAME of the team's ``@trace.evaluation``, run by ``target_python`` in ``target_cwd`` with
    ``target_environment`` added to its environment.
    ``fit_tasks`` / ``gate_tasks``: how many tasks of the train split fit the router, and of the gate split decide.
    ``max_capabilities``: how many of the selected capabilities are trained, the most worthwhile first.
    """

    agent: str
    model: Path
    target: str
    target_cwd: Path
    target_python: str
    target_environment: tuple[tuple[str, str], ...] = ()
    concurrency: int = 16
    max_capabilities: int = 1
    fit_tasks: int = 24
    gate_tasks: int = 24
    warm_start: WarmStart = field(default_factory=WarmStart)
    calibration: CalibrationSettings = field(default_factory=CalibrationSettings)
    training: GRPOSettings = field(default_factory=GRPOSettings)
    gate: GateSettings = field(default_factory=GateSettings)
    seed: int = 0

    def to_json(self) -> dict[str, Any]:
        """What is stored with the cycle; environment values are not, they may be secrets."""
        raw = asdict(self)
        raw["model"], raw["target_cwd"] = str(self.model), str(self.target_cwd)
        raw["target_environment"] = sorted(name for name, _ in self.target_environment)
        return raw
