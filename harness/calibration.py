"""Calibration: is an environment as hard as it should be for the policy that will be trained in it?

Groups of episodes of one seed are what GRPO learns from: a group in which all rewards are equal teaches nothing.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from harness.checks import Check, at_least, at_most
from harness.environment import Environment
from harness.episodes import Policy, run_episode

Json = Any
Make = Callable[[], Environment]


@dataclass(frozen=True)
class Range:
    """What calibration aims at; shares of groups, and means of success and of the shaped reward."""

    low: float = 0.2
    high: float = 0.6
    deviation: float = 0.05
    informative: float = 0.5
    constant: float = 0.2


@dataclass(frozen=True)
class Calibration:
    """What one setting measured. ``deviation``: of rewards inside groups, the mean. ``informative``: groups whose
    rewards differ. ``all_success``, ``all_zero``: groups in which every episode is solved, or has no reward at all.
    ``faults``: episodes without a score, which are left out of the numbers.
    """

    setting: str
    groups: int
    group_size: int
    success: float
    mean_reward: float
    deviation: float
    informative: float
    all_success: float
    all_zero: float
    faults: int
    target: Range = field(default_factory=Range)

    @property
    def checks(self) -> tuple[Check, ...]:
        """What calibration is judged by, each with its number."""
        aim, at = self.target, f" at {self.setting}" if self.setting else ""
        detail = f"{self.groups} groups of {self.group_size}{at}, {self.faults} faults"
        inside = [
            Check(f"calibration_{n}", v, f"{aim.low:g}–{aim.high:g}", aim.low <= v <= aim.high, detail)
            for n, v in (("success", self.success), ("reward", self.mean_reward))
        ]
        return (
            *inside,
            at_least("calibration_deviation", self.deviation, aim.deviation),
            at_least("calibration_informative", self.informative, aim.informative),
            at_most("calibration_all_success", self.all_success, aim.constant),
            at_most("calibration_all_zero", self.all_zero, aim.constant),
        )

    @property
    def in_range(self) -> bool:
        return self.groups > 0 and all(check.passed for check in self.checks)

    def to_json(self) -> dict[str, Json]:
        return {**asdict(self), "in_range": self.in_range}


def calibrate(make: Make, policy: Policy, seeds: Sequence[int], *, repeats: int = 16, **playing: Any) -> Calibration:
    """Measure how hard the environment is for ``policy``: `measure`, for callers that are not asynchronous."""
    return asyncio.run(measure(make, policy, seeds, group_size=repeats, **playing))


async def measure(
    make: Make,
    policy: Policy,
    seeds: Sequence[int],
    *,
    group_size: int = 16,
    max_turns: int = 8,
    concurrency: int = 32,
    setting: str = "",
    target: Range | None = None,
) -> Calibration:
    """Play each seed ``group_size`` times. Faulty episodes are left out of the numbers and counted."""
    limits = target or Range()
    gate = asyncio.Semaphore(concurrency)

    async def one(seed: int) -> tuple[float, bool] | None:
        async with gate:
            episode = await run_episode(make(), seed, policy, max_turns=max_turns)
        return None if episode.score is None else (episode.score.shaped, episode.score.success)

    async def group(seed: int) -> list[tuple[float, bool] | None]:
        return list(await asyncio.gather(*(one(seed) for _ in range(group_size))))

    played = await asyncio.gather(*(group(seed) for seed in seeds))
    groups = [[e for e in g if e is not None] for g in played]
    groups = [g for g in groups if g]
    episodes = [e for g in groups for e in g]
    if not episodes:
        return Calibration(setting, 0, group_size, 0, 0, 0, 0, 0, 0, sum(map(len, played)), limits)
    spreads = [statistics.pstdev([r for r, _ in g]) for g in groups]
    numbers = {
        "success": sum(ok for _, ok in episodes) / len(episodes),
        "mean_reward": sum(r for r, _ in episodes) / len(episodes),
        "deviation": sum(spreads) / len(spreads),
        "informative": sum(s > 1e-6 for s in spreads) / len(groups),
        "all_success": sum(all(ok for _, ok in g) for g in groups) / len(groups),
        "all_zero": sum(all(r <= 1e-9 for r, _ in g) for g in groups) / len(groups),
    }
    faults = sum(map(len, played)) - len(episodes)
    return Calibration(setting, len(groups), group_size, **numbers, faults=faults, target=limits)


async def find_setting(
    settings: Sequence[tuple[str, Make]],
    policy: Policy,
    seeds: Sequence[int],
    *,
    start: int = 0,
    target: Range | None = None,
    **playing: Any,
) -> tuple[int, dict[int, Calibration]]:
    """Find the setting whose difficulty suits the policy. ``settings`` go from easy to hard; ``start`` is tried first.

    Returns the index of the best setting and what each one that was tried measured, by its index. When none is in
    range the best is the one whose success is nearest to the middle of it: whether a warm start can help is the
    caller's question.
    """
    limits = target or Range()
    tried: dict[int, Calibration] = {}
    index = start
    while index not in tried and 0 <= index < len(settings):
        name, make = settings[index]
        found = await measure(make, policy, seeds, setting=name, target=limits, **playing)
        tried[index] = found
        if found.in_range:
            break
        index += 1 if found.success > limits.high or found.all_success > limits.constant else -1
    middle = (limits.low + limits.high) / 2
    best = min(tried, key=lambda i: (not tried[i].in_range, abs(tried[i].success - middle)))
    return best, tried
