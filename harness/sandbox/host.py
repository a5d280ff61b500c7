"""Run an environment module that somebody else wrote: contained, in a process of its own.

    make = open_module(Path("desk.py"))      # starts the process and imports the module
    env = make()                             # a `harness.environment.Environment`
    env.reset(3); env.call("find_order", {"email": "…"}); env.close()

The module exposes ``make()``, which returns an object with the contract's methods. It may import the standard
library and ``from harness.environment import Task, Goals, Act, RequiredCall``; there, that is all of this project.
Instead of these classes it may return dicts or dataclasses of its own with the same fields:

    reset(seed)            {"seed": 3, "key": "order-3", "messages": [{"role": "user", "content": "…"}], "kind": ""}
    goals()                {"state": {"orders.O-1.status": "cancelled"}, "unchanged": true, "said": [["cancelled"]],
                            "required": [{"tool": "cancel", "arguments": {"id": "O-1"}}], "forbidden": []}
    reference()            [{"tool": "cancel", "arguments": {"id": "O-1"}}, {"text": "It is cancelled."}]
    state()                an object; call() a text; respond() a text or null; name a text; tools a list of objects

(`shapes` says which fields may be left out.) Goals and solution are asked for once, right after ``reset``: what a
module says of them later is not heard. Its state is asked for there, too, and once more when a conversation is over, so
that the `state` that follows finds its answer here; what is wrong with it is said then. The module prints into nothing,
has no threads and starts no processes.

What contains it is in `runner`; `containment` tries it out. docs/environments.md says what each layer enforces.
"""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from harness.environment import Act, Goals, RequiredCall, Task
from harness.sandbox import shapes
from harness.sandbox.limits import Limits, SandboxError
from harness.sandbox.process import Enclosed, Refused, RunnerProcess
from harness.scoring import snapshot
from storage.errors import TraceError

__all__ = ["Containment", "Limits", "SandboxError", "SandboxedEnvironment", "containment", "open_module"]

Json = Any
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Containment:
    """``enforced``: a process was contained and could not break out. ``layers`` of "namespaces", "landlock",
    "seccomp" and "limits"; ``missing`` says which step the kernel refused, empty when none."""

    enforced: bool
    layers: tuple[str, ...]
    missing: str = ""


@functools.cache
def containment() -> Containment:
    """What this machine can enforce, found out by containing a process that then tries the forbidden.

    Raises SandboxError when no process could be started at all; that may be another time.
    """
    try:
        process = RunnerProcess(Limits(), contained=True)
    except Refused as error:
        return Containment(False, (), error.what)
    process.stop()
    return Containment(True, process.layers)


def open_module(path: Path, *, limits: Limits = Limits(), allow_weaker: bool = False) -> ModuleFactory:
    """A factory of the environments that the module at ``path`` makes. The module is imported right away.

    ``allow_weaker`` runs it in a plain process of its own, with this user's rights, files and network, and with this
    process's import path: for a module that was read and is trusted. Raises TraceError where the machine cannot
    contain it or the file cannot be read, SandboxError for faults of the module.
    """
    if not allow_weaker and not containment().enforced:
        raise TraceError(
            containment().missing,
            where=str(path),
            fix="Read the module, and pass --allow-weaker-sandbox to run it with this user's rights.",
        )
    return ModuleFactory(path, limits, contained=not allow_weaker)


class ModuleFactory:
    """Makes environments of one module. They share processes, and must not share anything else: admission checks that
    the order of episodes makes no difference. When a process ends, its environments are lost; the next is made in a
    new one. `close` ends all processes; so does the end of the last reference."""

    def __init__(self, path: Path, limits: Limits, *, contained: bool) -> None:
        self._path = path
        self._limits = limits
        self._contained = contained
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._populations: weakref.WeakKeyDictionary[RunnerProcess, weakref.WeakSet[SandboxedEnvironment]] = (
            weakref.WeakKeyDictionary()
        )
        self._closed = False
        try:
            # Once: every process of the factory runs the same code, whatever becomes of the file.
            self._source = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TraceError(f"the module cannot be read: {error}", where=str(path)) from error
        self._current = self._started()

    def __call__(self) -> SandboxedEnvironment:
        """A new environment. Raises SandboxError when the module does not make one."""
        with self._lock:
            if self._closed:
                raise SandboxError("this sandbox is closed", where=str(self._path))
            with_room = (process for process in list(self._populations) if self._has_room(process))
            self._current = next(with_room, None) or self._started()
            env = SandboxedEnvironment(self._current, next(self._numbers))
            self._populations[self._current].add(env)
            return env

    @property
    def pids(self) -> list[int]:
        """The guards of the processes that run, each the leader of its process group."""
        return [process.pid for process in self._populations if process.alive]

    def close(self) -> None:
        """End every process of the module."""
        with self._lock:
            self._closed = True
            for process in list(self._populations):
                process.stop()

    def _has_room(self, process: RunnerProcess) -> bool:
        # Time waited for answers is at least the CPU time that was used: a process is replaced long before its limit.
        fresh = process.busy_seconds < self._limits.cpu_seconds / 2
        return process.alive and fresh and len(self._populations[process]) < self._limits.environments

    def _started(self) -> RunnerProcess:
        process = RunnerProcess(self._limits, contained=self._contained, where=str(self._path))
        try:
            process.load(self._path, self._source, contained=self._contained)
        except BaseException:
            process.stop()
            raise
        self._populations[process] = weakref.WeakSet()
        return process


class SandboxedEnvironment:
    """An environment of a sandboxed module. Every method raises SandboxError for a fault of the module."""

    name: str
    tools: Sequence[Mapping[str, Json]]

    def __init__(self, process: RunnerProcess, number: int) -> None:
        self._process = process
        self._number = number
        self._goals: Goals | None = None
        self._reference: tuple[Act, ...] = ()
        self._enclosed: Enclosed | None = None
        self._release = weakref.finalize(self, process.release, number)
        made = self._ask("make", lambda value: value)
        self.name = self._shaped(lambda: shapes.name_of(made.get("name")), "make")
        self.tools = self._shaped(lambda: shapes.tools_of(made.get("tools")), "make")

    def reset(self, seed: int) -> Task:
        """Begin the task of this seed, and fix its goals and its solution."""
        self._goals = None

        def opened(value: Json) -> tuple[Task, Goals, tuple[Act, ...]]:
            return (
                shapes.task_of(value.get("task"), seed),
                shapes.goals_of(value.get("goals")),
                shapes.reference_of(value.get("reference")),
            )

        task, self._goals, self._reference = self._ask("reset", opened, seed=seed)
        return task

    def call(self, tool: str, arguments: Mapping[str, Json]) -> str:
        """The answer to one tool call."""
        return self._ask("call", lambda v: shapes.text_of(v, "the result"), tool=tool, arguments=dict(arguments))

    def respond(self, text: str) -> str | None:
        """The user's next turn, None when the conversation is over."""
        return self._ask("respond", lambda v: None if v is None else shapes.text_of(v, "the turn"), text=text)

    def state(self) -> Mapping[str, Json]:
        """The world as it is now."""
        enclosed, self._enclosed = self._enclosed, None
        if enclosed is None:
            return self._ask("state", shapes.state_of)
        self._require_open()
        value = self._process.opened(enclosed)
        return self._shaped(lambda: shapes.state_of(value), "state")

    def goals(self) -> Goals:
        """The goals that the module declared at `reset`."""
        goals = self._require_goals()
        required, forbidden = _copied(goals.required), _copied(goals.forbidden)
        return Goals(snapshot(goals.state), goals.unchanged, required, forbidden, goals.said)

    def reference(self) -> Sequence[Act]:
        """The solution that the module declared at `reset`."""
        self._require_goals()
        return tuple(Act(act.tool, snapshot(act.arguments), act.text) for act in self._reference)

    def close(self) -> None:
        """Give up the environment. The garbage collector does, too."""
        self._release()

    def _require_goals(self) -> Goals:
        if self._goals is None:
            raise SandboxError("there is no task yet", where=self._process.where, fix="Call reset first.")
        return self._goals

    def _ask(self, op: str, shape: Callable[[Json], T], **fields: Json) -> T:
        self._require_open()
        self._enclosed = None  # from here on the world may be another
        value, enclosed = self._process.request(op, env=self._number, **fields)
        answer = self._shaped(lambda: shape(value), op)
        self._enclosed = enclosed
        return answer

    def _require_open(self) -> None:
        if not self._release.alive:
            raise SandboxError("this environment is closed", where=self._process.where)

    def _shaped(self, shape: Callable[[], T], op: str) -> T:
        try:
            return shape()
        except (ValueError, AttributeError) as error:
            raise SandboxError(f"the module's answer to {op} is refused: {error}", where=self._process.where) from error


def _copied(calls: Sequence[RequiredCall]) -> tuple[RequiredCall, ...]:
    return tuple(RequiredCall(call.tool, snapshot(call.arguments)) for call in calls)
