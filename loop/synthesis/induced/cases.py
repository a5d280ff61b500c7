"""Cases: each run that went well, as a request, a solution and the fragment of the world that it saw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any

from harness import tool_kinds
from harness.environment import Act
from loop.synthesis.induced.knowledge import Knowledge
from loop.synthesis.induced.model import ToolModel
from loop.synthesis.induced.observations import (
    Observation,
    alike,
    canonical,
    copied,
    get_leaf,
    leaves,
    read_result,
    set_leaf,
)
from loop.synthesis.induced.reads import Views, visible_records
from loop.synthesis.induced.world import Tables, World
from storage.trajectory import Trajectory, message_to_dict

Json = Any


@dataclass
class Case:
    """One run that went well.

    ``opening``: the messages before the agent's first turn. ``turns``: what the user says later, in order. ``acts``:
    the solution as [tool, arguments, text]. ``tables``: the records it saw, as they were at first. ``missing``:
    type → key → fields that a look-up would show and the run did not see. ``memory``: see `World`. ``applies``:
    whether the capability shows in it. ``said``: values that the user must be told; ``required``: which calls of the
    solution (by their order) cannot be done without. ``source``: the run's id.
    """

    source: str
    kind: str
    opening: list[dict[str, Json]]
    turns: list[str]
    acts: list[list[Json]]
    tables: Tables
    missing: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    memory: list[list[Json]] = field(default_factory=list)
    applies: bool = True
    said: list[Json] = field(default_factory=list)
    required: list[int] = field(default_factory=list)

    def to_json(self) -> dict[str, Json]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Json]) -> Case:
        return cls(**raw)

    def reference(self) -> list[Act]:
        return [Act(tool, arguments or {}, text) for tool, arguments, text in self.acts]


def build_case(
    trajectory: Trajectory,
    seen: Sequence[Observation],
    knowledge: Knowledge,
    models: Mapping[str, ToolModel],
    views: Views,
) -> Case | str:
    """The case of a trajectory, or why it cannot be one (a clause that names the tool or field)."""
    messages = trajectory.messages
    first = next((i for i, m in enumerate(messages) if m.role == "assistant" and _after_user(messages, i)), None)
    if first is None:
        return "the agent never answers a user"
    opening = [message_to_dict(m) for m in messages[:first]]
    acts, turns = _script(trajectory, first, models)
    if not acts or (acts[-1][0] is not None and not tool_kinds.is_handover(acts[-1][0])):
        return "the run ends without an answer to the user"
    calls = [a for a in acts if a[0] is not None]
    if not calls:
        return "the solution calls no tool"
    for tool, _, _ in calls:
        model = models.get(tool)
        if model is None or not model.calls:
            return f"{tool} was never answered"
    tables = _fragment(trajectory.id, knowledge)
    why = _undo_first_changes(trajectory.id, tables, knowledge, models)
    if why:
        return why
    missing = _missing(trajectory.id, tables, seen, views, knowledge)
    memory = _memory(trajectory.id, seen, knowledge, models)
    kind = " > ".join(name for name, _ in groupby(a[0] for a in calls))
    return Case(trajectory.id, kind, opening, turns, acts, tables, missing, memory)


def _after_user(messages: Sequence[Any], index: int) -> bool:
    return any(m.role == "user" for m in messages[:index])


def _script(trajectory: Trajectory, first: int, models: Mapping[str, ToolModel]) -> tuple[list[list[Json]], list[str]]:
    """Acts and the user's later turns. Refused calls, repeated look-ups and notes to itself are left out."""
    answers = {(s.position, s.call.id, s.call.raw_arguments): s for s in trajectory.steps()}
    acts: list[list[Json]] = []
    turns: list[str] = []
    asked: set[str] = set()
    answered = False
    for position, message in enumerate(trajectory.messages[first:], first):
        if message.role == "user" and message.content:
            turns.append(message.content)
            answered = True
        if message.role != "assistant":
            continue
        if not message.tool_calls:
            if acts and acts[-1][0] is None and not answered:
                acts[-1][2] += f"\n{message.content}"
            else:
                acts.append([None, {}, message.content])
            answered = False
            continue
        for call in message.tool_calls:
            step = answers.get((position, call.id, call.raw_arguments))
            if step is None or step.result is None or call.arguments is None or tool_kinds.is_error(step.result):
                continue
            model = models.get(call.name)
            if model is not None and model.kind == "other" and not tool_kinds.is_handover(call.name):
                continue
            signature = canonical([call.name, call.arguments])
            if model is not None and model.kind == "write":
                asked.clear()
            elif signature in asked:
                continue
            asked.add(signature)
            acts.append([call.name, dict(call.arguments), ""])
    while acts and acts[-1][0] is None and not acts[-1][2].strip():
        acts.pop()
    # The user's turns answer the agent's texts one by one; a last word that nobody answers is not needed.
    texts = sum(a[0] is None for a in acts) - bool(acts and acts[-1][0] is None)
    return acts, turns[:texts]


def _fragment(trajectory: str, knowledge: Knowledge) -> Tables:
    tables: Tables = {}
    for store in (knowledge.first, knowledge.changed_first):
        for (owner, kind, key), record in store.items():
            if owner == trajectory and key not in tables.get(kind, {}):
                tables.setdefault(kind, {})[key] = copied(record)
    return tables


def _undo_first_changes(trajectory: str, tables: Tables, knowledge: Knowledge, models: Mapping[str, ToolModel]) -> str:
    """Records that were first seen after a change get, for what it sets, a value that was seen accepted before one."""
    done: set[tuple[str, str, str]] = set()
    for tool, changes in sorted(knowledge.changes.items()):
        model = models[tool]
        for change in changes:
            record = (trajectory, change.type, change.key)
            if change.observation.trajectory != trajectory or change.observation.error:
                continue
            if record not in knowledge.changed_first or record in done:
                continue
            done.add(record)
            row = tables[change.type][change.key]
            for path in model.effects:
                new = get_leaf({**change.later, **change.after}, path)
                old = _accepted(path, new, changes, knowledge, change.type, model)
                if old is None:
                    return f"what {path} was before {tool} was never seen"
                set_leaf(row, path, old)
    return ""


def _accepted(path: str, new: Json, changes: Sequence[Any], knowledge: Knowledge, kind: str, model: ToolModel) -> Json:
    counts: Counter[str] = Counter()
    for change in changes:
        value = get_leaf(change.before, path)
        if not change.observation.error and value is not None and not alike(value, new):
            counts[canonical(value)] += 1
    if not counts:
        refused = [v for r in model.rejections if r.field == path for v in r.rejected]
        for (_, other, _), record in sorted(knowledge.first.items()):
            value = get_leaf(record, path)
            if other == kind and value is not None and not alike(value, new) and value not in refused:
                counts[canonical(value)] += 1
    return read_result(max(sorted(counts), key=lambda c: counts[c])) if counts else None


def _missing(
    trajectory: str, tables: Tables, seen: Sequence[Observation], views: Views, knowledge: Knowledge
) -> dict[str, dict[str, list[str]]]:
    """Fields that some look-up always shows and this run's records lack, because the run never made that look-up."""
    usual = usual_fields(seen, views, knowledge)
    shown: set[tuple[str, str, str]] = set()
    for o in seen:
        if o.trajectory == trajectory and not o.error:
            shown |= {
                (f"{o.tool} {path}", kind, key) for path, kind, key, _ in visible_records(o, views, knowledge.types)
            }
    found: dict[str, dict[str, list[str]]] = {}
    for kind, table in tables.items():
        for key, record in table.items():
            names = [
                name
                for slot, fields in usual.get(kind, {}).items()
                if (slot, kind, key) not in shown
                for name in fields
                if name not in record
            ]
            if names:
                found.setdefault(kind, {})[key] = sorted(set(names))
    return found


def usual_fields(seen: Sequence[Observation], views: Views, knowledge: Knowledge) -> dict[str, dict[str, list[str]]]:
    """Type → slot of a look-up → visible fields that at least 90 % of its records have."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    totals: Counter[tuple[str, str]] = Counter()
    for o in seen:
        if o.error or o.tool in knowledge.changes:
            continue
        for path, kind, _, fields in visible_records(o, views, knowledge.types):
            slot = (kind, f"{o.tool} {path}")
            totals[slot] += 1
            counts.setdefault(slot, Counter()).update(n for n in fields if not n.startswith("@"))
    found: dict[str, dict[str, list[str]]] = {}
    for (kind, slot), fields in counts.items():
        found.setdefault(kind, {})[slot] = [n for n, c in fields.items() if c >= 0.9 * totals[kind, slot]]
    return found


def _memory(
    trajectory: str, seen: Sequence[Observation], knowledge: Knowledge, models: Mapping[str, ToolModel]
) -> list[list[Json]]:
    """Calls whose answers follow no rule that was found, as they were recorded."""
    found: list[list[Json]] = []
    effects = {id(c.observation): _recorded_effects(c) for changes in knowledge.changes.values() for c in changes}
    for o in seen:
        model = models.get(o.tool)
        if o.trajectory != trajectory or o.error or model is None:
            continue
        if model.shape == "memory" or (model.kind == "write" and model.unexplained):
            found.append([o.tool, dict(o.arguments), o.text, effects.get(id(o), [])])
    return found


def _recorded_effects(change: Any) -> list[list[Json]]:
    """[type, key, path, value] for each leaf that a change was seen to set."""
    if not change.type or not change.before:
        return []
    after = {**change.later, **change.after}
    before = dict(leaves(change.before))
    return [
        [change.type, change.key, path, value]
        for path, value in leaves(after)
        if path not in before or (before[path] != value and not alike(before[path], value))
    ]


def replay(case: Case, seen: Sequence[Observation], world: World) -> str:
    """Play a case's calls on its own, not yet renamed world: "" when every answer is as recorded, else what differs."""
    recorded: dict[str, list[Json]] = {}
    for o in seen:
        if o.trajectory == case.source and not o.error:
            recorded.setdefault(canonical([o.tool, o.arguments]), []).append(o.value)
    for tool, arguments, _ in case.acts:
        if tool is None:
            continue
        answer = read_result(world.call(tool, arguments))
        # The same call before and after a change has two right answers.
        expected = recorded.get(canonical([tool, arguments]), [])
        differences = [_difference(answer, value) for value in expected]
        if differences and None not in differences:
            return f"{tool} would answer differently{' in ' + differences[0] if differences[0] else ''}"
    return ""


def _difference(a: Json, b: Json, path: str = "") -> str | None:
    """Where two answers differ first; None when they do not. The order of records in a list does not count."""
    if isinstance(a, dict) and isinstance(b, dict):
        for name in [*a, *(k for k in b if k not in a)]:
            if name not in a or name not in b:
                return f"{path}.{name}".lstrip(".")
            found = _difference(a[name], b[name], f"{path}.{name}")
            if found is not None:
                return found
        return None
    if isinstance(a, list) and isinstance(b, list):
        return None if sorted(map(canonical, a)) == sorted(map(canonical, b)) else path.lstrip(".")
    return None if a == b or alike(a, b) else path.lstrip(".")
