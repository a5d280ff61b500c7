"""An OpenEnv server. Needs the package `openenv-core`.

    app = create_app(make)          # a FastAPI app: uvicorn.run(app)
    client = GenericEnvClient(base_url=…)
    client.reset(seed=3)
    client.step({"tool": "find_order", "arguments": {"id": "O-1"}})
    client.step({"text": "Done."})

Each session has an environment of its own. The reward of a step is what the shaped score rose or fell by, so that an
episode's rewards add up to it.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from openenv.core.env_server.http_server import create_fastapi_app  # pyright: ignore[reportMissingImports]
from openenv.core.env_server.interfaces import (  # pyright: ignore[reportMissingImports]
    Environment as OpenEnvironment,
)
from openenv.core.env_server.types import Action, Observation, State  # pyright: ignore[reportMissingImports]
from pydantic import Field

from harness.ecosystem.seat import Make, Seat


class Move(Action):
    """A tool call (``tool`` set), or what is said to the user (``text``)."""

    tool: str | None = None
    arguments: dict[str, Any] = Field(default_factory=dict)
    text: str = ""


class Seen(Observation):
    """``messages``: what was added, in chat form. ``tools``: the schemas, at `reset` only. ``success``: so far."""

    messages: list[dict[str, Any]] = Field(default_factory=list)
    tools: list[dict[str, Any]] = Field(default_factory=list)
    success: bool = False


class ToolEnvironment(OpenEnvironment[Move, Seen, State]):
    """One session's environment."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, make: Make) -> None:
        super().__init__()
        self._seat = Seat(make())
        self._state = State()
        self._worth = 0.0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Seen:
        """Begin the task of ``seed`` (0 when none is given)."""
        task = self._seat.reset(seed or 0)
        self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
        self._worth = self._seat.score().shaped
        messages = [dict(m) for m in task.messages]
        return Seen(messages=messages, tools=[dict(t) for t in self._seat.tools], metadata={"kind": task.kind})

    def step(self, action: Move, timeout_s: float | None = None, **kwargs: Any) -> Seen:
        """One act of the agent."""
        known = len(self._seat.messages) + 1  # the agent knows what it did itself
        if action.tool is not None:
            self._seat.call(action.tool, action.arguments)
        else:
            self._seat.say(action.text)
        self._state.step_count += 1
        judged = self._seat.score()
        gained, self._worth = judged.shaped - self._worth, judged.shaped
        return Seen(messages=self._seat.messages[known:], done=self._seat.done, reward=gained, success=judged.success)

    @property
    def state(self) -> State:
        return self._state

    def close(self) -> None:
        self._seat.close()


def create_app(make: Make, *, sessions: int = 64) -> Any:
    """A FastAPI app that serves environments of ``make`` to at most ``sessions`` clients at a time."""
    return create_fastapi_app(lambda: ToolEnvironment(make), Move, Seen, max_concurrent_envs=sessions)
