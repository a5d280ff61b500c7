"""The agent's seat, for a framework that brings its own loop: one act at a time from outside, scored by our scorer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.environment import Act, Environment, Goals, Task
from harness.policies import act_message
from harness.scoring import Score, score, snapshot
from storage.errors import TraceError

Json = Any
Make = Callable[[], Environment]


class Seat:
    """One episode after the other of one environment. ``messages`` are those that the episode added, in chat form."""

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.messages: list[dict[str, Json]] = []
        self.done = True
        self._before: Mapping[str, Json] = {}
        self._goals = Goals()
        self._reference: Sequence[Act] = ()

    @property
    def tools(self) -> list[Mapping[str, Json]]:
        return list(self.env.tools)

    def reset(self, seed: int) -> Task:
        """Begin the task of this seed."""
        task = self.env.reset(seed)
        self._before = snapshot(dict(self.env.state()))
        self._goals, self._reference = self.env.goals(), self.env.reference()
        self.messages, self.done = [], False
        return task

    def call(self, tool: str, arguments: Mapping[str, Json]) -> str:
        """Call a tool; returns what it answered. Raises TraceError when no episode is under way."""
        self._require_episode()
        call = act_message(Act(tool, arguments), len(self.messages))
        answer = self.env.call(tool, arguments)
        self.messages += [call, {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": answer}]
        return answer

    def say(self, text: str) -> str | None:
        """Say something to the user; returns the user's answer, None when the conversation and the episode are over."""
        self._require_episode()
        self.messages.append({"role": "assistant", "content": text})
        following = self.env.respond(text)
        if following is None:
            self.done = True
        else:
            self.messages.append({"role": "user", "content": following})
        return following

    def score(self) -> Score:
        """What the episode is worth as it stands."""
        return score(
            self._goals, self._before, self.env.state(), self.messages, reference=self._reference, tools=self.env.tools
        )

    def close(self) -> None:
        """Give up the environment, where it holds a process."""
        close = getattr(self.env, "close", None)
        if close is not None:
            close()

    def _require_episode(self) -> None:
        if self.done:
            raise TraceError("no episode is under way", where=self.env.name, fix="Call reset(seed) first.")


def parse_act(text: str) -> Act:
    """An act written as text: ``{"tool": NAME, "arguments": {…}}`` is a call, anything else is said to the user."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return Act(text=text)
    if not isinstance(value, dict) or not isinstance(value.get("tool"), str):
        return Act(text=text)
    arguments = value.get("arguments")
    return Act(value["tool"], arguments if isinstance(arguments, dict) else {})
