"""Rules of order mined from runs that went well: tool A before tool B, or tool B after tool A.

Mining looks at outcomes (it learns from successes), labelling does not. So that no run is judged by a rule that it
helped to find, mining is cross-fitted: tasks are dealt into folds, and the runs of a fold are labelled with the rules
that the other folds gave. Where they gave none the label is missing, which is not NA.
"""

from __future__ import annotations

import zlib
from collections import Counter
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
    held: Counter[Rule] = Counter()
    applied: Counter[Rule] = Counter()
    good = [list(names) for names in successes]
    tools = Counter(tool for names in good for tool in set(names))
    common = {tool for tool, count in tools.items() if count >= MIN_SUPPORT}
    for names in good:
        _count(names, common, applied, held)
    kept = [
        r
        for r in held
        if held[r] >= MIN_SUPPORT
        and held[r] >= MIN_CONFIDENCE * applied[r]
        and (r.kind == "before" or held[r] / applied[r] >= tools[r.second] / len(good) + MIN_LIFT)
    ]
    broken: Counter[Rule] = Counter()
    total = 0
    for names in failures:
        total += 1
        present = set(names)
        for rule in kept:
            if rule.second in present if rule.kind == "before" else rule.first in present:
                broken[rule] += not _holds(rule, names)
    if total:
        kept = [r for r in kept if broken[r] >= max(2, 0.05 * total)]
    # Where A is missing, it is missing before whatever else was called: one rule says it, the one that is broken most.
    strongest: dict[tuple[Kind, str], Rule] = {}
    for rule in sorted(kept, key=lambda r: (-broken[r], -held[r], r)):
        strongest.setdefault((rule.kind, rule.needed), rule)
    return list(strongest.values())[:limit]


def _count(names: Sequence[str], common: set[str], applied: Counter[Rule], held: Counter[Rule]) -> None:
    present = set(names) & common
    for one in present:
        for other in present | common:
            if one == other:
                continue
            before, after = Rule("before", other, one), Rule("after", one, other)
            applied[before] += 1
            applied[after] += 1
            held[before] += _holds(before, names)
            held[after] += _holds(after, names)


def _holds(rule: Rule, names: Sequence[str]) -> bool:
    if rule.kind == "before":
        return rule.first in names[: names.index(rule.second)]
    return rule.second in names[names.index(rule.first) + 1 :]


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
