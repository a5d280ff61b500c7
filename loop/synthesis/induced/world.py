"""A world of records that answers calls by what was learned about the tools. Deterministic; knows no seed.

What a tool does with calls that were never explained is remembered, not invented: a remembered call is answered as
recorded, any other is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from harness.arguments import parameters_of, problems
from loop.synthesis.induced.entities import View
from loop.synthesis.induced.model import Part, ToolModel, evaluate
from loop.synthesis.induced.observations import alike, canonical, copied, fill_template, get_leaf, is_scalar, set_leaf
from loop.synthesis.induced.reads import arithmetic, matches

Json = Any
Tables = dict[str, dict[str, dict[str, Json]]]
"""Type → key as text → record."""
FREE_TEXT = "(text)"


class World:
    """Tables of records, what was remembered, and the changes that no record shows.

    ``memory`` holds [tool, arguments, answer, effects] with effects as [type, key, path, value]. ``error_form`` is a
    template of a refusal with the mark "⟦arg:message⟧".
    """

    def __init__(
        self,
        models: Mapping[str, ToolModel],
        types: Mapping[str, str],
        tools: Sequence[Mapping[str, Json]],
        tables: Tables,
        memory: Sequence[Sequence[Json]] = (),
        error_form: str = "",
    ) -> None:
        self._models = models
        self._types = types
        self._tools = tools
        # Records are shared and never changed in place: a change puts a new record into the table.
        self._tables = {kind: dict(table) for kind, table in tables.items()}
        self._error_form = error_form or '{"error": "⟦arg:message⟧"}'
        self._memory = {(m[0], self._signature(m[0], m[1])): (m[2], m[3]) for m in memory}
        self._done: dict[str, dict[str, Json]] = {}

    def state(self) -> dict[str, Json]:
        """The tables, and under "done" changes that show in no record; a copy."""
        return copied(self.snapshot())

    def snapshot(self) -> dict[str, Json]:
        """The state without copying records: to be read, not changed. Free text counts as one value, since two people
        never word a note the same."""
        state: dict[str, Json] = {kind: dict(table) for kind, table in self._tables.items()}
        for model in self._models.values():
            for path, rule in model.effects.items():
                if rule[0] == "arg" and rule[1] in model.free and model.target:
                    table = state.get(model.target[0], {})
                    for key, record in table.items():
                        if get_leaf(record, path):
                            table[key] = copied(record)
                            set_leaf(table[key], path, FREE_TEXT)
        if self._done:
            state["done"] = self._done
        return state

    def call(self, tool: str, arguments: Mapping[str, Json]) -> str:
        """Answer a call. Never raises for what a caller may do."""
        schema = parameters_of(self._tools, tool)
        if schema is None:
            return self._refuse(f"there is no tool {tool}")
        model = self._models.get(tool) or ToolModel(tool, "read")
        wrong = problems(schema, arguments)
        if wrong:
            return fill_template(model.invalid, arguments, {}) if model.invalid else self._refuse("; ".join(wrong))
        remembered = self._memory.get((tool, self._signature(tool, arguments)))
        if model.kind == "write":
            return self._write(model, arguments, remembered)
        if model.shape == "memory":
            return self._unknown(model, arguments) if remembered is None else str(remembered[0])
        return self._read(model, arguments)

    def _signature(self, tool: str, arguments: Mapping[str, Json]) -> str:
        """The arguments that tell two calls apart: free text does not."""
        model = self._models.get(tool)
        return canonical({n: v for n, v in arguments.items() if model is None or n not in model.free})

    # Look-ups

    def _read(self, model: ToolModel, arguments: Mapping[str, Json]) -> str:
        if model.shape == "constant":
            return _write_json(model.constant, model.style)
        if model.shape == "arithmetic":
            result = arithmetic(next(iter(arguments.values()), None))
            return self._refuse("not an expression") if result is None else str(round(result, 2))
        if model.shape == "object":
            if not self._any_match(model, arguments):
                return self._unknown(model, arguments)
            values = {name: self._part(part, arguments, "") for name, part in model.parts.items()}
            for name, part in model.parts.items():
                if part.kind == "count":
                    values[name] = len(values.get(part.value) or ())
            return _write_json(values, model.style)
        part = model.part
        if part is None or part.view is None:
            return self._unknown(model, arguments)
        found = self._select(part, arguments, "")
        if not found and (part.kind != "records" or not self._points_somewhere(arguments)):
            return self._unknown(model, arguments)
        if part.kind == "records":
            return _write_json([self._show(r, part.view) for r in found], model.style)
        if part.kind == "key":
            return _write_json(found[0].get(self._types[part.view.type]), model.style)
        shown = self._show(found[0], part.view)
        key = str(found[0].get(self._types[part.view.type]))
        for name, inner in model.parts.items():
            shown[name] = self._part(inner, arguments, key)
        ordered = {n: shown[n] for n in part.view.fields if n in shown}
        return _write_json({**ordered, **shown}, model.style)

    def _part(self, part: Part, arguments: Mapping[str, Json], parent: str) -> Json:
        if part.kind == "arg":
            return arguments.get(part.value)
        if part.view is None:
            return part.value
        found = [self._show(r, part.view) for r in self._select(part, arguments, parent)]
        return found if part.kind == "records" else (found[0] if found else None)

    def _any_match(self, model: ToolModel, arguments: Mapping[str, Json]) -> bool:
        parts = [p for p in model.parts.values() if p.view is not None]
        return any(self._select(p, arguments, "") for p in parts) or self._points_somewhere(arguments)

    def _points_somewhere(self, arguments: Mapping[str, Json]) -> bool:
        """Whether the arguments name something that exists, so that an empty answer is an answer."""
        if not arguments:
            return True
        keys = {key for table in self._tables.values() for key in table}
        return any(str(v) in keys for v in arguments.values() if is_scalar(v))

    def _select(self, part: Part, arguments: Mapping[str, Json], parent: str) -> list[dict[str, Json]]:
        view = part.view
        assert view is not None
        found = list(self._tables.get(view.type, {}).values())
        for argument, path, mode in part.select:
            if argument and argument not in arguments:
                continue
            value = arguments[argument] if argument else parent
            found = [r for r in found if matches(value, get_leaf(r, path), mode)]
        if view.sort and len(found) > 1:
            name, descending = view.sort
            if all(type(r.get(name)) is type(found[0].get(name)) and r.get(name) is not None for r in found):
                found.sort(key=lambda r: r[name], reverse=descending)
        return found

    def _show(self, record: Mapping[str, Json], view: View) -> dict[str, Json]:
        key = self._types[view.type]
        shown: dict[str, Json] = {}
        for name in view.fields:
            if name == view.key:
                shown[name] = record.get(key)
            elif name in record:
                shown[name] = record[name]
        return shown

    # Changes

    def _write(self, model: ToolModel, arguments: Mapping[str, Json], remembered: tuple[Json, Json] | None) -> str:
        kind, argument = model.target or ("", "")
        key = str(arguments.get(argument)) if argument else ""
        record = self._tables.get(kind, {}).get(key)
        if model.target and record is None:
            return self._unknown(model, arguments)
        for rule in model.rejections:
            value = get_leaf(record, rule.field)
            # A value never seen accepted is refused like those that were: the recorded tool was seen to be strict.
            if value is not None and not any(alike(value, good) for good in rule.accepted):
                return fill_template(rule.text, arguments, record or {})
        explained = model.shape != "memory" and not model.unexplained
        if not explained and remembered is None and (model.shape == "memory" or not model.effects):
            return self._refuse(f"{model.name} is not possible with these arguments")
        before = record or {}
        if record is not None:
            record = self._tables[kind][key] = copied(record)
        for path, rule in model.effects.items():
            if record is not None:
                set_leaf(record, path, copied(evaluate(rule, arguments, before, get_leaf(before, path))))
        if not explained and remembered is not None:
            return self._as_recorded(model, arguments, remembered)
        if not model.effects:
            self._note(model, arguments)
        if model.shape == "text":
            return fill_template(model.template, arguments, record or {})
        answer = {n: evaluate(rule, arguments, record or {}, None) for n, rule in model.fields.items()}
        return _write_json({n: v for n, v in answer.items() if v is not None or n in (record or {})}, model.style)

    def _as_recorded(self, model: ToolModel, arguments: Mapping[str, Json], remembered: tuple[Json, Json]) -> str:
        """What no rule explains happens as it was recorded, for the recorded call alone."""
        text, effects = remembered
        for kind, key, path, value in effects:
            table = self._tables.get(kind, {})
            if key in table:
                table[key] = copied(table[key])
                set_leaf(table[key], path, copied(value))
        if not effects and not model.effects:
            self._note(model, arguments)
        return str(text)

    def _note(self, model: ToolModel, arguments: Mapping[str, Json]) -> None:
        """A change that no record shows still happened, and twice is not once."""
        calls = self._done.setdefault(model.name, {})
        signature = self._signature(model.name, arguments)
        calls[signature] = calls.get(signature, 0) + 1

    # Refusals

    def _unknown(self, model: ToolModel, arguments: Mapping[str, Json]) -> str:
        if model.unknown:
            return fill_template(model.unknown, arguments, {})
        for other in self._models.values():  # another tool that is asked for the same thing words it the same
            if other.unknown and other.target == model.target and set(_marked(other.unknown)) <= set(arguments):
                return fill_template(other.unknown, arguments, {})
        return self._refuse("not found")

    def _refuse(self, message: str) -> str:
        return self._error_form.replace("⟦arg:message⟧", message.replace("\\", "").replace('"', "'"))


def _marked(template: str) -> list[str]:
    return [piece.split("⟧")[0] for piece in template.split("⟦arg:")[1:]]


def _write_json(value: Json, style: Sequence[Json]) -> str:
    if isinstance(value, str):
        return value
    indent, item, key, ascii_only = style
    return json.dumps(value, indent=indent, separators=(item, key), ensure_ascii=ascii_only, default=str)


STYLES: tuple[list[Json], ...] = (
    [None, ", ", ": ", True],
    [None, ", ", ": ", False],
    [None, ",", ":", True],
    [None, ",", ":", False],
    [2, ",", ": ", False],
    [4, ",", ": ", False],
)


def style_of(texts: Sequence[str]) -> list[Json]:
    """How a tool writes JSON: the first known style that gives back all of ``texts``, else the best."""
    best: tuple[int, list[Json]] = (-1, STYLES[0])
    for style in STYLES:
        hits = 0
        for text in texts[:50]:
            try:
                hits += _write_json(json.loads(text), style) == text
            except ValueError:
                continue
        if hits > best[0]:
            best = (hits, style)
    return list(best[1])
