"""Turning an induced environment's knobs until it suits the policy that is to be trained in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from harness.calibration import Calibration, Range, find_setting
from harness.episodes import Policy
from loop.synthesis.induced import Difficulty, InducedEnvironment

STEPS = ((-1.5, 0), (-0.75, 1), (0.0, 2), (0.5, 4), (1.0, 8))
"""(length_bias, distractors) from easy to hard: from short solutions in an empty world to long ones in a full one."""


def ladder(difficulty: Difficulty) -> tuple[list[Difficulty], int]:
    """Settings from easy to hard with the same share of other tasks, and the index of the nearest to ``difficulty``."""
    settings = [replace(difficulty, length_bias=bias, distractors=count) for bias, count in STEPS]

    def apart(setting: Difficulty) -> float:
        distance = abs(setting.length_bias - difficulty.length_bias)
        return distance + abs(setting.distractors - difficulty.distractors) / 4

    return settings, min(range(len(settings)), key=lambda index: apart(settings[index]))


async def suit(
    env: InducedEnvironment, policy: Policy, seeds: Sequence[int], *, target: Range | None = None, **playing: Any
) -> tuple[InducedEnvironment, Calibration, list[Calibration]]:
    """The environment at the difficulty that suits ``policy`` best, what was measured there, and what each setting that
    was tried measured.

    Begins where the environment is and turns towards ``target``; stops at the first setting in range, or at the end of
    the ladder. Measured on tasks that need the capability: the others are there to be solved. ``playing``: what
    `harness.calibration.measure` takes. A policy that solves nothing even at the easiest setting wants a warm start.
    """
    settings, start = ladder(env.difficulty)
    named = [
        (
            f"length_bias {setting.length_bias:g}, distractors {setting.distractors}",
            env.with_difficulty(replace(setting, other_share=0.0)).copy,
        )
        for setting in settings
    ]
    best, tried = await find_setting(named, policy, seeds, start=start, target=target, **playing)
    return env.with_difficulty(settings[best]), tried[best], list(tried.values())
