"""TRL's ``environment_factory``: the tools as methods of a class, the task in the data set, the score as a reward.

    GRPOTrainer(model, args=GRPOConfig(…), train_dataset=Dataset.from_list(rows(make, seeds)),
                environment_factory=environment_factory(make), reward_funcs=reward)

TRL reads a tool's schema from its method's signature and docstring. They are made from the agent's schema and come out
equal wherever those say no more than names, types, enums and descriptions. TRL's loop knows no second turn of the user,
and does not tell the environment what the agent said at the end: so the reward is a function that reads it from the
completion, and not a ``get_reward``. Training here does not go through this module (see `loop.training.grpo`).
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from harness.arguments import function_of
from harness.ecosystem.seat import Make, Seat
from storage.errors import TraceError

Json = Any
_TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "object": dict,
    "array": list,
}
_TAKEN = ("reset", "get_reward")


def rows(make: Make, seeds: Sequence[int]) -> list[dict[str, Json]]:
    """Rows of a data set: ``prompt`` (the task's messages) and ``seed``, which `reset` is called with."""
    seat = Seat(make())
    try:
        return [{"prompt": [dict(m) for m in seat.reset(seed).messages], "seed": seed} for seed in seeds]
    finally:
        seat.close()


def environment_factory(make: Make) -> Callable[[], Any]:
    """What `GRPOTrainer` takes. Raises TraceError for a tool whose name cannot be that of a tool's method."""
    first = make()
    tools = list(first.tools)
    close = getattr(first, "close", None)
    if close is not None:
        close()

    class ToolEnvironment:
        """One rollout's environment; TRL resets and uses it again."""

        def __init__(self) -> None:
            self._seat = Seat(make())

        def reset(self, *, seed: int | None = None, **row: Json) -> None:
            if seed is None:
                fix = "Train on Dataset.from_list(rows(make, seeds))."
                raise TraceError("the row has no seed, so there is no task to begin", where=first.name, fix=fix)
            self._seat.reset(seed)

        def _reward(self, closing: str) -> float:
            if not self._seat.done:
                self._seat.say(closing)
            return self._seat.score().shaped

    for tool in tools:
        method = _method(function_of(tool))
        if method.__name__ in _TAKEN or method.__name__.startswith("_") or not method.__name__.isidentifier():
            raise TraceError("TRL cannot have a tool of this name", where=method.__name__)
        setattr(ToolEnvironment, method.__name__, method)
    return ToolEnvironment


def reward(completions: Sequence[Sequence[Mapping[str, Json]]], environments: Sequence[Any], **_: Json) -> list[float]:
    """Shaped scores in 0..1, one a rollout. The last words of a completion are what the user is told."""
    return [env._reward(_closing(messages)) for env, messages in zip(environments, completions, strict=True)]


def _closing(messages: Sequence[Mapping[str, Json]]) -> str:
    last = messages[-1] if messages else {}
    return str(last.get("content") or "") if last.get("role") == "assistant" and not last.get("tool_calls") else ""


def _method(function: Mapping[str, Json]) -> Any:
    """A method whose signature and docstring say what the schema says."""
    name = str(function.get("name"))
    schema = function.get("parameters") or {}
    required = set(schema.get("required") or ())
    properties: Mapping[str, Json] = schema.get("properties") or {}

    def method(self: Any, **arguments: Json) -> str:
        return self._seat.call(name, arguments)

    parameters = [
        inspect.Parameter(
            argument,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=_annotation(inner),
            default=inspect.Parameter.empty if argument in required else None,
        )
        for argument, inner in properties.items()
    ]
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__name__ = method.__qualname__ = name
    vars(method)["__signature__"] = inspect.Signature([itself, *parameters])
    method.__annotations__ = {p.name: p.annotation for p in parameters}
    told = "\n".join(f"    {n}: {_one_line(inner.get('description')) or n}" for n, inner in properties.items())
    method.__doc__ = f"{function.get('description') or name}\n" + (f"\nArgs:\n{told}\n" if told else "")
    return method


def _annotation(schema: Mapping[str, Json]) -> Any:
    if schema.get("enum"):
        return Literal[tuple(schema["enum"])]
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((k for k in kind if k != "null"), None)
    if kind == "array" and isinstance(schema.get("items"), Mapping):
        return types.GenericAlias(list, (_annotation(schema["items"]),))
    return _TYPES.get(str(kind), str)


def _one_line(text: Json) -> str:
    return " ".join(str(text or "").split())
