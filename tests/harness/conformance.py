"""The conformance test of the environment contract: any implementation passes it. Call it with a factory.

def test_my_environment_conforms():
    check_conformance(make_my_environment, seeds=range(20))
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from harness.arguments import function_of, parameters_of, problems
from harness.environment import Act, Environment, Goals, Task
from harness.episodes import run_episode
from harness.policies import NullPolicy, ReferencePolicy


def check_conformance(make: Callable[[], Environment], seeds: Sequence[int]) -> None:
    """Assert every clause of `harness.environment.Environment` on ``seeds`` (at least two)."""
    env = make()
    assert isinstance(env, Environment)
    assert isinstance(env.name, str)
    assert env.name
    json.dumps(list(env.tools))
    for seed in seeds:
        _check_task(env, seed)
        _check_isolation(make, env, seed)
        _check_calls_never_raise(env, seed)
    _check_order_does_not_matter(make, list(seeds))
    for seed in seeds:
        solved = asyncio.run(run_episode(make(), seed, ReferencePolicy(), max_turns=64))
        assert solved.error is None, solved.error
        assert solved.score is not None
        assert solved.score.success, (seed, solved.score.reasons)
        assert solved.score.total == 1.0
        assert solved.ended == "answered"
        idle = asyncio.run(run_episode(make(), seed, NullPolicy(), max_turns=64))
        assert idle.score is not None
        assert not idle.score.success


def _check_task(env: Environment, seed: int) -> None:
    task = env.reset(seed)
    assert isinstance(task, Task)
    assert task.seed == seed
    assert task.messages
    assert task.messages[-1]["role"] == "user"
    json.dumps([dict(m) for m in task.messages])
    json.dumps(env.state())
    goals, reference = env.goals(), env.reference()
    assert isinstance(goals, Goals)
    assert goals.state or goals.required or goals.said, "nothing is asked for"
    assert all(isinstance(act, Act) for act in reference)
    for act in reference:
        if act.tool:
            schema = parameters_of(env.tools, act.tool)
            assert schema is not None, f"the reference calls {act.tool}, which is no tool"
            assert not problems(schema, act.arguments), (act, problems(schema, act.arguments))


def _check_isolation(make: Callable[[], Environment], env: Environment, seed: int) -> None:
    """A new instance gives the same; what a caller does to returned values changes nothing."""
    task = env.reset(seed)
    state = copy.deepcopy(env.state())
    other = make()
    assert other.reset(seed) == task
    assert other.state() == state
    assert other.goals() == env.goals()
    assert list(other.reference()) == list(env.reference())
    scratch: Any = env.state()
    if isinstance(scratch, dict):
        scratch.clear()
    assert env.state() == state, "state() hands out the world itself"


def _check_calls_never_raise(env: Environment, seed: int) -> None:
    env.reset(seed)
    assert isinstance(env.call("no_such_tool", {}), str)
    for tool in env.tools:
        name = str(function_of(tool)["name"])
        for arguments in ({}, {"nonsense": 1}, {"nonsense": [None, {"a": "\ud800"}]}):
            assert isinstance(env.call(name, arguments), str)


def _check_order_does_not_matter(make: Callable[[], Environment], seeds: list[int]) -> None:
    first = {seed: _trace(make(), seed) for seed in seeds}
    shuffled = seeds * 2
    random.Random(1).shuffle(shuffled)
    env = make()
    for seed in shuffled:
        assert _trace(env, seed) == first[seed]


def _trace(env: Environment, seed: int) -> tuple[Task, list[str], str]:
    task = env.reset(seed)
    results = [env.call(act.tool, act.arguments) for act in env.reference() if act.tool]
    return task, results, json.dumps(env.state(), sort_keys=True)
