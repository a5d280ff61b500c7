"""The environment contract: what an agent is run in, for training, admission and evaluation alike.

An environment yields a task, answers calls, and exposes its state and its declarative goals. It never scores
itself: `harness.scoring` does, outside the environment's process, so code written by a model cannot hand out
rewards. An environment keeps the target's interface: the same system prompt, the same tool schemas, the same
message protocol. It is deterministic: everything follows from the seed given to `reset`, whatever ran before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

Json = Any


@dataclass(frozen=True, slots=True)
class Task:
    """What `reset` returns. ``messages`` are chat messages as dicts, the system prompt first if there is one.

    ``key`` is equal for two seeds exactly when they pose the same task; ``kind`` groups tasks of one shape
    (what a report breaks its numbers down by).
    """

    seed: int
    key: str
    messages: tuple[Mapping[str, Json], ...]
    kind: str = ""


@dataclass(frozen=True, slots=True)
class RequiredCall:
    """A call that has to be made. Every argument listed must be equal; arguments not listed are free."""

    tool: str
    arguments: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Goals:
    """What a solved task looks like, declared before the episode. All parts are conjunctive.

    ``state``: path in `state()` ("orders.O-1.status", dot-separated) → the value it must have at the end.
    ``unchanged``: when True every other path of the state must be as it was after `reset`.
    ``required`` / ``forbidden``: calls that must / must not occur (a forbidden call without arguments forbids
    the tool). ``said``: for each group, at least one of its texts must occur in what the agent told the user
    (case-insensitive).
    """

    state: Mapping[str, Json] = field(default_factory=dict)
    unchanged: bool = True
    required: tuple[RequiredCall, ...] = ()
    forbidden: tuple[RequiredCall, ...] = ()
    said: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Act:
    """One step of a reference solution: a tool call (``tool`` set), or what is said to the user (``text``)."""

    tool: str | None = None
    arguments: Mapping[str, Json] = field(default_factory=dict)
    text: str = ""


@runtime_checkable
class Environment(Protocol):
    """The contract. `tests/harness/conformance.py` holds the test that any implementation passes.

    Errors: a call the world rejects is a *result* (the text the agent sees), never an exception. An exception
    out of any method is a fault of the environment and ends the episode as such.
    """

    name: str
    tools: Sequence[Mapping[str, Json]]
    """OpenAI tool schemas, byte for byte those of the target."""

    def reset(self, seed: int) -> Task:
        """Begin the task of this seed. The same seed gives the same task in any process and any order."""
        ...

    def call(self, tool: str, arguments: Mapping[str, Json]) -> str:
        """Answer one tool call with the content of its tool message."""
        ...

    def respond(self, text: str) -> str | None:
        """The user's next turn after the agent said ``text``; None when the conversation is over."""
        ...

    def state(self) -> Mapping[str, Json]:
        """The world as JSON, as it is now."""
        ...

    def goals(self) -> Goals:
        """The goals of the current task."""
        ...

    def reference(self) -> Sequence[Act]:
        """A solution of the current task that scores 1.0."""
        ...
