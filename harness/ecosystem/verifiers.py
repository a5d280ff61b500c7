"""A verifiers environment (`verifiers.v1`): a task set of seeds, and a harness that plays them. Needs that package.

    import harness.ecosystem.verifiers as worlds
    tasks = worlds.Worlds(worlds.WorldsConfig(factory="my_package.desk:make", tasks=100))
    agent = vf.Agent(vf.AgentConfig(harness={"id": worlds.ID}, model=…, client={"base_url": …}, …))
    trace = await agent.run(next(iter(tasks)))        # trace.rewards["shaped"], trace.metrics["success"]

The harness runs our own episode loop in this process and asks the model through the endpoint that verifiers gives it,
so every call is on the trace, and the tools reach the model byte for byte.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]

from harness.ecosystem.seat import Make, Seat
from harness.episodes import run_episode
from harness.policies import ChatPolicy
from storage.errors import TraceError

__all__ = ["SeatHarness", "Worlds"]  # verifiers takes a module's plugins from here: one of a kind

ID = "trace_environment"
# verifiers finds a plugin by the name of a top-level module, which this is not.
sys.modules.setdefault(ID, sys.modules[__name__])


class WorldData(vf.TaskData):
    """``seed`` is the task; ``factory`` ("package.module:function") makes its environment."""

    seed: int
    factory: str


class WorldTask(vf.Task[WorldData]):
    """One seed. It has no rewards of its own: the harness records what our scorer said."""


class WorldsConfig(vf.TasksetConfig):
    """``tasks`` seeds, from ``first_seed`` on."""

    factory: str
    first_seed: int = 0
    tasks: int = 100


class Worlds(vf.Taskset[WorldTask, WorldsConfig]):
    """Seeds of one environment as tasks."""

    def load(self) -> Iterator[WorldTask]:
        config = self.config
        seat = Seat(factory_of(config.factory)())
        try:
            for seed in range(config.first_seed, config.first_seed + config.tasks):
                # The prompt is for whoever reads the task; the harness takes it from the environment again.
                messages = seat.reset(seed).messages
                request = next((str(m["content"]) for m in messages if m["role"] == "user"), "")
                name = f"{config.factory}#{seed}"
                yield WorldTask(WorldData(name=name, prompt=request, seed=seed, factory=config.factory), config.task)
        finally:
            seat.close()


class SeatHarness(vf.Harness[vf.HarnessConfig]):
    """Plays one episode and records its shaped score as the reward, and whether it was solved as a metric."""

    EXECUTES_CODE = False
    NEEDS_CONTAINER = False
    MAX_TURNS = 16

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
    ) -> vf.ProgramResult:
        """Run the loop here; verifiers sees every model call at ``endpoint``."""
        policy = ChatPolicy(endpoint, ctx.model, headers={"Authorization": f"Bearer {secret}"})
        env = factory_of(data.factory)()
        try:
            episode = await run_episode(env, data.seed, policy, max_turns=self.MAX_TURNS)
        finally:
            close = getattr(env, "close", None)
            if close is not None:
                close()
        if episode.score is None:
            return vf.ProgramResult(1, "", str(dict(episode.error or {})))
        trace.record_reward("shaped", episode.score.shaped)
        trace.record_metric("success", float(episode.score.success))
        return vf.ProgramResult(0, "", "")


def factory_of(name: str) -> Make:
    """The function named ``package.module:function``. Raises TraceError when there is none."""
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        fix = "Write package.module:function."
        raise TraceError(f"the factory cannot be imported: {error}", where=name, fix=fix) from error
