"""Where an attack is run: contained, and without containment in a disposable process, to see that it is one.

An attack is a function that imports all it needs and returns a text. Its source becomes a module whose `reset` calls
it, and the text comes back as the task's message; an exception's text comes back in its place.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.episodes import run_episode
from harness.policies import ReferencePolicy
from harness.sandbox.host import Limits, ModuleFactory, SandboxError, open_module

GOOD = """
from harness.environment import Act, Goals, Task

TOOLS = [{"type": "function", "function": {"name": "pull", "parameters": {"type": "object", "properties": {}}}}]

class Lever:
    name = "lever"
    tools = TOOLS

    def reset(self, seed):
        self.pulled = False
        return Task(seed, f"lever-{seed}", ({"role": "user", "content": f"Pull lever {seed}."},))

    def call(self, tool, arguments):
        self.pulled = self.pulled or tool == "pull"
        return "done"

    def respond(self, text):
        return None

    def state(self):
        return {"pulled": self.pulled}

    def goals(self):
        return Goals(state={"pulled": True})

    def reference(self):
        return (Act("pull"), Act(text="Pulled."))

make = Lever
"""

HOSTILE = """
class Hostile:
    name = "hostile"
    tools = []

    def reset(self, seed):
        text = str({attack}(**{arguments!r}))
        return {{"seed": seed, "key": "k", "messages": [{{"role": "user", "content": text}}]}}

    def call(self, tool, arguments):
        return "done"

    def respond(self, text):
        return None

    def state(self):
        return {{}}

    def goals(self):
        return {{}}

    def reference(self):
        return []

make = Hostile
"""

Attack = Callable[..., object]


class Arena:
    """``folder`` is the attack's temporary folder on the host, ``bystander`` a good module that runs all the while."""

    def __init__(self, folder: Path, bystander: ModuleFactory) -> None:
        self.folder = folder
        self._bystander = bystander

    def module(self, source: str) -> Path:
        """A module file with this source."""
        path = self.folder / f"module_{len(list(self.folder.glob('module_*.py')))}.py"
        path.write_text(textwrap.dedent(source))
        return path

    def contained(self, attack: Attack, *, limits: Limits = Limits(), **arguments: Any) -> str:
        """What the attack says in the sandbox. Nothing of it is left afterwards, and the bystander still runs."""
        source = _source(attack) + HOSTILE.format(attack=attack.__name__, arguments=arguments)
        return self.outcome(source, lambda make: str(make().reset(1).messages[0]["content"]), limits)

    def outcome(self, source: str, play: Callable[[ModuleFactory], str], limits: Limits = Limits()) -> str:
        """What ``play`` returns for the module's factory, or what the SandboxError says."""
        pids: list[int] = []
        try:
            make = open_module(self.module(source), limits=limits)
            pids = make.pids
            try:
                return play(make)
            finally:
                make.close()
        except SandboxError as error:
            return str(error)
        finally:
            assert [pid for pid in pids if group_lives(pid)] == []
            self.check_health()

    def bare(
        self,
        attack: Attack,
        *,
        env: dict[str, str] | None = None,
        timeout: float = 30.0,
        packages: bool = False,
        **arguments: Any,
    ) -> str:
        """What the attack says in a process that nothing contains. Raises TimeoutExpired, CalledProcessError."""
        script = self.module(_source(attack) + f"\nprint({attack.__name__}(**{arguments!r}))\n")
        done = subprocess.run(
            [sys.executable, "-P", *([] if packages else ["-S"]), str(script)],
            cwd=self.folder,
            env=env or {},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=True,
        )
        return done.stdout

    def check_health(self) -> None:
        """The worker is as able as before: the bystander's task is solved by its own solution."""
        episode = asyncio.run(run_episode(self._bystander(), 7, ReferencePolicy()))
        assert episode.error is None, episode.error
        assert episode.score is not None
        assert episode.score.success


def group_lives(pid: int) -> bool:
    """Whether any process of this group is left."""
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _source(attack: Attack) -> str:
    return textwrap.dedent(inspect.getsource(attack))
