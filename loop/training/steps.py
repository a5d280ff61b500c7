"""What a GRPO run is asked for and what it reports. Free of torch, so that commands can read it quickly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class GRPOSettings:
    """A step runs ``groups_per_step`` tasks, each ``group_size`` times, and makes one optimizer step.

    ``resample_rounds``: how often groups of equal rewards are replaced by other tasks before the step goes on with
    fewer. ``max_tokens`` bounds one reply, ``max_context`` a whole episode (tokens). ``clip`` bounds the probability
    ratio to 1 ± clip. ``train_size``: how many episodes of a group carry the gradient, those whose rewards differ
    most; 0 for all. Fewer make the training half of a step cheaper by their share. ``learning_rate`` falls linearly
    over the steps. ``scale_rewards``: by which deviation advantages are divided; by the batch's, because a group
    whose rewards differ by a hundredth would else pull as hard as one in which half is solved. ``late``: the share of
    tasks whose episodes begin inside the reference solution (`harness.rollouts.acts_played`). ``guide``: a
    group in which no episode is solved gets the reference solution in the place of one of them (Yan et al. 2025,
    arXiv 2504.14945, put demonstrations into groups likewise). ``threads``: CPU threads of the trainer, 0 for all.
    """

    steps: int = 10
    groups_per_step: int = 4
    group_size: int = 8
    train_size: int = 0
    resample_rounds: int = 1
    learning_rate: float = 4e-4
    temperature: float = 1.0
    rank: int = 16
    max_turns: int = 6
    max_tokens: int = 80
    max_context: int = 2048
    concurrency: int = 32
    timeout: float = 120.0
    clip: float = 0.2
    loss: Literal["dapo", "grpo", "dr_grpo", "bnpo"] = "dapo"
    scale_rewards: Literal["group", "batch", "none"] = "batch"
    max_grad_norm: float = 1.0
    late: float = 0.5
    guide: bool = True
    share_prompts: bool = True
    threads: int = 0


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """One finished step. Reward and success are means over *all* episodes that were run, also those whose group
    was dropped; ``informative`` is the share of sampled groups with unequal rewards, ``used`` those in the gradient,
    ``guided`` those of them that hold a reference solution.

    ``adapter`` is the name the rollouts were served under, ``adapter_sha256`` its weights. ``logprob_difference``
    is the mean absolute difference per sampled token between server and trainer (nats): the noise floor in float32
    is below 0.001, in bfloat16 about 0.06; more means that they don't run the same weights. ``ratio_*`` and
    ``clipped`` (share of tokens) come from the same comparison. Times in seconds.
    """

    step: int
    adapter: str
    adapter_sha256: str
    reward: float
    success: float
    informative: float
    groups: int
    used: int
    rollouts: int
    turns: float
    prompt_tokens: int
    sampled_tokens: int
    faults: Mapping[str, int]
    seconds_rollouts: float
    seconds_training: float
    logprob_difference: float
    ratio_mean: float
    ratio_max: float
    clipped: float
    loss: float
    grad_norm: float
    learning_rate: float
    entropy: float
    guided: int = 0


@dataclass(frozen=True, slots=True)
class GRPOResult:
    """``sha256`` covers the adapter's weights and configuration (`harness.serving.adapters`); ``init_sha256`` is
    that of the adapter it was trained from, None for a fresh one."""

    adapter_path: Path
    sha256: str
    init_sha256: str | None
    steps: tuple[StepMetrics, ...] = field(default_factory=tuple)

    @property
    def informative_groups(self) -> float:
        """Share of all sampled groups whose rewards differed, 0..1."""
        groups = sum(s.groups for s in self.steps)
        return sum(s.informative * s.groups for s in self.steps) / groups if groups else 0.0

    @property
    def rollouts(self) -> int:
        return sum(s.rollouts for s in self.steps)

    @property
    def tokens(self) -> int:
        """Sampled tokens over all steps."""
        return sum(s.sampled_tokens for s in self.steps)

    @property
    def seconds(self) -> float:
        return sum(s.seconds_rollouts + s.seconds_training for s in self.steps)
