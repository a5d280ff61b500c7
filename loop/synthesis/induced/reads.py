"""How look-ups answer: the shape of a result, and which argument selects which records."""

from __future__ import annotations

import ast
import operator
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from loop.synthesis.induced.entities import HIDDEN, View, objects_at, record_key
from loop.synthesis.induced.model import Part, ToolModel
from loop.synthesis.induced.observations import Observation, alike, canonical, is_scalar, leaves

Json = Any
Views = Mapping[tuple[str, str], View]
Known = Mapping[tuple[str, str, str], Mapping[str, Json]]
"""Records by (trajectory, type, key), as they were first seen in that trajectory."""


def child_field(view: View, name: str) -> str:
    """The hidden field of a nested record that names the record it is shown in."""
    return f"{HIDDEN}{view.type}.{name}"


def visible_records(
    observation: Observation, views: Views, types: Mapping[str, str]
) -> list[tuple[str, str, str, dict[str, Json]]]:
    """(slot, type, key, fields) for each record that a result shows; ``types`` gives each type's key field.

    A nested record leaves its parent's fields, and points back at it by a hidden field.
    """
    found: list[tuple[str, str, str, dict[str, Json]]] = []
    own = {path: view for (tool, path), view in views.items() if tool == observation.tool}
    top = own.get("$")
    parent = ""
    for path in sorted(own):
        view = own[path]
        nested = [p[2:].removesuffix("[]") for p in own if p not in ("$", "$[]")] if path == "$" else []
        for group in objects_at(observation.value, path):
            for obj in group:
                key = _key_value(observation, obj, view)
                if key is None:
                    continue
                fields = {n: v for n, v in obj.items() if n not in nested}
                fields[types[view.type]] = key
                if path == "$":
                    parent = str(key)
                elif top is not None:
                    fields[child_field(top, path[2:].removesuffix("[]"))] = parent
                found.append((path, view.type, str(key), fields))
    return found


def _key_value(observation: Observation, obj: Mapping[str, Json], view: View) -> Json:
    if view.key:
        return obj.get(view.key)
    return record_key(observation, obj, HIDDEN + view.argument)


def learn_read(
    tool: str, seen: Sequence[Observation], views: Views, types: Mapping[str, str], known: Known
) -> ToolModel:
    """A read tool's model from its answers that were no errors."""
    model = ToolModel(tool, "read", calls=len(seen))
    own = {path: view for (name, path), view in views.items() if name == tool}
    values = [o.value for o in seen]
    if not seen:
        model.notes.append("never answered")
    elif len({canonical(v) for v in values}) == 1 and (len({canonical(o.arguments) for o in seen}) > 2 or not own):
        model.shape, model.constant = "constant", values[0]
        if len(seen) < 3 and seen[0].arguments:
            model.shape = "memory"
    elif "$" in own and all(isinstance(v, dict) for v in values):
        model.shape = "record"
        model.part = _selected("record", "$", own["$"], seen, known, model)
        for path, view in own.items():
            if path != "$":
                name = path[2:].removesuffix("[]")
                kind = "records" if path.endswith("[]") else "record"
                model.parts[name] = Part(kind, view, [["", child_field(own["$"], name), "equal"]])
    elif "$[]" in own and all(isinstance(v, list) for v in values):
        model.shape = "records"
        model.part = _selected("records", "$[]", own["$[]"], seen, known, model)
    elif own and all(isinstance(v, dict) for v in values):
        _learn_object(model, own, seen, known)
    elif all(_is_arithmetic(o) for o in seen):
        model.shape, model.kind = "arithmetic", "other"
    elif all(is_scalar(v) for v in values):
        _learn_key(model, seen, types, known)
    if any(p is not None and p.view is not None and not _complete(p) for p in [model.part, *model.parts.values()]):
        model.shape = "memory"
    return model


def _complete(part: Part) -> bool:
    return all(len(s) == 3 for s in part.select)


def _learn_object(model: ToolModel, own: Mapping[str, View], seen: Sequence[Observation], known: Known) -> None:
    slots = {p[2:].removesuffix("[]"): p for p in own}
    names = list(dict.fromkeys(n for o in seen for n in o.value))
    for name in names:
        values = [o.value.get(name) for o in seen]
        if name in slots:
            kind = "records" if slots[name].endswith("[]") else "record"
            model.parts[name] = _selected(kind, slots[name], own[slots[name]], seen, known, model)
            continue
        part = _plain_part(name, values, seen, slots)
        if part is None:
            model.notes.append(f"field {name} of the result is neither an argument, a count nor constant")
            model.shape = "memory"
            return
        model.parts[name] = part
    model.shape = "object"


def _plain_part(name: str, values: list[Json], seen: Sequence[Observation], slots: Mapping[str, str]) -> Part | None:
    for argument in dict.fromkeys(a for o in seen for a in o.arguments):
        if all(argument in o.arguments and alike(o.arguments[argument], v) for o, v in zip(seen, values, strict=True)):
            return Part("arg", value=argument)
    for slot in slots:
        lengths = [len(o.value.get(slot) or ()) for o in seen]
        if lengths == values and not any(isinstance(v, bool) for v in values):
            return Part("count", value=slot)
    if len({canonical(v) for v in values}) == 1:
        return Part("const", value=values[0])
    return None


def _selected(kind: str, path: str, view: View, seen: Sequence[Observation], known: Known, model: ToolModel) -> Part:
    """Which field each argument is compared with. An argument no field explains becomes a hidden field."""
    part = Part(kind, view)
    shown = [(o, _records_of(o, path, view, known)) for o in seen]
    for argument in dict.fromkeys(a for o in seen for a in o.arguments):
        pairs = [(o.arguments[argument], r) for o, records in shown if argument in o.arguments for r in records]
        condition = _condition(argument, pairs, view)
        if condition is None and _functional(argument, shown):
            condition = [argument, HIDDEN + argument, "equal"]
        if condition is not None:
            part.select.append(condition)
        elif pairs and all(isinstance(v, (int, float, bool)) for v, _ in pairs):
            model.notes.append(f"argument {argument} selects nothing and is ignored")
        elif pairs:
            model.notes.append(f"argument {argument} selects in a way that no field explains")
            part.select.append([argument])
    return part


def _records_of(observation: Observation, path: str, view: View, known: Known) -> list[tuple[str, Mapping[str, Json]]]:
    found: list[tuple[str, Mapping[str, Json]]] = []
    for group in objects_at(observation.value, path):
        for obj in group:
            key = _key_value(observation, obj, view)
            found.append((str(key), {**known.get((observation.trajectory, view.type, str(key)), {}), **obj}))
    return found


def _condition(argument: str, pairs: list[tuple[Json, tuple[str, Mapping[str, Json]]]], view: View) -> list[str] | None:
    for mode in ("equal", "fold", "contains"):
        fields: list[str] | None = None
        for value, (_, record) in pairs:
            here = [path for path, leaf in leaves(record) if matches(value, leaf, mode)]
            fields = here if fields is None else [f for f in fields if f in here]
            if not fields:
                break
        if fields:
            fields.sort(
                key=lambda f: (f.startswith(HIDDEN), f != argument, f != view.key, f.split(".")[-1] != argument, f)
            )
            return [argument, fields[0], mode]
    return None


def matches(value: Json, leaf: Json, mode: str) -> bool:
    """Whether a record's field meets an argument's value."""
    if mode == "equal":
        return alike(value, leaf)
    if not isinstance(value, str) or not isinstance(leaf, str) or not value.strip():
        return False
    if mode == "fold":
        return value.strip().casefold() == leaf.casefold()
    return value.strip().casefold() in leaf.casefold()


def _functional(argument: str, shown: list[tuple[Observation, list[tuple[str, Mapping[str, Json]]]]]) -> bool:
    """Whether each record was only ever found with one value of the argument, so that the value belongs to it."""
    by_record: dict[tuple[str, str], set[str]] = defaultdict(set)
    for observation, records in shown:
        for key, _ in records:
            by_record[observation.trajectory, key].add(canonical(observation.arguments.get(argument)))
    return bool(by_record) and all(len(v) == 1 for v in by_record.values())


def _learn_key(model: ToolModel, seen: Sequence[Observation], types: Mapping[str, str], known: Known) -> None:
    """A plain value that is the key of a record which the arguments describe."""
    by_trajectory: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for trajectory, kind, key in known:
        by_trajectory[trajectory][key].add(kind)
    hits = [(o, by_trajectory[o.trajectory].get(str(o.value), set())) for o in seen]
    found = [(o, kinds) for o, kinds in hits if kinds]
    if len(found) < max(2, 0.3 * len(seen)):
        model.notes.append("the plain value it returns is no key of a known record")
        return
    kinds = set.intersection(*(k for _, k in found))
    for kind in sorted(kinds):
        view = View(kind, types[kind], [types[kind]])
        part = Part("key", view)
        for argument in dict.fromkeys(a for o, _ in found for a in o.arguments):
            pairs = [
                (o.arguments[argument], (str(o.value), known[o.trajectory, kind, str(o.value)]))
                for o, _ in found
                if argument in o.arguments
            ]
            condition = _condition(argument, pairs, view) or [argument, HIDDEN + argument, "equal"]
            part.select.append(condition)
        model.shape, model.part = "key", part
        return


def _is_arithmetic(observation: Observation) -> bool:
    values = list(observation.arguments.values())
    if len(values) != 1 or not isinstance(observation.value, (int, float)):
        return False
    result = arithmetic(values[0])
    return result is not None and abs(result - observation.value) < 0.011


_OPERATORS: dict[type, Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def arithmetic(expression: Json) -> float | None:
    """The value of an expression of numbers and + − × ÷; None when it is anything else."""
    if not isinstance(expression, str) or len(expression) > 500:
        return None
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None


def _value(node: ast.AST) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    raise ValueError("not arithmetic")
