"""What was learned about the tools, as plain values that go to JSON and back. `world` runs it.

An *expression* is a JSON list that says where a value comes from: ["arg", name] of the call, ["sorted", name] a list
argument in order, ["field", path] of the record the call is about, ["const", value], ["text", template],
["append", [element, …]] to a list, ["plus" | "minus", argument name].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from loop.synthesis.induced.entities import View
from loop.synthesis.induced.observations import fill_template, get_leaf

Json = Any
Expression = list[Json]


@dataclass
class Part:
    """One place of a tool's result. ``kind``: "records" (a list), "record", "arg", "count", "const".

    ``select`` are the conditions [argument, field, "equal" | "fold" | "contains"] a shown record meets;
    the argument "" stands for the key of the record that the part belongs to.
    """

    kind: str
    view: View | None = None
    select: list[list[str]] = field(default_factory=list)
    value: Json = None


@dataclass
class Rejection:
    """A refusal by state: when ``field`` of the record is none of ``accepted``, the answer is ``text``."""

    field: str
    rejected: list[Json]
    accepted: list[Json]
    text: str


@dataclass
class ToolModel:
    """One tool. ``kind``: "read", "write" or "other" (changes nothing and shows no record).

    ``shape`` of a read: "record", "records", "object" (parts by field), "key" (the plain key of one record),
    "constant", "memory" (only recorded calls can be answered). Of a write: "record", "object" (expressions by field),
    "text" (a template) or "memory". ``style``: how its JSON is written (indent, separators, ASCII only).
    ``target`` is the [type, argument] a write changes, None when nothing tells.
    """

    name: str
    kind: str
    shape: str = "memory"
    part: Part | None = None
    parts: dict[str, Part] = field(default_factory=dict)
    constant: Json = None
    target: list[str] | None = None
    effects: dict[str, Expression] = field(default_factory=dict)
    unexplained: list[str] = field(default_factory=list)
    fields: dict[str, Expression] = field(default_factory=dict)
    template: str = ""
    unknown: str = ""
    invalid: str = ""
    style: list[Json] = field(default_factory=lambda: [None, ", ", ": ", True])
    empty_is_error: bool = False
    rejections: list[Rejection] = field(default_factory=list)
    free: list[str] = field(default_factory=list)
    calls: int = 0
    errors: int = 0
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Json]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Json]) -> ToolModel:
        model = cls(**{k: v for k, v in raw.items() if k not in ("part", "parts", "rejections")})
        model.part = _part(raw["part"]) if raw.get("part") else None
        model.parts = {name: _part(part) for name, part in (raw.get("parts") or {}).items()}
        model.rejections = [Rejection(**r) for r in raw.get("rejections") or ()]
        return model


def _part(raw: Mapping[str, Json]) -> Part:
    view = View(**raw["view"]) if raw.get("view") else None
    return Part(raw["kind"], view, [list(s) for s in raw.get("select") or ()], raw.get("value"))


def evaluate(expression: Expression, arguments: Mapping[str, Json], record: Mapping[str, Json], old: Json) -> Json:
    """The value of an expression; ``old`` is what stands where it will be written."""
    kind, payload = expression[0], expression[1]
    if kind == "arg":
        return arguments.get(payload, old)
    if kind == "sorted":
        value = arguments.get(payload)
        return sorted(value, key=str) if isinstance(value, list) else old
    if kind == "field":
        found = get_leaf(record, payload)
        return in_list(record, payload) if found is None else found
    if kind == "text":
        return fill_template(payload, arguments, record)
    if kind == "const":
        return payload
    if kind == "append":
        return [*(old if isinstance(old, list) else []), *(_fill(e, arguments, record) for e in payload)]
    amount = arguments.get(payload)
    if isinstance(old, (int, float)) and isinstance(amount, (int, float)):
        return round(old + amount if kind == "plus" else old - amount, 2)
    return old


def _fill(element: Json, arguments: Mapping[str, Json], record: Mapping[str, Json]) -> Json:
    if isinstance(element, dict):
        return {name: _fill(inner, arguments, record) for name, inner in element.items()}
    return evaluate(element, arguments, record, None)


def in_list(record: Mapping[str, Json], path: str) -> Json:
    """Like `get_leaf`, for a path of the form "list.0.name"."""
    head, _, name = path.rpartition(".0.")
    rows = get_leaf(record, head) if head else None
    return rows[0].get(name) if isinstance(rows, list) and rows and isinstance(rows[0], dict) else None
