"""Gymnasium's reset and step. Needs the package `gymnasium`.

    env = ToolEnv(make)
    observation, info = env.reset(seed=3)             # observation: the messages, as JSON; info["tools"]: the schemas
    observation, reward, terminated, truncated, info = env.step('{"tool": "find_order", "arguments": {"id": "O-1"}}')

An action is a text: a JSON object with "tool" and "arguments" is a call, anything else is said to the user. The reward
is what the shaped score rose or fell by, so that an episode's rewards add up to it. ``info["success"]`` at the end.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import gymnasium  # pyright: ignore[reportMissingImports]

from harness.ecosystem.seat import Make, Seat, parse_act

_LETTERS = "abcdefghijklmnopqrstuvwxyz "


class AnyText(gymnasium.Space[str]):  # pyright: ignore[reportAttributeAccessIssue]
    """Every text. Gymnasium's own `Text` wants to know the alphabet and the greatest length."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(dtype=str, seed=seed)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return "".join(self.np_random.choice(list(_LETTERS), size=20))

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyText)

    __hash__ = None  # type: ignore[assignment]  # spaces compare by value, and are not keys


class ToolEnv(gymnasium.Env[str, str]):  # pyright: ignore[reportAttributeAccessIssue]
    """One of our environments. ``seeds`` are drawn from when `reset` is given none; ``max_turns`` truncates."""

    metadata = {"render_modes": []}  # noqa: RUF012  # Gymnasium's own form

    def __init__(self, make: Make, *, seeds: Sequence[int] = range(1_000_000), max_turns: int = 16) -> None:
        self.seat = Seat(make())
        self.seeds, self.max_turns = seeds, max_turns
        self.observation_space = AnyText()
        self.action_space = AnyText()
        self._turns = 0
        self._worth = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin the task of ``seed``; without one, of a seed drawn from ``seeds``."""
        super().reset(seed=seed)
        drawn = seed if seed is not None else int(self.np_random.choice(self.seeds))
        task = self.seat.reset(drawn)
        self._turns = 0
        self._worth = self.seat.score().shaped
        messages = json.dumps([dict(m) for m in task.messages], ensure_ascii=False)
        return messages, {"tools": self.seat.tools, "task_seed": drawn, "kind": task.kind}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Do one act. The observation is the tool's answer, or the user's next turn ("" at the end)."""
        act = parse_act(action)
        observation = self.seat.call(act.tool, act.arguments) if act.tool is not None else self.seat.say(act.text)
        self._turns += 1
        judged = self.seat.score()
        reward, self._worth = judged.shaped - self._worth, judged.shaped
        info = {"success": judged.success, "total": judged.total, "reasons": list(judged.reasons)}
        return observation or "", reward, self.seat.done, not self.seat.done and self._turns >= self.max_turns, info

    def close(self) -> None:
        self.seat.close()
