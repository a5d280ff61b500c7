"""What the recorded tools were seen to do: every answered call of every trajectory, its result read as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness import tool_kinds
from storage.trajectory import Trajectory

Json = Any


@dataclass(frozen=True, slots=True)
class Observation:
    """One answered call. ``value`` is the result as JSON, or the text itself where it is none.

    ``trajectory`` and ``index`` place it: calls of one trajectory are in order of ``index``.
    """

    trajectory: str
    index: int
    tool: str
    arguments: Mapping[str, Json]
    text: str
    value: Json
    error: bool


def observe(trajectories: Iterable[Trajectory]) -> list[Observation]:
    """All calls that were answered. Calls without an answer or with arguments that are no object teach nothing."""
    found: list[Observation] = []
    for trajectory in trajectories:
        for index, step in enumerate(trajectory.steps()):
            if step.result is None or step.call.arguments is None or _broken(step.result):
                continue
            found.append(
                Observation(
                    trajectory.id,
                    index,
                    step.call.name,
                    step.call.arguments,
                    step.result,
                    read_result(step.result),
                    tool_kinds.is_error(step.result),
                )
            )
    return found


def _broken(result: str) -> bool:
    """A fault of the machinery says nothing about the tool."""
    return tool_kinds.is_error(result) and tool_kinds.is_system_fault(result)


def read_result(text: str) -> Json:
    """A tool's answer as JSON; text that is no JSON stays text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def canonical(value: Json) -> str:
    """Equal JSON values give equal texts."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


def copied(value: Json) -> Json:
    """A deep copy of a JSON value; many times faster than `copy.deepcopy`, which episodes would notice."""
    if isinstance(value, dict):
        return {key: copied(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [copied(inner) for inner in value]
    return value


def is_scalar(value: Json) -> bool:
    """A string, number or boolean; null counts, since a field may be empty."""
    return value is None or isinstance(value, (str, int, float, bool))


def alike(a: Json, b: Json) -> bool:
    """Equality as a look-up tool has it: 1042 and "1042" are the same key, True and 1 are not."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if is_scalar(a) and is_scalar(b) and a is not None and b is not None:
        return a == b or str(a) == str(b)
    return a == b


def leaves(value: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    """Scalars and lists under a record, each with its dotted path. A list is one leaf: its order and length matter."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else str(key))
    elif path:
        yield path, value


def scalars(value: Json) -> Iterator[Json]:
    """Every scalar anywhere inside, dictionary keys left out."""
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from scalars(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from scalars(inner)
    else:
        yield value


def get_leaf(record: Json, path: str) -> Json:
    """The value at a dotted path, or None. A key may hold dots itself; the longest that fits is taken."""
    if not isinstance(record, Mapping):
        return None
    if path in record:
        return record[path]
    for cut in sorted((i for i, c in enumerate(path) if c == "."), reverse=True):
        if path[:cut] in record:
            return get_leaf(record[path[:cut]], path[cut + 1 :])
    return None


def set_leaf(record: dict[str, Json], path: str, value: Json) -> None:
    """Set the value at a dotted path, in place; objects on the way are made where they are missing."""
    if path in record:
        record[path] = value
        return
    for cut in sorted((i for i, c in enumerate(path) if c == "."), reverse=True):
        if isinstance(record.get(path[:cut]), dict):
            set_leaf(record[path[:cut]], path[cut + 1 :], value)
            return
    head, dot, rest = path.partition(".")
    if dot:
        inner: dict[str, Json] = {}
        record[head] = inner
        set_leaf(inner, rest, value)
    else:
        record[head] = value


_MARK = re.compile(r"⟦(\w+):([^⟧]*)⟧")


def to_template(text: str, values: Sequence[tuple[str, Json]]) -> str:
    """Replace each value that stands in ``text`` as a whole by its mark ("arg:name", "field:path"); longest first."""
    for mark, value in sorted(values, key=lambda pair: -len(str(pair[1]))):
        if is_scalar(value) and value is not None and not isinstance(value, bool) and len(str(value)) >= 2:
            pattern = rf"(?<![\w⟦:]){re.escape(str(value))}(?![\w⟧])"
            text = re.sub(pattern, lambda _, m=mark: f"⟦{m}⟧", text)
    return text


def fill_template(template: str, arguments: Mapping[str, Json], record: Mapping[str, Json]) -> str:
    """The text of a template; what is unknown becomes empty."""

    def value(match: re.Match[str]) -> str:
        source = arguments.get(match[2]) if match[1] == "arg" else get_leaf(record, match[2])
        return "" if source is None else str(source)

    return _MARK.sub(value, template)
