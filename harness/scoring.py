"""From declared goals, the state before and after, and the transcript, to a score. The one place that scores.

Environments never score themselves. Two numbers come out: ``total`` says how much of what was asked for was
achieved (1.0 exactly when the task is solved); ``shaped`` is the reward for training, which also pays for the way
there, so that a policy that did the right look-ups gets more than one that did nothing.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.arguments import parameters_of, problems
from harness.environment import Act, Goals, RequiredCall

Json = Any

PROGRESS_WEIGHT = 0.35
WELL_FORMED_WEIGHT = 0.05
DIRECT_WEIGHT = 0.2
"""What a solution loses in training when most of its calls were superfluous. Without it, a policy learns to make the
calls of the commonest task first, whatever was asked: on the others they only cost time."""
UNSOLVED_AT_MOST = 1.0 - WELL_FORMED_WEIGHT - DIRECT_WEIGHT - 0.01
CALLS_PER_STEP, CALLS_SPARE = 4, 8
"""A solution may take this many calls for each call of the reference, and these in addition. Beyond that it is spam."""
DUMP_LENGTH = 80
"""A tool result of at least this many characters, repeated verbatim to the user, tells the user nothing."""


@dataclass(frozen=True, slots=True)
class Score:
    """``success``: every goal holds. ``total`` and every component in 0..1. ``shaped`` in 0..1, for training only.

    ``components``: state, unchanged, required, forbidden, said, economy (1 unless it calls far too much), progress
    (calls of the reference that were made; 0 without a reference), direct (the share of its calls that the reference
    needs too, by number; 1 without a reference) and well_formed (calls that fit their schema; 0
    when none was made). ``reasons`` name what is missing, one sentence each.
    """

    total: float
    success: bool
    components: Mapping[str, float]
    reasons: tuple[str, ...]
    shaped: float


@dataclass(frozen=True, slots=True)
class _Call:
    tool: str
    arguments: Mapping[str, Json] | None


def score(
    goals: Goals,
    before: Mapping[str, Json],
    after: Mapping[str, Json],
    messages: Sequence[Mapping[str, Json]],
    *,
    reference: Sequence[Act] = (),
    tools: Sequence[Mapping[str, Json]] = (),
) -> Score:
    """Score one finished episode.

    ``before`` and ``after`` are what ``state()`` returned after ``reset`` and at the end. ``messages`` are those that
    the episode added (not the task's own), in chat form. ``reference`` feeds the progress component and the number of
    calls that is still reasonable; without it neither is judged.
    """
    calls = list(_calls(messages))
    reasons: list[str] = []
    wrong = [p for p, value in goals.state.items() if not same(state_at(after, p), value)]
    reasons += [f"{path} is {_short(state_at(after, path))}, not {_short(goals.state[path])}" for path in wrong]
    stray = changed_paths(before, after, except_under=goals.state) if goals.unchanged else []
    reasons += [f"{path} was changed and should not have been" for path in stray[:5]]
    absent = [r for r in goals.required if not any(_matches(r, c) for c in calls)]
    reasons += [f"{_describe(r)} was not called" for r in absent]
    broken = [r for r in goals.forbidden if any(_matches(r, c) for c in calls)]
    reasons += [f"{_describe(r)} was called and is forbidden" for r in broken]
    told = _told(messages)
    unsaid = [group for group in goals.said if not any(occurs(text, told) for text in group)]
    reasons += [f"the user was not told {_short(group[0] if group else '')}" for group in unsaid]

    allowed = CALLS_PER_STEP * sum(1 for act in reference if act.tool) + CALLS_SPARE
    spam = bool(reference) and len(calls) > allowed
    reasons += [f"{len(calls)} calls, where {allowed} are plenty"] if spam else []

    wanted = len(goals.state) + len(goals.required) + len(goals.said)
    achieved = 1.0 - (len(wrong) + len(absent) + len(unsaid)) / wanted if wanted else 1.0
    components = {
        "state": _fraction(len(wrong), len(goals.state)),
        "unchanged": 1.0 / (1 + len(stray)),
        "required": _fraction(len(absent), len(goals.required)),
        "forbidden": _fraction(len(broken), len(goals.forbidden)),
        "said": _fraction(len(unsaid), len(goals.said)),
        "progress": progress(reference, calls),
        "direct": _direct(reference, calls),
        "economy": allowed / len(calls) if spam else 1.0,
        "well_formed": _well_formed(calls, tools),
    }
    clean = components["unchanged"] * components["economy"] * (1.0 if not broken else 0.0)
    total = achieved * clean
    success = not (wrong or stray or absent or broken or unsaid or spam)
    return Score(total, success, components, tuple(reasons), _shape(total, success, clean, components))


def _shape(total: float, success: bool, clean: float, components: Mapping[str, float]) -> float:
    """A solved task is worth more than any unsolved one, whichever way it went.

    What damages the world lowers everything: doing the wrong thing must be worth less than stopping before it.
    """
    form = WELL_FORMED_WEIGHT * components["well_formed"]
    if success:
        return 1.0 - WELL_FORMED_WEIGHT + form - DIRECT_WEIGHT * (1.0 - components["direct"])
    outcome = 1.0 - PROGRESS_WEIGHT - WELL_FORMED_WEIGHT
    # Without any progress a task's parts that hold by luck are still worth something.
    return min(UNSOLVED_AT_MOST, clean * (form + PROGRESS_WEIGHT * components["progress"]) + outcome * total)


def _direct(reference: Sequence[Act], calls: Sequence[_Call]) -> float:
    needed = sum(1 for act in reference if act.tool)
    return min(1.0, needed / len(calls)) if needed and calls else 1.0


def progress(reference: Sequence[Act], calls: Sequence[_Call]) -> float:
    """How much of the reference's calls were made: 0.3 for the right tool, the rest by the share of arguments.

    Each call counts for one call of the reference at most, and more calls than the reference needs dilute the
    credit, so that neither calling everything nor going on calling pays.
    """
    wanted = [act for act in reference if act.tool]
    if not wanted or not calls:
        return 0.0
    pairs = sorted(
        ((_likeness(act, call), -i, -j) for i, act in enumerate(wanted) for j, call in enumerate(calls)), reverse=True
    )
    used_acts: set[int] = set()
    used_calls: set[int] = set()
    credit = 0.0
    for value, i, j in pairs:
        if value > 0 and i not in used_acts and j not in used_calls:
            used_acts.add(i)
            used_calls.add(j)
            credit += value
    # One call more may be a second try; what goes round in circles earns less with every turn.
    return credit / len(wanted) * min(1.0, (len(wanted) + 1) / len(calls))


def _likeness(act: Act, call: _Call) -> float:
    if act.tool != call.tool or call.arguments is None:
        return 0.0
    names = set(act.arguments) | set(call.arguments)
    equal = sum(1 for n in names if n in act.arguments and same(call.arguments.get(n), act.arguments[n]))
    return 0.3 + 0.7 * (equal / len(names) if names else 1.0)


def _calls(messages: Sequence[Mapping[str, Json]]) -> Iterator[_Call]:
    for message in messages:
        for raw in message.get("tool_calls") or ():
            function = raw.get("function") or {}
            yield _Call(str(function.get("name")), parse_arguments(function.get("arguments")))


def parse_arguments(raw: Json) -> Mapping[str, Json] | None:
    """Arguments of a tool call as an object; None when they are not one."""
    if isinstance(raw, Mapping):
        return raw
    try:
        value = json.loads(raw)
    except (TypeError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _well_formed(calls: Sequence[_Call], tools: Sequence[Mapping[str, Json]]) -> float:
    if not calls:
        return 0.0
    good = 0
    for call in calls:
        schema = parameters_of(tools, call.tool) if tools else {}
        good += call.arguments is not None and schema is not None and not problems(schema, call.arguments)
    return good / len(calls)


def _matches(required: RequiredCall, call: _Call) -> bool:
    if call.tool != required.tool:
        return False
    given = call.arguments or {}
    return all(name in given and same(given[name], value) for name, value in required.arguments.items())


_PLAIN = frozenset({str, int, float, bool, type(None)})


def snapshot(value: Json) -> Json:
    """A deep copy of a JSON value, many times faster than `copy.deepcopy`, which copies whatever else there is."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is dict:
        return {key: snapshot(inner) for key, inner in value.items()}
    if kind is list:
        return [snapshot(inner) for inner in value]
    if kind is tuple:
        return tuple([snapshot(inner) for inner in value])
    return copy.deepcopy(value)


def same(a: Json, b: Json) -> bool:
    """JSON equality: 12 and 12.0 are equal, True and 1 are not, an absent value equals nothing but itself."""
    if a is b:
        return True
    kind = type(a)
    if kind in _PLAIN and kind is type(b):
        return a == b
    if isinstance(a, bool) or isinstance(b, bool):
        return False
    form = _form(a)
    if form is None or form is not _form(b):
        return bool(a == b)
    if form is dict:
        return a.keys() == b.keys() and all(map(same, a.values(), [b[key] for key in a]))
    return len(a) == len(b) and all(map(same, a, b))


def _form(value: Json) -> type | None:
    """`dict` for what maps, `list` for lists and tuples, None for what holds nothing.

    The types of nearly all values are looked at first: to ask an abstract class takes as long as all the rest.
    """
    kind = type(value)
    if kind is dict or kind is list:
        return kind
    if kind in _PLAIN:
        return None
    if isinstance(value, Mapping):
        return dict
    return list if isinstance(value, (list, tuple)) else None


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()


def state_at(state: Json, path: str) -> Json:
    """The value of a state at a dot-separated path. ABSENT when there is none.

    Keys may hold dots themselves: the longest key that fits is tried first.
    """
    if isinstance(state, Mapping):
        if path in state:
            return state[path]
        for cut in sorted((i for i, c in enumerate(path) if c == "."), reverse=True):
            if path[:cut] in state:
                found = state_at(state[path[:cut]], path[cut + 1 :])
                if found is not ABSENT:
                    return found
    elif isinstance(state, (list, tuple)):
        head, _, rest = path.partition(".")
        if head.isdigit() and int(head) < len(state):
            return state_at(state[int(head)], rest) if rest else state[int(head)]
    return ABSENT


def changed_paths(before: Json, after: Json, *, except_under: Mapping[str, Json] | Sequence[str] = ()) -> list[str]:
    """Paths of the deepest values that differ, those at or under ``except_under`` left out.

    A list of another length is one change, not one for each of its places.
    """
    exempt = tuple(except_under)
    below = tuple(f"{e}." for e in exempt)
    found: list[str] = []

    def holds_exempt(path: str) -> bool:
        return not path or any(e.startswith(f"{path}.") for e in exempt)

    def compare(a: Json, b: Json, path: str) -> None:
        if a is b or path in exempt or path.startswith(below):
            return
        of_a, of_b = _form(a), _form(b)
        if of_a is dict and of_b is dict:
            for key in a if a.keys() == b.keys() else [*a, *(k for k in b if k not in a)]:
                x, y = a.get(key, ABSENT), b.get(key, ABSENT)
                if type(x) is not str or x != y:  # most of a state are texts that stayed, which need no path
                    compare(x, y, f"{path}.{key}" if path else str(key))
        elif of_a is list and of_b is list and len(a) == len(b):
            for index, (x, y) in enumerate(zip(a, b, strict=True)):
                compare(x, y, f"{path}.{index}")
        elif a is ABSENT and of_b is dict and holds_exempt(path):
            for key in b:
                compare(ABSENT, b[key], f"{path}.{key}")
        elif not same(a, b):
            found.append(path)

    compare(before, after, "")
    return found


def _told(messages: Sequence[Mapping[str, Json]]) -> list[str]:
    """What the agent said to the user. A tool result handed on verbatim is not an answer."""
    results = [_text(m) for m in messages if m.get("role") == "tool"]
    long = [_squeeze(r) for r in results if len(r) >= DUMP_LENGTH]
    said = [_squeeze(_text(m)) for m in messages if m.get("role") == "assistant"]
    return [text for text in said if text and not any(result in text for result in long)]


def _text(message: Mapping[str, Json]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    return " ".join(str(p.get("text", "")) for p in content or () if isinstance(p, Mapping))


def _squeeze(text: str) -> str:
    return " ".join(text.split()).casefold()


def occurs(text: str, told: Sequence[str]) -> bool:
    """Whether ``text`` stands in one of ``told`` as a whole: "12" is not said by "312" nor by "12.50"."""
    needle = _squeeze(text)
    if not needle:
        return False
    return any(_stands_in(needle, _squeeze(t)) for t in told)


_NO_WORD_BEFORE, _NO_WORD, _NO_NUMBER = (re.compile(p) for p in (r"(?<!\w)", r"(?!\w)", r"(?!\w)(?![.,]\d)"))


def _stands_in(needle: str, text: str) -> bool:
    """Looked for by hand: a pattern of every needle's own takes longer to compile than all the rest of a score."""
    before = _NO_WORD_BEFORE if needle[0].isalnum() else None
    after = _NO_NUMBER if needle[-1].isdigit() else _NO_WORD if needle[-1].isalnum() else None
    at = text.find(needle)
    while at >= 0:
        end = at + len(needle)
        if (before is None or before.match(text, at)) and (after is None or after.match(text, end)):
            return True
        at = text.find(needle, at + 1)
    return False


def _fraction(missing: int, of: int) -> float:
    return 1.0 - missing / of if of else 1.0


def _describe(call: RequiredCall) -> str:
    return f"{call.tool}({', '.join(f'{k}={_short(v)}' for k, v in call.arguments.items())})"


def _short(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
