"""Mutations of a good solution: each makes it lack one capability, and leaves the rest as it was.

Admission runs them in an environment: a lapse must score low there, otherwise the environment does not test the
capability. None means that the solution has no place for this lapse.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.environment import Act
from harness.tool_kinds import is_write
from loop.analysis.labels import LapseContext
from loop.analysis.values import EMAIL, named_values, names_something

Acts = Sequence[Act]


def calls_unknown_tool(acts: Acts, context: LapseContext) -> Acts | None:
    """The first call names a tool that isn't there."""
    index = _first(acts, lambda a: True)
    if index is None:
        return None
    return _put(acts, index, replace(acts[index], tool=f"{acts[index].tool}_tool"))


def drops_required_argument(acts: Acts, context: LapseContext) -> Acts | None:
    """The last call that has a required argument leaves it out, and the run ends there."""
    for index in range(len(acts) - 1, -1, -1):
        required = _schema(context, acts[index].tool).get("required") or tuple(acts[index].arguments)
        present = [name for name in required if name in acts[index].arguments]
        if present:
            arguments = {k: v for k, v in acts[index].arguments.items() if k != present[0]}
            return _put(acts, index, replace(acts[index], arguments=arguments))
    return None


def invents_identifier(acts: Acts, context: LapseContext) -> Acts | None:
    """The last call that names a record names one that nobody mentioned."""
    for index in range(len(acts) - 1, -1, -1):
        if acts[index].tool and named_values(acts[index].arguments):
            return _put(acts, index, replace(acts[index], arguments=_renamed(acts[index].arguments, None)))
    return None


def changes_without_look(acts: Acts, context: LapseContext) -> Acts | None:
    """All look-ups before the change are skipped; what the user said is used where a looked-up id belongs."""
    change = _first(acts, lambda a: _writes(a, context))
    if change is None or not named_values(acts[change].arguments):
        return None
    said = "\n".join(str(m.get("content") or "") for m in context.messages)
    spoken = _user_identifier(context)
    arguments = _renamed(acts[change].arguments, spoken, keep=lambda value: value.lower() in said.lower())
    if arguments == acts[change].arguments:
        return None
    return [replace(acts[change], arguments=arguments), *(a for a in acts[change + 1 :] if not a.tool)]


def never_changes(acts: Acts, context: LapseContext) -> Acts | None:
    """Everything but the changes, and the same closing words."""
    kept = [a for a in acts if not _writes(a, context)]
    return kept if len(kept) < len(acts) else None


def gives_up_after_error(acts: Acts, context: LapseContext) -> Acts | None:
    """The last call goes wrong (an identifier that does not exist), and is not mended."""
    index = _last(acts, lambda a: bool(named_values(a.arguments)))
    if index is None:
        return None
    failing = replace(acts[index], arguments=_renamed(acts[index].arguments, None))
    return [*acts[:index], failing, *(a for a in acts[index + 1 :] if not a.tool)]


def repeats_itself(acts: Acts, context: LapseContext) -> Acts | None:
    """The first call is made again and again instead of what should follow."""
    index = _first(acts, lambda a: True)
    if index is None:
        return None
    return [*acts[:index], *[acts[index]] * 4, *(a for a in acts[index + 1 :] if not a.tool)]


def ignores_refusal(acts: Acts, context: LapseContext) -> Acts | None:
    """The change names a record that isn't there, is refused, and is tried again unchanged."""
    change = _last(acts, lambda a: _writes(a, context) and bool(named_values(a.arguments)))
    if change is None:
        return None
    refused = replace(acts[change], arguments=_renamed(acts[change].arguments, None))
    return [*acts[:change], refused, refused, *(a for a in acts[change + 1 :] if not a.tool)]


def stops_early(acts: Acts, context: LapseContext) -> Acts | None:
    """Only announces what should have been done next."""
    index = _last(acts, lambda a: True)
    if index is None:
        return None
    return [*acts[:index], Act(text="I will take care of that now. One moment, please.")]


def claims_undone(acts: Acts, context: LapseContext) -> Acts | None:
    """Says that the change was made, with a confirmation number of its own, and makes none."""
    change = _last(acts, lambda a: _writes(a, context))
    if change is None:
        return None
    kept = [a for a in acts if a.tool and not _writes(a, context)]
    return [*kept, Act(text="Your request has been completed successfully. Your confirmation is ZQ98217X.")]


def answers_without_looking(acts: Acts, context: LapseContext) -> Acts | None:
    """Says the same without having called anything."""
    kept = [a for a in acts if not a.tool]
    if len(kept) == len(acts):
        return None
    return kept or [Act(text="I have taken care of your request.")]


def without_tool(tool: str, acts: Acts) -> Acts | None:
    """The solution without the calls of one tool: the lapse of a sequence rule."""
    kept = [a for a in acts if a.tool != tool]
    return kept if len(kept) < len(acts) else None


def _writes(act: Act, context: LapseContext) -> bool:
    if not act.tool:
        return False
    schema = next((t for t in _tools(context) if (t.get("function") or t).get("name") == act.tool), None)
    return bool(is_write(act.tool, schema))


def _tools(context: LapseContext) -> Sequence[Mapping[str, Any]]:
    """A task may stand for the context: it knows its messages and not the tools."""
    return getattr(context, "tools", ())


def _schema(context: LapseContext, tool: str | None) -> Mapping[str, Any]:
    for entry in _tools(context):
        function = entry.get("function") or entry
        if function.get("name") == tool:
            return function.get("parameters") or {}
    return {}


def _first(acts: Acts, wanted: Any) -> int | None:
    return next((i for i, a in enumerate(acts) if a.tool and wanted(a)), None)


def _last(acts: Acts, wanted: Any) -> int | None:
    return next((i for i in range(len(acts) - 1, -1, -1) if acts[i].tool and wanted(acts[i])), None)


def _put(acts: Acts, index: int, act: Act) -> Acts:
    return [*acts[:index], act, *acts[index + 1 :]]


def _user_identifier(context: LapseContext) -> str | None:
    """What an agent that skips the look-up passes on: an address that the user mentioned, else a number or name."""
    said = [
        token.strip(".,;:!?()<>\"'")
        for message in context.messages
        if message.get("role") == "user"
        for token in str(message.get("content") or "").split()
    ]
    addresses = [token for token in said if EMAIL.match(token)]
    return next(iter(addresses or [token for token in said if names_something("", token)]), None)


def _renamed(value: Any, spoken: str | None, keep: Any = lambda _: False) -> Any:
    """Arguments with their identifiers replaced by ``spoken``, or by one that does not exist."""
    if not isinstance(value, Mapping):
        return value
    names = {n.value for n in named_values(value) if not keep(n.value)}

    def walk(node: Any) -> Any:
        if isinstance(node, Mapping):
            return {k: walk(v) for k, v in node.items()}
        if isinstance(node, list):
            return [walk(v) for v in node]
        if not isinstance(node, bool) and isinstance(node, str | int) and str(node) in names:
            return _invented(node) if spoken is None or isinstance(node, int) else spoken
        return node

    return walk(json.loads(json.dumps(value)))


def _invented(value: str | int) -> str | int:
    """A name of the same shape that nobody gave: every digit turned, or letters added where there is none."""
    if isinstance(value, int):
        return value + 7919
    turned = "".join(str((int(c) + 5) % 10) if c.isdigit() else c for c in value)
    return turned if turned != value else f"{value}_x7Q"
