"""One episode: a policy in an environment, from `reset` to a score. Used by admission, calibration and evaluation.

Whose fault an end is, is kept: an exception out of the environment or the policy is recorded as that, and such an
episode has no score, because it says nothing about the policy's ability.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from harness.environment import Environment, Task
from harness.scoring import Score, parse_arguments, score, snapshot

Json = Any
Message = dict[str, Json]


class Policy(Protocol):
    """What acts in an episode. Stateless, or with a ``begin(env, task)`` that returns the policy of one episode."""

    async def act(self, messages: Sequence[Mapping[str, Json]], tools: Sequence[Mapping[str, Json]]) -> Message:
        """The next assistant message in chat form: ``content``, ``tool_calls`` or both."""
        ...


@dataclass(frozen=True, slots=True)
class Episode:
    """``messages`` are the task's own and then those of the episode, the first of which is at ``start``.

    ``score`` is None exactly when ``error`` ({"boundary", "type", "message"}) is set. ``ended``: "answered",
    "turns" (the limit was reached) or "error". ``seconds`` is wall-clock time.
    """

    task: Task
    messages: tuple[Message, ...]
    start: int
    score: Score | None
    ended: str
    calls: int
    turns: int
    seconds: float
    error: Mapping[str, str] | None = None


async def run_episode(env: Environment, seed: int, policy: Policy, *, max_turns: int = 8) -> Episode:
    """Run one episode. ``max_turns`` bounds the assistant messages; user turns and tool results come on top.

    Raises nothing for faults of policy or environment: they are in ``Episode.error``.
    """
    began = time.perf_counter()
    messages: list[Message] = []
    task = Task(seed, "", ())
    turns = calls = 0
    ended = "turns"
    boundary = "environment"
    try:
        task = env.reset(seed)
        messages = [dict(m) for m in task.messages]
        before = snapshot(dict(env.state()))
        goals, reference = env.goals(), env.reference()
        boundary = "agent"
        begin = getattr(policy, "begin", None)
        actor: Policy = begin(env, task) if begin else policy
        while turns < max_turns:
            boundary = "agent"
            reply = dict(await actor.act(messages, env.tools))
            reply.setdefault("role", "assistant")
            messages.append(reply)
            turns += 1
            boundary = "environment"
            asked = reply.get("tool_calls") or []
            if asked:
                calls += len(asked)
                messages += [answer(env, call) for call in asked]
                continue
            following = env.respond(str(reply.get("content") or ""))
            if following is None:
                ended = "answered"
                break
            messages.append({"role": "user", "content": following})
        start = len(task.messages)
        result = score(goals, before, env.state(), messages[start:], reference=reference, tools=env.tools)
        return Episode(task, tuple(messages), start, result, ended, calls, turns, time.perf_counter() - began)
    except Exception as error:
        fault = {"boundary": boundary, "type": type(error).__name__, "message": str(error)[:500]}
        seconds = time.perf_counter() - began
        return Episode(task, tuple(messages), len(task.messages), None, "error", calls, turns, seconds, fault)


def answer(env: Environment, call: Mapping[str, Json]) -> Message:
    """The tool message that answers one tool call of an assistant message, in chat form."""
    function = call.get("function") or {}
    arguments = parse_arguments(function.get("arguments"))
    if arguments is None:
        content = json.dumps({"error": "the arguments are not a JSON object"})
    else:
        content = env.call(str(function.get("name")), arguments)
    return {"role": "tool", "tool_call_id": str(call.get("id") or ""), "content": content}


async def run_episodes(
    make: Callable[[], Environment],
    seeds: Sequence[int],
    policy: Policy,
    *,
    max_turns: int = 8,
    concurrency: int = 16,
) -> list[Episode]:
    """One episode for each seed, in the order of ``seeds``; each runs in an environment of its own from ``make``."""
    gate = asyncio.Semaphore(concurrency)

    async def one(seed: int) -> Episode:
        async with gate:
            return await run_episode(make(), seed, policy, max_turns=max_turns)

    return list(await asyncio.gather(*(one(seed) for seed in seeds)))
