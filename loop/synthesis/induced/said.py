"""What a solution has to tell the user, and the ways to word it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from harness.scoring import occurs
from loop.synthesis.induced.cases import Case
from loop.synthesis.induced.model import ToolModel
from loop.synthesis.induced.observations import read_result
from loop.synthesis.induced.profiles import walk
from loop.synthesis.induced.world import World

Json = Any
LIMIT = 3
"""Values at most that an answer must hold: what people ask for, and not all that a chatty answer repeats."""
_MONTHS = ("January", "February", "March", "April", "May", "June", "July")
_MONTHS += ("August", "September", "October", "November", "December")


def wordings(value: Json) -> list[str]:
    """The ways to say a value: 1204.5 is "1204.5", "1,204.50"; "out_for_delivery" is "out for delivery"."""
    if isinstance(value, bool):
        return ["yes" if value else "no", str(value)]
    if isinstance(value, (int, float)):
        forms = [f"{value:g}" if abs(value) < 1e6 else str(value), str(value), f"{value:,}"]
        forms += [f"{value:.2f}", f"{value:,.2f}"]
        return list(dict.fromkeys(forms))
    text = str(value)
    forms = [text]
    if "_" in text:
        forms += [text.replace("_", " "), text.replace("_", "-")]
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return list(dict.fromkeys(forms))
    month = _MONTHS[day.month - 1]
    forms += [f"{month} {day.day}, {day.year}", f"{day.day} {month} {day.year}", f"{month} {day.day}"]
    return forms


def find_said(cases: Sequence[Case], worlds: Mapping[str, World], models: Mapping[str, ToolModel]) -> None:
    """Fill ``said`` and ``required`` of each case, in place.

    A changed record's key is said where most solutions of the kind say it. Where nothing is changed, what was looked
    up, was not in the request and stands in the answer has to be said; and if only one call shows it, that call is
    required, so that a lucky guess of a state does not pass.
    """
    answers = {c.source: _answers(c, worlds[c.source]) for c in cases}
    by_kind: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        by_kind[case.kind].append(case)
    for group in by_kind.values():
        keys = {c.source: _changed_keys(c, models) for c in group}
        says_key = [any(_told(k, c) for k in keys[c.source]) for c in group if keys[c.source]]
        usual = _usual_fields([_mentions(c, answers[c.source]) for c in group])
        for case in group:
            if keys[case.source]:
                if sum(says_key) >= 0.8 * len(says_key):
                    case.said = [k for k in keys[case.source] if _told(k, case)][:LIMIT]
                continue
            mentioned = _mentions(case, answers[case.source])
            chosen = [v for name, v in mentioned if name in usual] or [v for _, v in mentioned]
            case.said = list({str(v): v for v in chosen}.values())[:LIMIT]
            case.required = _only_sources(case.said, answers[case.source])


def _answers(case: Case, world: World) -> list[list[tuple[str, Json]]]:
    """For each call of the solution, the named values that its answer shows."""
    found: list[list[tuple[str, Json]]] = []
    for tool, arguments, _ in case.acts:
        if tool is not None:
            found.append(list(walk(read_result(world.call(tool, arguments)), f"{tool}=")))
    return found


def _changed_keys(case: Case, models: Mapping[str, ToolModel]) -> list[Json]:
    found: list[Json] = []
    for tool, arguments, _ in case.acts:
        model = models.get(tool or "")
        if model is not None and model.kind == "write":
            key = arguments.get(model.target[1]) if model.target else json.dumps(arguments)
            if key not in found:
                found.append(key)
    return found


def _final(case: Case) -> str:
    return case.acts[-1][2]


def _told(value: Json, case: Case) -> bool:
    return any(occurs(form, [_final(case)]) for form in wordings(value))


def _mentions(case: Case, answers: Sequence[Sequence[tuple[str, Json]]]) -> list[tuple[str, Json]]:
    """Named values that were looked up, are told in the end, and that the user did not say."""
    asked = [str(m.get("content") or "") for m in case.opening if m.get("role") == "user"] + case.turns
    found: list[tuple[str, Json]] = []
    for answer in answers:
        for name, value in answer:
            if value is None or isinstance(value, bool) or len(str(value)) < 2:
                continue
            if _told(value, case) and not any(occurs(form, asked) for form in wordings(value)):
                found.append((name, value))
    return found


def _usual_fields(mentions: Sequence[Sequence[tuple[str, Json]]]) -> set[str]:
    counts = Counter(name for m in mentions for name in {n for n, _ in m})
    return {name for name, count in counts.items() if count >= 0.6 * len(mentions)}


def _only_sources(said: Sequence[Json], answers: Sequence[Sequence[tuple[str, Json]]]) -> list[int]:
    found: list[int] = []
    for value in said:
        showing = [i for i, answer in enumerate(answers) if any(str(v) == str(value) for _, v in answer)]
        if len(showing) == 1 and showing[0] not in found:
            found.append(showing[0])
    return found
