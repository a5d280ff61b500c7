"""What a trajectory shows about the world: each record as it was at first, each change with before and after."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loop.synthesis.induced.observations import Observation, canonical, copied
from loop.synthesis.induced.reads import Views, visible_records

Json = Any
RecordKey = tuple[str, str, str]
"""(trajectory, type, key)."""


@dataclass
class Change:
    """One answered call of a writing tool. ``before`` and ``after`` hold what was known of the record it is about,
    ``later`` what look-ups showed after it and before the next change; each may be partial or empty.
    """

    observation: Observation
    type: str
    key: str
    before: dict[str, Json] = field(default_factory=dict)
    after: dict[str, Json] = field(default_factory=dict)
    later: dict[str, Json] = field(default_factory=dict)


@dataclass
class Knowledge:
    """``first``: records as they were before any change. ``changed_first``: records first seen after a change to
    them, so what they were before is not known. ``changes`` by tool, refusals included (their ``after`` is empty).
    """

    types: dict[str, str]
    first: dict[RecordKey, dict[str, Json]]
    changed_first: dict[RecordKey, dict[str, Json]]
    changes: dict[str, list[Change]]
    targets: dict[str, list[str]]


def type_keys(views: Views) -> dict[str, str]:
    """Each type's key field: the one its views show it by, else the argument that finds it."""
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    for view in views.values():
        votes[view.type][view.key or view.argument] += 1
    return {kind: count.most_common(1)[0][0] for kind, count in votes.items()}


def find_targets(
    observations: Sequence[Observation], writes: set[str], views: Views, types: Mapping[str, str]
) -> dict[str, list[str]]:
    """[type, argument] that each writing tool is about: the argument that holds the key of a known record."""
    keys: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for o in observations:
        if not o.error:
            for _, kind, key, _ in visible_records(o, views, types):
                keys[o.trajectory].add((kind, key))
    found: dict[str, list[str]] = {}
    for tool in sorted(writes):
        votes: Counter[tuple[str, str]] = Counter()
        for o in observations:
            if o.tool != tool or o.error:
                continue
            own = {(k, key) for _, k, key, _ in visible_records(o, views, types)}
            for position, (name, value) in enumerate(o.arguments.items()):
                if isinstance(value, bool) or not isinstance(value, (str, int)):
                    continue
                for kind in types:
                    score = 2 * ((kind, str(value)) in own) + ((kind, str(value)) in keys[o.trajectory])
                    if score or name == types[kind]:
                        votes[kind, name] += 10 * score + 5 * (name == types[kind]) - min(position, 4)
        if votes:
            found[tool] = list(max(sorted(votes), key=lambda pair: votes[pair]))
    return found


def gather(observations: Sequence[Observation], writes: set[str], views: Views) -> Knowledge:
    """Read all trajectories once, in order."""
    types = type_keys(views)
    targets = find_targets(observations, writes, views, types)
    knowledge = Knowledge(types, {}, {}, defaultdict(list), targets)
    now: dict[RecordKey, dict[str, Json]] = {}
    pending: dict[RecordKey, Change] = {}
    for o in observations:
        shown = [] if o.error else visible_records(o, views, types)
        if o.tool in writes:
            _note_change(o, shown, knowledge, now, pending)
            continue
        for _, kind, key, fields in shown:
            record = (o.trajectory, kind, key)
            if record in pending:
                pending[record].later.update(copied(fields))
                store = knowledge.first if record in knowledge.first else knowledge.changed_first
            else:
                store = knowledge.first
            known = store.setdefault(record, {})
            for name, value in fields.items():
                known.setdefault(name, copied(value))
            now.setdefault(record, {}).update(copied(fields))
    return knowledge


def _note_change(
    o: Observation,
    shown: list[tuple[str, str, str, dict[str, Json]]],
    knowledge: Knowledge,
    now: dict[RecordKey, dict[str, Json]],
    pending: dict[RecordKey, Change],
) -> None:
    target = knowledge.targets.get(o.tool)
    if target is None:
        knowledge.changes[o.tool].append(Change(o, "", ""))
        return
    kind, key = target[0], str(o.arguments.get(target[1]))
    record = (o.trajectory, kind, key)
    change = Change(o, kind, key, before=copied(now.get(record, {})))
    knowledge.changes[o.tool].append(change)
    if o.error:
        return
    for _, shown_kind, shown_key, fields in shown:
        if (shown_kind, shown_key) == (kind, key):
            change.after.update(copied(fields))
    now.setdefault(record, {}).update(copied(change.after))
    if record not in knowledge.first:
        store = knowledge.changed_first.setdefault(record, {knowledge.types[kind]: o.arguments.get(target[1])})
        for name, value in change.after.items():
            store.setdefault(name, copied(value))
    pending[record] = change


def argument_texts(changes: Sequence[Change], name: str) -> list[str]:
    """The distinct values an argument had, as canonical JSON."""
    return sorted({canonical(c.observation.arguments[name]) for c in changes if name in c.observation.arguments})
