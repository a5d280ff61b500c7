"""How changes work: what a writing tool is about, what it sets, what it answers, and when it refuses."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from harness.arguments import problems
from loop.synthesis.induced.knowledge import Change, Knowledge
from loop.synthesis.induced.model import Expression, Rejection, ToolModel, in_list
from loop.synthesis.induced.observations import (
    Observation,
    alike,
    canonical,
    get_leaf,
    is_scalar,
    leaves,
    to_template,
)

Json = Any
_MISSING = object()
STATES = 12
"""A field with more distinct values than this is no state that decides what is allowed."""


def learn_write(
    tool: str,
    knowledge: Knowledge,
    read_fields: Mapping[str, set[str]],
    *,
    free: Sequence[str] = (),
) -> ToolModel:
    """A writing tool's model. ``read_fields``: for each type, the fields that look-ups show."""
    changes = [c for c in knowledge.changes.get(tool, []) if not c.observation.error]
    model = ToolModel(tool, "write", calls=len(changes), target=knowledge.targets.get(tool), free=list(free))
    if model.target is None:
        model.notes.append("no argument names a known record")
    else:
        _learn_effects(model, changes, read_fields.get(model.target[0], set()))
    _learn_answer(model, changes, read_fields.get(model.target[0], set()) if model.target else set())
    return model


def _learn_effects(model: ToolModel, changes: Sequence[Change], fields: set[str]) -> None:
    shown: dict[str, list[tuple[Change, Json, Json]]] = defaultdict(list)
    full = _is_record(changes, fields)
    for change in changes:
        after = {**change.later, **{n: v for n, v in change.after.items() if full or n in fields}}
        before = dict(leaves(change.before))
        # A look-up that showed most of the record shows that the rest was not there.
        whole = sum(n in change.before for n in after) >= 0.6 * len(after)
        for path, value in leaves(after):
            shown[path].append((change, before.get(path, None if whole else _MISSING), value))
    for path, samples in shown.items():
        known = [s for s in samples if s[1] is not _MISSING]
        changed = [s for s in known if not alike(s[1], s[2]) and s[1] != s[2]]
        if known and not changed:
            continue
        if not known and not _explains(("const", "arg", "sorted"), samples) and path.split(".")[0] in fields:
            continue  # look-ups show it, too, and nothing says that the change set it
        rule = _rule(samples, known)
        if rule is None:
            model.unexplained.append(path)
            model.notes.append(f"what it does to {path} is explained by no argument and no constant")
        elif known or path.split(".")[0] not in fields or _looks_set(rule, samples, model):
            model.effects[path] = rule


def _looks_set(rule: Expression, samples: Sequence[tuple[Change, Json, Json]], model: ToolModel) -> bool:
    """With nothing known from before, a value that always equals an argument other than the key was set by it, and a
    text that is always the same over several records was set, too."""
    if rule[0] in ("arg", "sorted"):
        return model.target is None or rule[1] != model.target[1]
    return len({s[0].key for s in samples}) >= 2 and isinstance(rule[1], str)


def _is_record(changes: Sequence[Change], fields: set[str]) -> bool:
    """Whether the answer shows the whole record: nothing but fields that look-ups show, or most of them and more."""
    names = {n for c in changes for n in c.after if not n.startswith("@")}
    shared = len(names & fields)
    return shared >= 2 and (shared == len(names) or (shared >= 3 and shared >= 0.7 * len(names)))


def _explains(kinds: Sequence[str], samples: Sequence[tuple[Change, Json, Json]]) -> bool:
    return any(_rule_of(kind, samples) is not None for kind in kinds)


def _rule(
    samples: Sequence[tuple[Change, Json, Json]], known: Sequence[tuple[Change, Json, Json]]
) -> Expression | None:
    for kind in ("arg", "sorted", "const"):
        rule = _rule_of(kind, samples)
        if rule is not None:
            return rule
    if not known:
        return None
    for kind in ("append", "plus", "minus"):
        rule = _rule_of(kind, known)
        if rule is not None:
            return rule
    return None


def _rule_of(kind: str, samples: Sequence[tuple[Change, Json, Json]]) -> Expression | None:
    if kind == "const":
        value = samples[0][2]
        # One record's list is its history; only the same list on several records was set.
        alone = isinstance(value, (list, dict)) and len({c.key for c, _, _ in samples}) < 2
        return ["const", value] if not alone and len({canonical(a) for _, _, a in samples}) == 1 else None
    if kind == "append":
        return _appended(samples)
    for name in dict.fromkeys(n for c, _, _ in samples for n in c.observation.arguments):
        if all(_fits(kind, name, *sample) for sample in samples):
            used = [s for s in samples if name in s[0].observation.arguments]
            if used:
                return [kind, name]
    return None


def _fits(kind: str, name: str, change: Change, before: Json, after: Json) -> bool:
    value = change.observation.arguments.get(name, _MISSING)
    if value is _MISSING:
        return kind == "arg" and before is not _MISSING and before == after
    if kind == "arg":
        return alike(value, after)
    if kind == "sorted":
        return isinstance(value, list) and after == sorted(value, key=str)
    numbers = (value, before, after)
    if any(isinstance(n, bool) or not isinstance(n, (int, float)) for n in numbers):
        return False
    return abs(after - (before + value if kind == "plus" else before - value)) < 0.006


def _appended(samples: Sequence[tuple[Change, Json, Json]]) -> Expression | None:
    tails: list[tuple[Change, list[Json]]] = []
    for change, before, after in samples:
        if not isinstance(before, list) or not isinstance(after, list) or after[: len(before)] != before:
            return None
        tails.append((change, after[len(before) :]))
    if not tails or len({len(t) for _, t in tails}) != 1 or not tails[0][1]:
        return None
    elements = [_element([(c, t[i]) for c, t in tails]) for i in range(len(tails[0][1]))]
    return None if any(e is None for e in elements) else ["append", elements]


def _element(values: Sequence[tuple[Change, Json]]) -> Json:
    """An appended element as nested expressions, or None."""
    if all(isinstance(v, dict) for _, v in values):
        names = list(values[0][1])
        if any(list(v) != names for _, v in values):
            return None
        inner = {n: _element([(c, v[n]) for c, v in values]) for n in names}
        return None if any(e is None for e in inner.values()) else inner
    for name in dict.fromkeys(n for c, _ in values for n in c.observation.arguments):
        if all(alike(c.observation.arguments.get(name), v) for c, v in values):
            return ["arg", name]
    if len({canonical(v) for _, v in values}) == 1:
        return ["const", values[0][1]]
    for path, _ in leaves(values[0][0].before):
        if all(is_scalar(v) and alike(get_leaf(c.before, path), v) for c, v in values):
            return ["field", path]
    return _inside_list(values)


def _inside_list(values: Sequence[tuple[Change, Json]]) -> Expression | None:
    """A value found at the same place of a list of the record ("payments.0.method")."""
    first = values[0][0].before
    for path, leaf in leaves(first):
        if isinstance(leaf, list) and leaf and isinstance(leaf[0], dict):
            for name in leaf[0]:
                found = f"{path}.0.{name}"
                if all(alike(in_list(c.before, found), v) for c, v in values):
                    return ["field", found]
    return None


def _learn_answer(model: ToolModel, changes: Sequence[Change], fields: set[str]) -> None:
    values = [c.observation.value for c in changes]
    if not changes:
        model.notes.append("never succeeded")
        return
    if all(isinstance(v, dict) for v in values):
        full = _is_record(changes, fields)
        model.shape = "object"
        for name in dict.fromkeys(n for v in values for n in v):
            rule = _answer_field(name, changes, full or name in fields, fields)
            if rule is None:
                model.notes.append(f"field {name} of its answer is not explained")
                model.shape = "memory"
                return
            model.fields[name] = rule
        return
    templates = Counter(
        to_template(str(c.observation.text), _marks(c.observation.arguments, {**c.before, **c.after})) for c in changes
    )
    best, count = templates.most_common(1)[0]
    if count >= 0.8 * len(changes):
        model.shape, model.template = "text", best
    else:
        model.notes.append(f"{len(templates)} forms of answer in {len(changes)} calls")


def _answer_field(name: str, changes: Sequence[Change], in_record: bool, fields: set[str]) -> Expression | None:
    here = [c for c in changes if name in c.observation.value]
    values = [c.observation.value[name] for c in here]
    if in_record and name in fields:
        return ["field", name]
    for argument in dict.fromkeys(a for c in here for a in c.observation.arguments):
        if all(alike(c.observation.arguments.get(argument), v) for c, v in zip(here, values, strict=True)):
            return ["arg", argument]
        if all(_fits("sorted", argument, c, None, v) for c, v in zip(here, values, strict=True)):
            return ["sorted", argument]
    for path in dict.fromkeys(p for c in here for p, _ in leaves({**c.before, **c.later})):
        if all(alike(get_leaf({**c.before, **c.later}, path), v) for c, v in zip(here, values, strict=True)):
            return ["field", path]
    if len({canonical(v) for v in values}) == 1:
        return ["const", values[0]]
    texts = {
        to_template(str(v), _marks(c.observation.arguments, {**c.before, **c.after}))
        for c, v in zip(here, values, strict=True)
    }
    if all(isinstance(v, str) for v in values) and len(texts) == 1:
        return ["text", texts.pop()]
    return ["field", name] if in_record else None


def _marks(arguments: Mapping[str, Json], record: Mapping[str, Json]) -> list[tuple[str, Json]]:
    marks = [(f"arg:{n}", v) for n, v in arguments.items()]
    given = {str(v) for v in arguments.values()}
    return marks + [(f"field:{p}", v) for p, v in leaves(record) if is_scalar(v) and str(v) not in given]


def learn_errors(
    model: ToolModel,
    errors: Sequence[Observation],
    schema: Mapping[str, Json],
    changes: Sequence[Change] = (),
    first: Mapping[tuple[str, str, str], Mapping[str, Json]] | None = None,
) -> None:
    """Refusals: of arguments that do not fit, of unknown keys, and of records in the wrong state."""
    model.errors = len(errors)
    unknown: Counter[str] = Counter()
    invalid: Counter[str] = Counter()
    kinds = {c.type for c in changes}
    world = [record for (_, kind, _), record in (first or {}).items() if kind in kinds]
    by_state: dict[str, list[Mapping[str, Json]]] = defaultdict(list)
    records = {id(c.observation): _record_then(c, first or {}) for c in changes}
    for error in errors:
        template = to_template(error.text, [(f"arg:{n}", v) for n, v in error.arguments.items()])
        record = records.get(id(error))
        if problems(schema, error.arguments):
            invalid[template] += 1
        elif record:
            by_state[to_template(error.text, _marks(error.arguments, record))].append(record)
        else:
            unknown[template] += 1
    if unknown:
        model.unknown = unknown.most_common(1)[0][0]
    if invalid:
        model.invalid = invalid.most_common(1)[0][0]
    accepted = [r for c in changes if not c.observation.error for r in [_record_then(c, first or {})] if r]
    for template, refused in by_state.items():
        rule = _deciding_field(template, refused, accepted, world)
        if rule is not None:
            model.rejections.append(rule)
        else:
            model.notes.append(f"refusal not explained by one field of the record ({len(refused)} calls)")


def _record_then(change: Change, first: Mapping[tuple[str, str, str], Mapping[str, Json]]) -> Mapping[str, Json]:
    if change.before:
        return change.before
    return first.get((change.observation.trajectory, change.type, change.key), {})


def _deciding_field(
    template: str,
    refused: Sequence[Mapping[str, Json]],
    accepted: Sequence[Mapping[str, Json]],
    world: Sequence[Mapping[str, Json]],
) -> Rejection | None:
    best: tuple[int, str, list[Json], list[Json]] | None = None
    text = template.casefold()
    for path, leaf in leaves(refused[0]):
        if not isinstance(leaf, (str, bool)):
            continue
        bad = _distinct(get_leaf(r, path) for r in refused)
        good = _distinct(get_leaf(r, path) for r in accepted if get_leaf(r, path) is not None)
        if not good or any(alike(a, b) for a in bad for b in good) or len(bad) + len(good) > 8:
            continue
        if len(_distinct(get_leaf(r, path) for r in world)) > STATES:
            continue
        # With few refusals many fields differ by chance: then the wording has to name the field or a state of it.
        words = [path.split(".")[-1], *map(str, good), *map(str, bad)]
        named = any(len(w) > 2 and w.casefold() in text for w in words) or f"⟦field:{path}⟧" in template
        if not named and (len(_distinct(refused)) < 3 or len(_distinct(accepted)) < 5):
            continue
        rank = len(bad) + len(good) - 10 * named
        if best is None or rank < best[0]:
            best = (rank, path, bad, good)
    return Rejection(best[1], best[2], best[3], template) if best else None


def _distinct(values: Any) -> list[Json]:
    return list({canonical(v): v for v in values}.values())
