"""Knobs are turned from where they are towards the range, and no further than needed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from harness.policies import NullPolicy, ReferencePolicy, ScriptedPolicy
from loop.synthesis.difficulty import STEPS, ladder, suit
from loop.synthesis.induced import Difficulty, InducedEnvironment, induce
from tests.loop.synthesis import toy


@pytest.fixture(scope="module")
def library() -> InducedEnvironment:
    made = induce(toy.runs(toy.library_renewal, 12))
    assert isinstance(made, InducedEnvironment), made.lines()
    return made


class EasilyLost(ReferencePolicy):
    """Half of the time it solves a task in an almost empty world; in a full one it is lost."""

    def __init__(self) -> None:
        self.episodes = 0

    def begin(self, env: Any, task: Any) -> ScriptedPolicy:
        self.episodes += 1
        able = env.difficulty.distractors <= 1 and self.episodes % 2
        return ScriptedPolicy(tuple(env.reference()) if able else (), len(task.messages))


def test_what_is_too_hard_is_made_easier_until_it_suits(library: InducedEnvironment):
    found, chosen, tried = asyncio.run(suit(library, EasilyLost(), range(6), group_size=4))
    assert [c.in_range for c in tried] == [False, True]
    assert chosen is tried[1]
    assert found.difficulty.other_share == library.difficulty.other_share
    assert found.difficulty.distractors == 1
    assert found.reset(5).messages
    assert library.difficulty == Difficulty(), "the environment itself stays as it was"


def test_the_end_of_the_ladder_is_the_best_there_is(library: InducedEnvironment):
    hardest, _, tried = asyncio.run(suit(library, ReferencePolicy(), range(3), group_size=2))
    assert hardest.difficulty.distractors == STEPS[-1][1] or not any(c.in_range for c in tried)
    assert [c.success for c in tried] == [1.0] * 3
    easiest, _, tried = asyncio.run(suit(library, NullPolicy(), range(3), group_size=2))
    assert [c.success for c in tried] == [0.0] * 3
    assert not any(c.in_range for c in tried)
    assert easiest.difficulty.distractors <= 2


def test_a_ladder_keeps_the_share_of_other_tasks_and_starts_nearby():
    settings, start = ladder(Difficulty(distractors=4, length_bias=0.4, other_share=0.1))
    assert {s.other_share for s in settings} == {0.1}
    assert (settings[start].distractors, settings[start].length_bias) == (4, 0.5)
    assert [s.distractors for s in settings] == sorted(s.distractors for s in settings)
