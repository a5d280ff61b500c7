"""From JSON of a sandboxed module to the contract's objects. Whatever has another shape raises ValueError.

Task       {"seed": integer, "key": text, "messages": [{"role", "content", …}, …], "kind"?: text}
Goals      {"state"?: object, "unchanged"?: boolean, "required"?: [call], "forbidden"?: [call], "said"?: [[text]]}
call       {"tool": text, "arguments"?: object}
reference  [{"tool"?: text or null, "arguments"?: object, "text"?: text}, …]
tools      [object, …]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from harness.environment import Act, Goals, RequiredCall, Task

Json = Any
T = TypeVar("T")

ROLES = ("system", "developer", "user", "assistant", "tool")
LONGEST_NAME = 500


def task_of(value: Json, seed: int) -> Task:
    """The task of ``seed``. Raises ValueError when it is another one's or no task."""
    fields = _fields(value, "task", {"seed", "key", "messages"}, {"kind"})
    if fields["seed"] != seed or isinstance(fields["seed"], bool):
        raise ValueError(f"task.seed is {fields['seed']!r:.40}, and {seed} was asked for")
    messages = tuple(_list(fields["messages"], "task.messages", _message))
    if not messages:
        raise ValueError("task.messages is empty")
    return Task(seed, _name(fields["key"], "task.key"), messages, _name(fields.get("kind", ""), "task.kind"))


def goals_of(value: Json) -> Goals:
    """The goals. Raises ValueError."""
    fields = _fields(value, "goals", set(), {"state", "unchanged", "required", "forbidden", "said"})
    return Goals(
        state=_object(fields.get("state", {}), "goals.state"),
        unchanged=_boolean(fields.get("unchanged", True), "goals.unchanged"),
        required=tuple(_list(fields.get("required", []), "goals.required", _call)),
        forbidden=tuple(_list(fields.get("forbidden", []), "goals.forbidden", _call)),
        said=tuple(_list(fields.get("said", []), "goals.said", _texts)),
    )


def reference_of(value: Json) -> tuple[Act, ...]:
    """A solution's acts. Raises ValueError."""
    return tuple(_list(value, "reference", _act))


def tools_of(value: Json) -> tuple[dict[str, Json], ...]:
    """Tool schemas as they are; what they must say is for admission to judge. Raises ValueError."""
    return tuple(_list(value, "tools", _object))


def state_of(value: Json) -> dict[str, Json]:
    """The world. Raises ValueError."""
    return _object(value, "state")


def name_of(value: Json) -> str:
    """An environment's name. Raises ValueError."""
    return _name(value, "name")


def text_of(value: Json, where: str) -> str:
    """A text of any length. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"{where} is {_kind(value)}, not a text")
    return value


def _message(value: Json, where: str) -> dict[str, Json]:
    message = _object(value, where)
    if message.get("role") not in ROLES:
        raise ValueError(f"{where}.role is none of {', '.join(ROLES)}")
    if not isinstance(message.get("content"), str | list | None):
        raise ValueError(f"{where}.content is {_kind(message.get('content'))}")
    return message


def _call(value: Json, where: str) -> RequiredCall:
    fields = _fields(value, where, {"tool"}, {"arguments"})
    return RequiredCall(_name(fields["tool"], f"{where}.tool"), _object(fields.get("arguments", {}), where))


def _act(value: Json, where: str) -> Act:
    fields = _fields(value, where, set(), {"tool", "arguments", "text"})
    tool = fields.get("tool")
    return Act(
        tool=None if tool is None else _name(tool, f"{where}.tool"),
        arguments=_object(fields.get("arguments", {}), f"{where}.arguments"),
        text=text_of(fields.get("text", ""), f"{where}.text"),
    )


def _texts(value: Json, where: str) -> tuple[str, ...]:
    return tuple(_list(value, where, text_of))


def _fields(value: Json, where: str, needed: set[str], optional: set[str]) -> dict[str, Json]:
    fields = _object(value, where)
    missing, unknown = needed - fields.keys(), fields.keys() - needed - optional
    if missing or unknown:
        what = f"lacks {', '.join(sorted(missing))}" if missing else f"has an unknown field {min(unknown)!r:.40}"
        raise ValueError(f"{where} {what}")
    return fields


def _object(value: Json, where: str) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {_kind(value)}, not an object")
    return value


def _list(value: Json, where: str, each: Callable[[Json, str], T]) -> list[T]:
    if not isinstance(value, list):
        raise ValueError(f"{where} is {_kind(value)}, not a list")
    return [each(item, f"{where}[{n}]") for n, item in enumerate(value)]


def _name(value: Json, where: str) -> str:
    name = text_of(value, where)
    if len(name) > LONGEST_NAME:
        raise ValueError(f"{where} has {len(name)} characters, {LONGEST_NAME} are allowed")
    return name


def _boolean(value: Json, where: str) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{where} is {_kind(value)}, not true or false")
    return value


def _kind(value: Json) -> str:
    if value is None:
        return "null"
    names = {bool: "true or false", str: "a text", list: "a list", dict: "an object"}
    return names.get(type(value), "a number")
