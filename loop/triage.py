"""Whose fault was it? Failures of the harness are set apart before the agent's own are contrasted.

Each failed run is attributed to one boundary. What the recorder attributed stays; what it did not is told from the
exception and from tool answers. Faults of the machinery would otherwise look like capabilities: a tool that never
works is "lacking" in all failures and in no success.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from harness.tool_kinds import is_system_fault
from loop.analysis.schema import fault
from loop.analysis.values import is_wrong_kind
from loop.analysis.view import Action, ToolBooks, View
from storage.trajectory import Trajectory

Boundary = Literal["agent", "tool", "environment", "provider", "infrastructure", "grader", "unknown"]
BOUNDARIES: tuple[Boundary, ...] = ("agent", "tool", "environment", "provider", "infrastructure", "grader", "unknown")
MIN_RUNS = 3
MAX_EXAMPLES = 5

_PROVIDER = re.compile(
    r"rate.?limit|overloaded|quota|api.?key|authenticat|context.?length|content.?(filter|policy)|bad gateway|"
    r"(openai|anthropic|litellm|model|completion)\w*\W.{0,40}(error|unavailable|time)|\b(429|50[234]|529)\b",
    re.I,
)
_INFRASTRUCTURE = re.compile(
    r"connection|time[d ]?-?\s?out|memory|no space left|disk|killed|signal|broken pipe|dns|name resolution|ssl|cuda",
    re.I,
)


@dataclass(frozen=True, slots=True)
class HarnessProblem:
    """One fault that isn't the agent's, with the runs that it spoiled."""

    boundary: Boundary
    description: str
    trajectories: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The row of `harness_problems`."""
        return {
            "boundary": self.boundary,
            "description": self.description,
            "count": len(self.trajectories),
            "examples": list(self.trajectories[:MAX_EXAMPLES]),
        }


@dataclass(frozen=True, slots=True)
class Triage:
    """``spoiled`` maps the id of each failed run that must not be contrasted to its boundary."""

    spoiled: Mapping[str, Boundary]
    problems: tuple[HarnessProblem, ...]


def triage(trajectories: Iterable[Trajectory], books: ToolBooks | None = None) -> Triage:
    """Attribute the failed runs among these. Runs that succeeded are needed too: they show which tools work."""
    books = books or ToolBooks()
    runs = [(t, View.of(t, books)) for t in trajectories]
    spoiled: dict[str, Boundary] = {}
    grouped: dict[tuple[Boundary, str], list[str]] = defaultdict(list)

    def blame(boundary: Boundary, description: str, ids: Iterable[str]) -> None:
        for id in ids:
            if id not in spoiled:
                spoiled[id] = boundary
                grouped[boundary, description].append(id)

    for trajectory, view in runs:
        if trajectory.success is False:
            boundary, description = attribute(trajectory, view)
            if boundary not in ("agent", "unknown"):
                blame(boundary, description, [trajectory.id])
    for tool, text, ids in _dead_tools(runs):
        blame("tool", f"{tool} never answers anything but {text!r:.120}", ids)
    for tool, text, task, ids in _same_error_everywhere(runs):
        blame("tool", f"every run of task {task!r:.60} ends in the same error of {tool}: {text!r:.120}", ids)
    problems = [HarnessProblem(b, d, tuple(ids)) for (b, d), ids in grouped.items()]
    return Triage(spoiled, tuple(sorted(problems, key=lambda p: (-len(p.trajectories), p.description))))


def attribute(trajectory: Trajectory, view: View | None = None) -> tuple[Boundary, str]:
    """The boundary of one failed run, by what is known of this run alone, and why in a few words."""
    error = trajectory.error or {}
    named = error.get("boundary")
    text = f"{error.get('type', '')}: {error.get('message', '')}"
    if named in BOUNDARIES and named not in ("unknown", "agent"):
        return named, text[:160]
    if trajectory.status == "aborted":
        return "infrastructure", "the process died before the run ended"
    if error and named != "agent":
        if _PROVIDER.search(text):
            return "provider", _shape(text)
        if _INFRASTRUCTURE.search(text):
            return "infrastructure", _shape(text)
    view = view or View.of(trajectory)
    if view.actions:
        last = view.actions[-1]
        if last.error and is_system_fault(last.result):
            return "tool", f"{last.tool}: {_shape(last.result or '')}"
    if error and named != "agent" and trajectory.status == "raised":
        return "unknown", _shape(text)
    return "agent", ""


def _dead_tools(runs: Sequence[tuple[Trajectory, View]]) -> Iterable[tuple[str, str, list[str]]]:
    """Tools whose every call in at least three runs failed alike, although the calls differed and were sound."""
    calls: dict[str, list[tuple[Trajectory, View, Action]]] = defaultdict(list)
    for trajectory, view in runs:
        for action in view.actions:
            if action.result is not None:
                calls[action.tool].append((trajectory, view, action))
    for tool, made in sorted(calls.items()):
        if not all(action.error for _, _, action in made):
            continue
        shapes = {_shape(action.result or "") for _, _, action in made}
        sound = [(t, a) for t, v, a in made if _is_sound(v, a)]
        owners = {t.id for t, _ in sound}
        if len(shapes) == 1 and len(owners) >= MIN_RUNS and len({a.same for _, a in sound}) >= 2:
            failed = sorted({t.id for t, _, _ in made if t.success is False})
            if failed:
                yield tool, shapes.pop(), failed


def _same_error_everywhere(runs: Sequence[tuple[Trajectory, View]]) -> Iterable[tuple[str, str, str, list[str]]]:
    """Tasks that at least three runs tried, that none solved, and where all met one and the same error."""
    by_task: dict[str, list[tuple[Trajectory, View]]] = defaultdict(list)
    for trajectory, view in runs:
        task = trajectory.task if trajectory.task is not None else _prompt(trajectory)
        if task and trajectory.success is not None:
            by_task[task].append((trajectory, view))
    for task, tried in sorted(by_task.items()):
        if len(tried) < MIN_RUNS or any(t.success for t, _ in tried):
            continue
        errors = [
            {(a.tool, a.result or "") for a in view.actions if a.error and not _mended(view, a) and _is_sound(view, a)}
            for _, view in tried
        ]
        for tool, text in sorted(set.intersection(*errors))[:1]:
            yield tool, text, task, [t.id for t, _ in tried]


def _is_sound(view: View, action: Action) -> bool:
    """Whether nothing in the call explains its failure: then the tool is to blame, not the agent."""
    if action.call.arguments is None:
        return False
    facts = view.book.get(action.tool)
    if view.book.facts and facts is None:
        return False
    if facts is not None and facts.schema is not None and fault(action.arguments, facts.schema):
        return False
    if _speaks_of_the_call(action, facts.schema if facts is not None else None):
        return False
    return all(
        view.is_known(n.value, action.position) and not is_wrong_kind(n.parameter, n.value) for n in action.names
    )


def _speaks_of_the_call(action: Action, schema: Mapping[str, Any] | None) -> bool:
    """Whether the refusal names an argument or its value ("no order 57", "customer_id is missing").

    Such a tool works: it looked at what it was given. A broken one fails whatever it is given.
    """
    said = set(re.findall(r"[\w@.#-]+", (action.result or "").lower()))
    names = {*action.arguments, *((schema or {}).get("properties") or {})}
    values = {str(v) for v in action.arguments.values() if isinstance(v, str | int | float) and str(v).strip()}
    return bool(said & {word.lower().rstrip(".") for word in names | values})


def _mended(view: View, failure: Action) -> bool:
    return any(a.tool == failure.tool and a.accepted for a in view.actions[failure.index + 1 :])


def _prompt(trajectory: Trajectory) -> str:
    return next((" ".join(m.content.split()) for m in trajectory.messages if m.role == "user"), "")


def _shape(text: str) -> str:
    """An error without what differs from run to run: numbers, quoted values, addresses."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if isinstance(value, dict):
        # The quotes of JSON are not those of a value: without this, all errors in JSON look alike.
        text = " ".join(str(v) for v in value.values())
    text = re.sub(r"'[^']*'|\"[^\"]*\"|\S+@\S+|#?\w*\d[\w-]*", "…", text[:300])
    return " ".join(text.split())[:160]
