"""Which results hold records, and which records are of one kind: entity types found from the shapes of results.

A *slot* is a place in a tool's results where objects stand: the result itself ("$"), the elements of a list ("$[]"),
an object or the elements of a list directly inside ("$.name", "$.name[]"). A slot whose objects have a key becomes a
*view* of an entity type; slots that share keys show the same type. Deeper objects stay embedded in their record.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loop.analysis.values import is_identifier_name
from loop.synthesis.induced.observations import Observation, alike, canonical, is_scalar

Json = Any
HIDDEN = "@"
"""Fields that no result shows start with this: what is known about a record only from the call that found it."""
_PLAIN_KEYS = frozenset({"id", "key", "code", "number", "name", "ref"})


@dataclass
class View:
    """How one slot of one tool shows records of a type. ``key``: the visible field that holds the record's key,
    or "" where none does; then ``argument`` of the call is the key. ``fields`` in the order of the results; ``sort``:
    (field, descending) or None.
    """

    type: str
    key: str
    fields: list[str] = field(default_factory=list)
    sort: list[Json] | None = None
    argument: str = ""


@dataclass
class _Slot:
    tool: str
    path: str
    objects: list[tuple[Observation, dict[str, Json]]] = field(default_factory=list)
    lists: list[list[dict[str, Json]]] = field(default_factory=list)
    key: str = ""

    def keys(self) -> set[str]:
        return {str(record_key(o, obj, self.key)) for o, obj in self.objects}


def record_key(observation: Observation, record: Mapping[str, Json], key: str) -> Json:
    """The key of an object in a result: a field of it, or the argument that found it where the key is hidden."""
    return observation.arguments.get(key[1:]) if key.startswith(HIDDEN) else record.get(key)


def objects_at(value: Json, path: str) -> list[list[dict[str, Json]]]:
    """The objects at a slot of one result, grouped by the list they stand in."""
    if path == "$":
        return [[value]] if isinstance(value, dict) else []
    if path.startswith("$."):
        if not isinstance(value, dict):
            return []
        name = path[2:].removesuffix("[]")
        value = value.get(name)
        if not path.endswith("[]"):
            return [[value]] if isinstance(value, dict) and value else []
    if isinstance(value, list) and all(isinstance(v, dict) for v in value):
        return [value]
    return []


def find_views(observations: Sequence[Observation]) -> dict[tuple[str, str], View]:
    """Views by (tool, slot). Types are named after their key ("order_id" → "order")."""
    slots = _slots(observations)
    linked = _linked_values(observations)
    kept: list[_Slot] = []
    for slot in slots:
        slot.key = _key_of(slot, linked)
        if slot.key:
            kept.append(slot)
    _key_by_argument([s for s in slots if s.path == "$" and not s.key], kept)
    kept = _drop_embedded(kept, observations)
    views: dict[tuple[str, str], View] = {}
    for name, members in _types(kept).items():
        for slot in members:
            visible = "" if slot.key.startswith(HIDDEN) else slot.key
            fields = list(dict.fromkeys(f for _, obj in slot.objects for f in obj))
            argument = slot.key[1:] if slot.key.startswith(HIDDEN) else ""
            views[slot.tool, slot.path] = View(name, visible, fields, _sort_of(slot), argument)
    return views


def _slots(observations: Sequence[Observation]) -> list[_Slot]:
    found: dict[tuple[str, str], _Slot] = {}
    for observation in observations:
        if observation.error:
            continue
        for path in _paths(observation.value):
            slot = found.setdefault((observation.tool, path), _Slot(observation.tool, path))
            for group in objects_at(observation.value, path):
                slot.objects += [(observation, obj) for obj in group]
                slot.lists.append(group)
    return list(found.values())


def _paths(value: Json) -> Iterator[str]:
    if isinstance(value, list):
        if value and all(isinstance(v, dict) for v in value):
            yield "$[]"
    elif isinstance(value, dict):
        yield "$"
        for name, inner in value.items():
            if isinstance(inner, dict) and inner:
                yield f"$.{name}"
            elif isinstance(inner, list) and inner and all(isinstance(v, dict) for v in inner):
                yield f"$.{name}[]"


def _linked_values(observations: Sequence[Observation]) -> Counter[str]:
    """Values that calls named: a record's key is what others point at it with."""
    found: Counter[str] = Counter()
    for observation in observations:
        for value in observation.arguments.values():
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, (str, int)) and not isinstance(item, bool):
                    found[str(item)] += 1
    return found


def _key_of(slot: _Slot, linked: Counter[str]) -> str:
    """The field that names a slot's objects, best first; "" when none does."""
    names = list(dict.fromkeys(f for _, obj in slot.objects for f in obj))
    if slot.path == "$" and not any(o.arguments for o, _ in slot.objects):
        return ""  # what is asked for without an argument is one answer, and no record among others
    best: tuple[float, str] = (0.0, "")
    most = max((len({canonical(obj.get(n)) for _, obj in slot.objects}) for n in names), default=0)
    for position, name in enumerate(names):
        values = [obj.get(name) for _, obj in slot.objects]
        if any(isinstance(v, (bool, float)) or not isinstance(v, (str, int)) for v in values):
            continue
        if any(len({str(o.get(name)) for o in group}) < len(group) for group in slot.lists):
            continue
        texts = [str(v) for v in values]
        if any(len(t) > 60 or "\n" in t for t in texts):
            continue
        pointed = sum(t in linked for t in texts) / len(texts)
        named = is_identifier_name(name)
        # A single embedded object needs a telling key: an address is pointed at by whoever repeats it.
        if not named and (pointed < 0.3 or (slot.path.startswith("$.") and not slot.path.endswith("[]"))):
            continue
        if not _consistent(slot, name):
            continue
        # A foreign key has fewer distinct values than the objects have; the object's own key has the most.
        distinct = len(set(texts)) / most
        score = 2 * named + 2 * pointed + 2 * distinct - 0.1 * position - ("@" in texts[0])
        if score > best[0]:
            best = (score, name)
    if best[1] or slot.path != "$":
        return best[1]
    return _argument_key(slot)


def _consistent(slot: _Slot, name: str) -> bool:
    """Whether objects with one key, seen again in one trajectory, are mostly the same object (changes aside)."""
    seen: dict[tuple[str, str], dict[str, Json]] = {}
    equal = total = 0
    for o, obj in slot.objects:
        other = seen.setdefault((o.trajectory, str(obj.get(name))), obj)
        if other is not obj:
            shared = [n for n in obj if n in other and n != name]
            total += len(shared)
            equal += sum(alike(obj[n], other[n]) for n in shared)
    return total == 0 or equal / total >= 0.8


def _key_by_argument(loose: list[_Slot], kept: list[_Slot]) -> None:
    """Results without a key of their own that look like records whose key an argument holds: the answer of a change
    is often the record it changed. Adds them to ``kept``."""
    for slot in loose:
        names = {f for _, obj in slot.objects for f in obj}
        for other in list(kept):
            fields = {f for _, obj in other.objects for f in obj}
            argument = other.key.lstrip(HIDDEN)
            if other.path != "$" or len(names & fields) < max(2, 0.5 * len(names)):
                continue
            if all(isinstance(o.arguments.get(argument), (str, int)) for o, _ in slot.objects):
                slot.key = HIDDEN + argument
                kept.append(slot)
                break


def _argument_key(slot: _Slot) -> str:
    """A result that does not show what it is about is about the call's one identifying argument."""
    names = {name for o, _ in slot.objects for name in o.arguments}
    if len(names) != 1:
        return ""
    name = next(iter(names))
    scalar = all(isinstance(o.arguments.get(name), (str, int)) for o, _ in slot.objects)
    # Only a result with fields of its own is a record; one that only wraps a list is not.
    fields = any(is_scalar(v) for _, obj in slot.objects for v in obj.values())
    return HIDDEN + name if scalar and fields and is_identifier_name(name) else ""


def _drop_embedded(slots: list[_Slot], observations: Sequence[Observation]) -> list[_Slot]:
    """Objects inside a keyed record are records of their own only if calls are about them, one at a time: if in at
    least 30 % of the runs that saw them, one is named by an argument or shown as another tool's whole result."""
    top = {slot.tool for slot in slots if slot.path == "$"}
    named: dict[str, set[str]] = defaultdict(set)
    for o in observations:
        named[o.trajectory] |= {str(v) for v in o.arguments.values() if isinstance(v, (str, int))}
    for slot in slots:
        if slot.path in ("$", "$[]"):
            for o, obj in slot.objects:
                named[o.trajectory].add(str(record_key(o, obj, slot.key)))
    kept: list[_Slot] = []
    for slot in slots:
        if slot.path not in ("$", "$[]") and slot.tool in top:
            runs: dict[str, bool] = defaultdict(bool)
            for o, obj in slot.objects:
                runs[o.trajectory] |= str(obj.get(slot.key)) in named[o.trajectory]
            if sum(runs.values()) < 0.3 * len(runs):
                continue
        kept.append(slot)
    return kept


def _types(slots: list[_Slot]) -> dict[str, list[_Slot]]:
    """Slots grouped into types: the same telling key name, or the same keys with fields that agree."""
    groups: list[list[_Slot]] = []
    for slot in slots:
        joined = [g for g in groups if any(_same_type(slot, other) for other in g)]
        merged = [s for g in joined for s in g] + [slot]
        groups = [g for g in groups if g not in joined] + [merged]
    named: dict[str, list[_Slot]] = {}
    for group in groups:
        named[_type_name(group, named)] = group
    return named


def _same_type(a: _Slot, b: _Slot) -> bool:
    agreement = _agreement(a, b)
    if a.key.lstrip(HIDDEN) == b.key.lstrip(HIDDEN) and a.key.lstrip(HIDDEN).lower() not in _PLAIN_KEYS:
        return agreement is None or agreement >= 0.5
    both = a.keys() & b.keys()
    if len(both) < 0.3 * min(len(a.keys()), len(b.keys())):
        return False
    return agreement is not None and agreement >= 0.7


def _agreement(a: _Slot, b: _Slot) -> float | None:
    """The share of equal fields among objects with equal keys, seen in one trajectory; None when there are none."""
    seen: dict[tuple[str, str], dict[str, Json]] = {}
    for o, obj in a.objects:
        seen[o.trajectory, str(record_key(o, obj, a.key))] = obj
    equal = total = 0
    for o, obj in b.objects:
        other = seen.get((o.trajectory, str(record_key(o, obj, b.key))))
        for name in obj if other is not None else ():
            if name in (other or {}) and name not in (a.key, b.key):
                total += 1
                equal += alike(obj[name], (other or {})[name])
    return equal / total if total else None


def _type_name(group: list[_Slot], taken: Mapping[str, Any]) -> str:
    keys = Counter(s.key.lstrip(HIDDEN) for s in group)
    name = keys.most_common(1)[0][0]
    base = name.removesuffix("_id").removesuffix("Id") or name
    if base.lower() in _PLAIN_KEYS:
        paths = [s.path.lstrip("$.").rstrip("[]") for s in group if s.path.lstrip("$.").rstrip("[]")]
        base = paths[0] if paths else group[0].tool
    while base in taken:
        base += "_"
    return base


def _sort_of(slot: _Slot) -> list[Json] | None:
    """A field that every list seen is sorted by, where lists were long enough to tell (≥ 3 lists of ≥ 3)."""
    long = [g for g in slot.lists if len(g) >= 3]
    if len(long) < 3:
        return None
    votes: dict[tuple[str, bool], int] = defaultdict(int)
    for group in long:
        for name in group[0]:
            column: list[Any] = [o.get(name) for o in group]
            if len({type(v) for v in column}) != 1 or not isinstance(column[0], (str, int, float)):
                continue
            if len({canonical(v) for v in column}) < 2:
                continue
            for descending in (False, True):
                votes[name, descending] += column == sorted(column, reverse=descending)
    full = [k for k, v in votes.items() if v == len(long)]
    # The key sorts by accident of insertion as often as not, and new keys are random: other fields come first.
    full.sort(key=lambda k: (k[0] == slot.key, k[1]))
    return list(full[0]) if full else None
