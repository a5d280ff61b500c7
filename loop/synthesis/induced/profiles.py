"""What kind of value a field holds, so that new values can be made that look like the old ones.

Classes: "id" (new digits and letters by pattern), "email" (new mailbox), "words" (every word replaced by another of
the same place: names, items), "text" (the whole replaced by another seen in the field), "keep" (all else: states,
numbers, dates, yes and no; what a choice or a rule may hang on).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loop.analysis.values import is_identifier_name

Json = Any
POOL = 240
"""Values kept of a field: enough for diversity, few enough for a spec one can read."""
_DATE = re.compile(r"^\d{4}-\d{1,2}(-\d{1,2})?([T ].*)?$|^\d{1,2}[./]\d{1,2}[./]\d{2,4}$|^\d{1,2}:\d{2}(:\d{2})?$")
_EMAIL = re.compile(r"^[^@\s]+@[^@\s]+\.[^@\s]+$")
_WORDS = re.compile(r"^[^\W\d_]+([ '\-][^\W\d_]+){0,3}$")


@dataclass
class Profile:
    """One field. ``pool``: values seen in it; for "words": the words seen, by place ("0/2" is the first of two)."""

    kind: str
    pool: list[str] = field(default_factory=list)
    places: dict[str, list[str]] = field(default_factory=dict)
    prefix: str = ""
    """For "id": what all values begin with, digits left out."""
    runs: list[str] = field(default_factory=list)
    """For "id": letter runs that are part of the pattern and not of the value."""


def walk(value: Json, path: str) -> Iterable[tuple[str, Json]]:
    """(profile name, scalar) for everything in a record; list places are one profile, and so are keys of a map."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from walk(inner, f"{path}.{'*' if _varies(key) else key}")
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from walk(inner, path)
    else:
        yield path, value


def _varies(key: str) -> bool:
    """A key with three digits or more is a value and no field name."""
    return sum(c.isdigit() for c in str(key)) >= 3


def build_profiles(values: Iterable[tuple[str, Json]], keys: set[str], fixed: frozenset[str]) -> dict[str, Profile]:
    """Profiles by name from all the values of a field. ``keys``: values that name records; ``fixed``: values that a
    tool's schema or the system prompt states, which must stay."""
    by_name: dict[str, Counter[str]] = defaultdict(Counter)
    for name, value in values:
        if isinstance(value, bool) or value is None or isinstance(value, float):
            continue
        if isinstance(value, int) and str(value) not in keys and not _is_id(name, value):
            continue
        if str(value) and str(value) not in fixed:
            by_name[name][str(value)] += 1
    return {name: classify(name, counts, keys) for name, counts in by_name.items()}


def _is_id(name: str, value: int) -> bool:
    return value > 99 and is_identifier_name(name.rsplit(".", 1)[-1])


def classify(name: str, counts: Mapping[str, int], keys: set[str]) -> Profile:
    """The profile of one field."""
    values = sorted(counts)
    total, distinct = sum(counts.values()), len(values)
    pool = sorted(values, key=lambda v: (-counts[v], v))[:POOL]

    def share(test: Any) -> float:
        return sum(counts[v] for v in values if test(v)) / total

    if share(_DATE.match) > 0.5:
        return Profile("keep")
    if share(_EMAIL.match) >= 0.7:
        return Profile("email", pool)
    last = name.rsplit(".", 1)[-1].lstrip("@")
    pointed = share(lambda v: v in keys)
    coded = share(lambda v: any(c.isdigit() for c in v) and " " not in v)
    telling = pointed > 0.5 or is_identifier_name(last)
    if telling and share(lambda v: " " not in v) > 0.9 and (coded > 0.5 or distinct > 12):
        return Profile("id", pool, prefix=_prefix(values), runs=_runs(values))
    if distinct < 6 or (distinct < 0.1 * total and distinct < 20):
        return Profile("keep")
    if coded > 0.9 and distinct > 0.3 * total:
        return Profile("id", pool, prefix=_prefix(values), runs=_runs(values))
    if share(_WORDS.match) > 0.9:
        places: dict[str, Counter[str]] = defaultdict(Counter)
        for value in values:
            words = value.split()
            for index, word in enumerate(words):
                places[f"{index}/{len(words)}"][word] += counts[value]
        return Profile("words", places={p: sorted(c)[:POOL] for p, c in sorted(places.items())})
    return Profile("text", pool)


def _prefix(values: Sequence[str]) -> str:
    prefix = values[0]
    for value in values:
        while not value.startswith(prefix):
            prefix = prefix[:-1]
    return re.sub(r"\d.*$", "", prefix) if len(values) > 1 else re.sub(r"\d.*$", "", values[0])


def _runs(values: Sequence[str]) -> list[str]:
    """Letter runs so frequent among the values that they belong to the pattern ("HAT" in "HAT069")."""
    counts = Counter(run for v in values for run in set(re.findall(r"[^\W\d_]+", v)))
    return sorted(run for run, n in counts.items() if n >= max(2, 0.1 * len(values)))
