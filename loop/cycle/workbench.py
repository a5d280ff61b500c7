"""Everything that a cycle stands on, started together and stopped together: vLLM, the gateway, the target."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from harness.router import BASE
from harness.serving.gateway import Gateway
from harness.serving.policy import Arm, Policy
from harness.serving.vllm import VLLMServer
from loop.cycle.measuring import Measuring, StepProgress
from loop.cycle.settings import CycleSettings
from loop.cycle.stages import CycleStages
from loop.evaluation import ArmResult, Split
from storage.database import Database


@contextlib.contextmanager
def workbench(
    database: Database, home: Path, settings: CycleSettings, say: Callable[[str], None], progress: StepProgress
) -> Iterator[tuple[Measuring, CycleStages]]:
    """Serve the settings' model with the policy that the database says is active; stops what it started."""
    say("starting vLLM")
    with (
        VLLMServer(settings.model, log=home / "logs" / "vllm.log", adapters_dir=home / "mixtures") as server,
        Gateway(server.url, mixer=server.serve_mixture) as gateway,
        Measuring(database, home, settings, server, gateway, progress) as measuring,
    ):
        stages = CycleStages(measuring, say)
        gateway.set_policy(stages.serving_policy())
        say(f"vLLM serves {settings.model.name} behind {gateway.base_url}")
        yield measuring, stages


def evaluate_serving(
    database: Database,
    home: Path,
    settings: CycleSettings,
    split: Split,
    tasks: int,
    say: Callable[[str], None],
    progress: StepProgress,
) -> list[ArmResult]:
    """Measure base and, when something was promoted, the policy that serves, on the same tasks."""
    with workbench(database, home, settings, say, progress) as (measuring, stages):
        results = [measuring.measure("base", Policy.only(BASE, Arm(BASE)), split, tasks)]
        serving = stages.serving_policy()
        if serving.router is not None:
            results.append(measuring.measure("routed", serving, split, tasks))
        return results
