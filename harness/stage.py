"""What plays an environment in admission: one instance for many episodes, closed at the end, its faults counted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from types import TracebackType
from typing import Self

from harness.checks import Check
from harness.environment import Act, Environment
from harness.episodes import Episode, Policy, run_episode

Make = Callable[[], Environment]


class Stage:
    """What plays: one instance for all episodes, a new one after each fault. Counts faults, and what results weigh."""

    def __init__(self, make: Make, faults_allowed: int) -> None:
        self.make, self.faults_allowed = make, faults_allowed
        self.turns = 8
        self.episodes = 0
        self.longest_result = 0
        self.faults: list[str] = []
        self._env: Environment | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._drop()

    @property
    def env(self) -> Environment:
        if self._env is None:
            self._env = self.make()
        return self._env

    def _drop(self) -> None:
        if self._env is not None:
            _close(self._env)
        self._env = None

    def reference(self, seed: int) -> list[Act]:
        self.env.reset(seed)
        return list(self.env.reference())

    async def play(self, seeds: Sequence[int], policy: Policy) -> list[Episode]:
        """One episode a seed. Raises RuntimeError when there were too many faults to go on."""
        found: list[Episode] = []
        for seed in seeds:
            episode = await run_episode(self.env, seed, policy, max_turns=self.turns)
            found.append(episode)
            self.episodes += 1
            results = (len(str(m.get("content"))) for m in episode.messages if m.get("role") == "tool")
            self.longest_result = max(self.longest_result, *results, 0)
            if episode.error is not None:
                words = f"{type(policy).__name__}, seed {seed}: {episode.error['type']}: {episode.error['message']}"
                self.faults.append(words)
                self._drop()
                if len(self.faults) >= self.faults_allowed:
                    raise RuntimeError(f"{len(self.faults)} faults are enough; nothing more is played")
        return found

    def runs(self) -> Check:
        """No policy, however odd its calls, makes a sound environment raise."""
        share = 1.0 - min(len(self.faults), self.episodes) / self.episodes if self.episodes else 0.0
        detail = self.faults[0][:300] if self.faults else f"{self.episodes} episodes without a fault"
        return Check("runs", share, "= 1", not self.faults and self.episodes > 0, detail)


def _close(env: Environment) -> None:
    close = getattr(env, "close", None)
    if close is not None:
        with suppress(Exception):  # what cannot even be closed has failed other checks already
            close()


@contextmanager
def fresh(make: Make) -> Iterator[Environment]:
    env = make()
    try:
        yield env
    finally:
        _close(env)


def fingerprint(env: Environment, seed: int) -> str:
    """A hash of all that a seed determines: the task, the goals, the solution, its answers and the final state."""
    task = env.reset(seed)
    goals, acts = env.goals(), list(env.reference())
    answers = [env.call(a.tool, a.arguments) if a.tool else env.respond(a.text) for a in acts]
    seen = [asdict(task), asdict(goals), [asdict(a) for a in acts], answers, env.state()]
    return hashlib.sha256(json.dumps(seen, sort_keys=True, default=str).encode()).hexdigest()
