"""What detectors look at: a run without its outcome, read once for all of them.

A view is made from messages and tools alone, so nothing that reveals success can leak into a label.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from harness.tool_kinds import is_error, is_write, verbs
from loop.analysis.schema import fixed_values
from loop.analysis.values import Named, named_values
from storage.trajectory import Message, ToolCall, Trajectory, iter_steps

_LETTERS_DIGITS = re.compile(r"[^0-9a-z]+")


@dataclass(frozen=True, slots=True)
class Action:
    """One call as detectors see it. ``same`` is equal for two calls that ask exactly the same."""

    index: int
    position: int
    call: ToolCall
    arguments: Mapping[str, Any]
    result: str | None
    error: bool
    write: bool
    names: tuple[Named, ...]
    same: tuple[str, str]

    @property
    def tool(self) -> str:
        return self.call.name

    @property
    def accepted(self) -> bool:
        """The tool answered, and not with a refusal."""
        return self.result is not None and not self.error


@dataclass(frozen=True, slots=True)
class ToolFacts:
    """What a tool list says about one tool."""

    schema: Mapping[str, Any] | None
    write: bool | None
    fixed: frozenset[str]
    verbs: frozenset[str]


class ToolBook:
    """The facts of a tool list, worked out once and shared by all runs that have the same list."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self.tools = tools
        self.facts: dict[str, ToolFacts] = {}
        for tool in tools:
            function = tool.get("function", tool)
            name = function.get("name")
            if isinstance(name, str):
                parameters = function.get("parameters")
                schema = parameters if isinstance(parameters, Mapping) else None
                self.facts[name] = ToolFacts(schema, is_write(name, tool), fixed_values(schema), verbs(name))

    def get(self, name: str) -> ToolFacts | None:
        return self.facts.get(name)


class ToolBooks:
    """Finds the book of a tool list again: by identity, which is cheap, else by content."""

    def __init__(self) -> None:
        self._books: list[ToolBook] = []

    def of(self, tools: Sequence[Mapping[str, Any]]) -> ToolBook:
        """The book of these tools, made when it is new. Lists that are equal share one."""
        for match in (lambda known: known is tools, lambda known: known == tools):
            for book in self._books:
                if match(book.tools):
                    return book
        book = ToolBook(tools)
        self._books.append(book)
        return book


class View:
    """A run as detectors see it. ``given`` is what user and system said, ``returned`` what tools answered."""

    def __init__(self, messages: Sequence[Message], book: ToolBook) -> None:
        self.messages = messages
        self.book = book
        self.has_schemas = any(f.schema is not None for f in self.book.facts.values())
        self.actions: tuple[Action, ...] = tuple(
            self._action(index, step.position, step.call, step.result)
            for index, step in enumerate(iter_steps(messages))
        )

    @classmethod
    def of(cls, trajectory: Trajectory, books: ToolBooks | None = None) -> View:
        """The view of a trajectory; ``books`` shares what is known of tool lists among many."""
        return cls(trajectory.messages, books.of(trajectory.tools) if books else ToolBook(trajectory.tools))

    def _action(self, index: int, position: int, call: ToolCall, result: str | None) -> Action:
        facts = self.book.get(call.name)
        write = facts.write if facts is not None else is_write(call.name)
        arguments = call.arguments if call.arguments is not None else {}
        return Action(
            index=index,
            position=position,
            call=call,
            arguments=arguments,
            result=result,
            error=is_error(result),
            write=bool(write),
            names=named_values(arguments, facts.fixed if facts is not None else frozenset()),
            same=(call.name, _canonical(call)),
        )

    # -- what was known before a message ----------------------------------------------------------------------

    @cached_property
    def _given(self) -> tuple[str, list[int]]:
        return _running_text(self.messages, lambda m: m.role in ("user", "system"))

    @cached_property
    def _returned(self) -> tuple[str, list[int]]:
        return _running_text(self.messages, lambda m: m.role == "tool" and not is_error(m.content))

    def was_given(self, value: str, position: int) -> bool:
        """Whether user or system said the value before the message at ``position``."""
        return _occurs(self._given, value, position)

    def was_returned(self, value: str, position: int) -> bool:
        """Whether a tool returned the value, other than in a refusal, before the message at ``position``."""
        return _occurs(self._returned, value, position)

    def is_known(self, value: str, position: int) -> bool:
        """Whether the value was said or returned before, also when written with other punctuation."""
        if self.was_returned(value, position) or self.was_given(value, position):
            return True
        bare = _LETTERS_DIGITS.sub("", value.lower())
        if len(bare) < 4:
            return False
        return any(
            bare in _LETTERS_DIGITS.sub("", text[: ends[position]]) for text, ends in (self._given, self._returned)
        )

    # -- how the run ends -------------------------------------------------------------------------------------

    @cached_property
    def last_agent_message(self) -> int | None:
        """The index of the agent's last message."""
        return next((i for i in range(len(self.messages) - 1, -1, -1) if self.messages[i].role == "assistant"), None)

    @cached_property
    def final_text(self) -> str:
        """What the agent said last; empty when its last act was a call."""
        last = self.last_agent_message
        if last is None or self.messages[last].tool_calls:
            return ""
        return self.messages[last].content

    @cached_property
    def user_text(self) -> str:
        """All that the user said, in lower case."""
        return "\n".join(m.content for m in self.messages if m.role == "user").lower()


def _canonical(call: ToolCall) -> str:
    if call.arguments is None:
        return call.raw_arguments
    return json.dumps(call.arguments, sort_keys=True, default=str)


def _running_text(messages: Sequence[Message], wanted: Any) -> tuple[str, list[int]]:
    """The wanted messages in one lower-case text, and how long it is before each message."""
    parts: list[str] = []
    ends: list[int] = []
    length = 0
    for message in messages:
        ends.append(length)
        if wanted(message):
            text = message.content.lower()
            parts.append(text)
            length += len(text) + 1
    ends.append(length)
    return "\n".join(parts), ends


def _occurs(running: tuple[str, list[int]], value: str, position: int) -> bool:
    text, ends = running
    return text.find(value.strip().lstrip("#").lower(), 0, ends[position]) >= 0
