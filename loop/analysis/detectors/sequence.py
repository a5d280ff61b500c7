"""Rules of order mined from runs that went well: tool A before tool B, or tool B after tool A.

Mining looks at outcomes (it learns from successes), labelling does not. So that no run is judged by a rule that it
helped to find, mining is cross-fitted: tasks are dealt into folds, and the runs of a fold are labelled with the rules
that the other folds gave. Where they gave none the label is missing, which is not NA.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.environment import Act
from loop.analysis.labels import NA, Detector, Label, LapseContext
from loop.analysis.lapses import without_tool
from loop.analysis.view import View

MIN_SUPPORT = 5
MIN_CONFIDENCE = 2 / 3
# How much likelier the first tool must make the second for an order to be more than a coincidence.
MIN_LIFT = 0.1
# Two rules are broken about equally often if one is at least this share of the other.
ABOUT = 0.9
FOLDS = 5
Kind = Literal["before", "after"]


@dataclass(frozen=True, slots=True, order=True)
class Rule:
    """``before``: where ``second`` is called, ``first`` was called earlier. ``after``: ``first`` → later ``second``."""

    kind: Kind
    first: str
    second: str

    @property
    def id(self) -> str:
        return f"sequence:{self.first}>{self.second}:{self.kind}"

    @property
    def given(self) -> str:
        """The tool whose call makes the rule apply."""
        return self.second if self.kind == "before" else self.first

    @property
    def needed(self) -> str:
        """The tool whose call is missing where the rule is broken."""
        return self.first if self.kind == "before" else self.second

    def look(self, view: View) -> Label:
        """Blind like any detector: the order of the calls decides."""
        names = [a.tool for a in view.actions]
        if self.kind == "before":
            if self.second not in names:
                return NA
            index = names.index(self.second)
            if self.first in names[:index]:
                return Label("PRESENT")
            return Label("LACKING", index, view.actions[index].position, f"{self.second} without {self.first} before")
        if self.first not in names:
            return NA
        index = len(names) - 1 - names[::-1].index(self.first)
        if self.second in names[names.index(self.first) + 1 :]:
            return Label("PRESENT")
        return Label("LACKING", index, view.actions[index].position, f"{self.first} and never {self.second} after it")

    def detector(self) -> Detector:
        """The rule as a detector, for synthesis and admission."""
        needed = self.needed
        if self.kind == "before":
            name = f"{self.first} before {self.second}"
            description = f"Calls {self.first} before it calls {self.second}, as runs that go well do."
            hint = f"Call {self.first} before you call {self.second}."
        else:
            name = f"{self.second} after {self.first}"
            description = f"After calling {self.first}, goes on to call {self.second}, as runs that go well do."
            hint = f"After {self.first}, go on and call {self.second}."

        def lapse(acts: Sequence[Act], context: LapseContext) -> Sequence[Act] | None:
            return without_tool(needed, acts)

        return Detector(self.id, name, description, hint, self.look, lapse)


def rule_from_id(id: str) -> Detector | None:
    """The detector of a rule that an earlier analysis found, from its id alone."""
    prefix, _, rest = id.partition(":")
    pair, _, kind = rest.rpartition(":")
    first, arrow, second = pair.partition(">")
    if prefix != "sequence" or not arrow or kind not in ("before", "after"):
        return None
    return Rule(kind, first, second).detector()  # type: ignore[arg-type]  # narrowed by the test above


def mine(successes: Iterable[Sequence[str]], failures: Iterable[Sequence[str]] = (), limit: int = 6) -> list[Rule]:
    """Rules that at least two thirds of the successes keep (5 at least), those first that failures break most.

    Each argument is a run's tool names in order. Failures only order the rules, and drop those that they never
    break: a rule that nobody breaks distinguishes nothing. "B after A" is dropped where A hardly makes B likelier, for
    example because every run calls A: then it only says that B is often called.
    """
    good = [_Calls(names) for names in successes]
    tools = Counter(tool for calls in good for tool in calls.first)
    held: dict[Rule, int] = {}
    apart: dict[Rule, float] = {}
    for pair, spans in _kept(good).items():
        rule = Rule(*pair)
        applied = tools[rule.given]
        enough = len(spans) >= max(MIN_SUPPORT, MIN_CONFIDENCE * applied)
        if enough and (rule.kind == "before" or len(spans) / applied >= tools[rule.second] / len(good) + MIN_LIFT):
            held[rule], apart[rule] = len(spans), sum(spans) / len(spans)
    bad = [_Calls(names) for names in failures]
    broken = {rule: sum(calls.breaks(rule) for calls in bad) for rule in held}
    kept = [rule for rule in held if not bad or broken[rule] >= max(2, 0.05 * len(bad))]
    # Where A is missing, it is missing before whatever else was called, and one rule says it: that of the nearest
    # call, which A prepares, among those that are broken about as often as the one that is broken most.
    by_needed: dict[tuple[Kind, str], list[Rule]] = {}
    for rule in sorted(kept, key=lambda r: (-broken[r], -held[r], r)):
        by_needed.setdefault((rule.kind, rule.needed), []).append(rule)
    chosen = [
        min((r for r in rules if broken[r] >= ABOUT * broken[rules[0]]), key=lambda r: (apart[r], -held[r], r))
        for rules in by_needed.values()
    ]
    return chosen[:limit]


class _Calls:
    """Where each tool is first and last called in a run."""

    def __init__(self, names: Sequence[str]) -> None:
        self.first: dict[str, int] = {}
        self.last: dict[str, int] = {}
        for index, name in enumerate(names):
            self.first.setdefault(name, index)
            self.last[name] = index

    def breaks(self, rule: Rule) -> bool:
        """Whether the rule applies to the run and is not kept."""
        if rule.given not in self.first:
            return False
        if rule.kind == "before":
            return self.first.get(rule.first, self.first[rule.second]) >= self.first[rule.second]
        return self.last.get(rule.second, -1) <= self.first[rule.first]


def _kept(runs: Iterable[_Calls]) -> dict[tuple[Kind, str, str], list[int]]:
    """For every order that some run keeps: how many calls apart the two tools are, in each run that keeps it."""
    found: dict[tuple[Kind, str, str], list[int]] = defaultdict(list)
    for calls in runs:
        for one, start in calls.first.items():
            for other in calls.first:
                if one == other:
                    continue
                if start < calls.first[other]:
                    found["before", one, other].append(calls.first[other] - start)
                if start < calls.last[other]:
                    found["after", one, other].append(calls.last[other] - start)
    return found


def cross_fit(
    runs: Sequence[tuple[str, bool | None, Sequence[str]]],
    references: Iterable[Sequence[str]] = (),
    folds: int = FOLDS,
) -> dict[Rule, Callable[[str], bool]]:
    """The rules that at least half of the folds' complements gave, each with who may be labelled by it.

    ``runs`` are (task, outcome, tool names). Returns for each rule a predicate on tasks: whether the rule was found
    without the fold of that task. References are evidence in every fold, since they are never labelled.
    """
    extra = list(references)
    found: dict[int, set[Rule]] = {}
    for fold in range(folds):
        others = [(ok, names) for task, ok, names in runs if fold_of(task, folds) != fold]
        good = [names for ok, names in others if ok is True] + extra
        bad = [names for ok, names in others if ok is False]
        found[fold] = set(mine(good, bad)) if bad else set()
    counts = Counter(rule for rules in found.values() for rule in rules)
    stable = sorted(rule for rule, count in counts.items() if count * 2 >= folds)
    return {rule: _found_without(rule, found, folds) for rule in stable}


def _found_without(rule: Rule, found: dict[int, set[Rule]], folds: int) -> Callable[[str], bool]:
    allowed = frozenset(fold for fold, rules in found.items() if rule in rules)
    return lambda task: fold_of(task, folds) in allowed


def fold_of(task: str, folds: int = FOLDS) -> int:
    """The fold of a task: by its name alone, so that all its runs fall into one, in every process."""
    return zlib.crc32(task.encode()) % folds
