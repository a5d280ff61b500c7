"""A world for training tests: rewards differ by chance even for a model that writes noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.environment import Act, Goals, Task

TOOLS = ({"type": "function", "function": {"name": "flip", "parameters": {"type": "object", "properties": {}}}},)
COINS = 4


class CoinEnvironment:
    """What the agent says turns coins over, by the parity of its characters; the goal is all heads. Two turns."""

    name = "coins"
    tools = TOOLS

    def __init__(self) -> None:
        self._coins = [False] * COINS
        self._turns = 0

    def reset(self, seed: int) -> Task:
        self._coins = [False] * COINS
        self._turns = 0
        messages = ({"role": "system", "content": "Turn the coins."}, {"role": "user", "content": f"Table {seed}."})
        return Task(seed, f"table-{seed}", messages, "coins")

    def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        return "there is no such tool"

    def respond(self, text: str) -> str | None:
        for coin in range(COINS):
            self._coins[coin] ^= sum(ord(c) >> coin & 1 for c in text) % 2 == 1
        self._turns += 1
        return "And again." if self._turns == 1 else None

    def state(self) -> Mapping[str, Any]:
        return {str(i): coin for i, coin in enumerate(self._coins)}

    def goals(self) -> Goals:
        return Goals(state={str(i): True for i in range(COINS)})

    def reference(self) -> Sequence[Act]:
        return (Act(text=""), Act(text=""))
