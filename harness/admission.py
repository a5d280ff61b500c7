"""Admission: whether an environment may be used, decided by playing it with policies that need no model.

Every check leaves a number. Admission spends no token; how hard the environment is for the policy that will be
trained is a separate question, answered by `calibrate`. Environments may live in processes of their own: what is
made here is closed here, and one instance plays many episodes, since a start costs more than an episode.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.arguments import function_of
from harness.calibration import Calibration, Range, calibrate
from harness.checks import Check, at_least, at_most
from harness.environment import Act, Environment, Task
from harness.episodes import Episode
from harness.policies import (
    CallEverything,
    CopyTheExample,
    EchoPolicy,
    LapsePolicy,
    NullPolicy,
    OddCalls,
    OneArgumentWrong,
    RandomValidCall,
    ReferencePolicy,
    ScriptedPolicy,
)
from harness.stage import Stage, fingerprint, fresh

__all__ = ["AdmissionReport", "Calibration", "Check", "Range", "Thresholds", "admit", "calibrate", "fingerprint"]

Json = Any
Make = Callable[[], Environment]
Mutate = Callable[[Sequence[Act], Task], "Sequence[Act] | None"]
Labeler = Callable[[Sequence[Mapping[str, Json]], Sequence[Mapping[str, Json]]], str]
"""(messages, tools) of an episode → "NA", "PRESENT" or "LACKING"."""


@dataclass(frozen=True)
class Thresholds:
    """What an environment has to reach. Shares are of seeds; times are seconds, sizes characters. After ``faults``
    faults nothing more is played."""

    seeds: int = 100
    distinct_seeds: int = 200
    distinct: float = 0.95
    lazy: float = 0.05
    lapse: float = 0.3
    lapse_applies: float = 0.5
    ordered: float = 0.95
    agreement: float = 0.9
    isolation: float = 0.5
    wrong: float = 0.3
    reset_s: float = 0.5
    call_s: float = 0.1
    episode_s: float = 5.0
    task_chars: int = 60_000
    result_chars: int = 60_000
    episode_chars: int = 200_000
    state_chars: int = 2_000_000
    reference_calls: int = 40
    faults: int = 3
    duplicate: float = 0.95
    first_seed: int = 10_000


@dataclass(frozen=True)
class AdmissionReport:
    """All checks, in the order they were made. A check that could not be made is absent, not passed."""

    environment: str
    checks: tuple[Check, ...]

    @property
    def admitted(self) -> bool:
        return bool(self.checks) and all(check.passed for check in self.checks)

    def to_json(self) -> dict[str, Json]:
        checks = [asdict(check) for check in self.checks]
        return {"environment": self.environment, "admitted": self.admitted, "checks": checks}

    def lines(self) -> list[str]:
        """The report as lines of text."""
        rows = [
            f"  {'pass' if c.passed else 'FAIL'}  {c.name:<18} {c.value:>8.3f}  {c.threshold:<10} {c.detail}"
            for c in self.checks
        ]
        return [f"{self.environment}: {'admitted' if self.admitted else 'not admitted'}", *rows]


def admit(
    make: Make,
    target_tools: Sequence[Mapping[str, Json]],
    *,
    lapse: Mutate | None = None,
    label: Labeler | None = None,
    systems: Sequence[str] = (),
    held_out: Sequence[str] = (),
    elsewhere: Callable[[Sequence[int]], Sequence[str]] | None = None,
    thresholds: Thresholds | None = None,
) -> AdmissionReport:
    """Play an environment and judge it.

    ``make`` gives a new instance; ``target_tools`` are the schemas of the agent that will be trained. ``lapse`` is the
    detector's mutation of a solution, ``label`` the detector itself. ``systems`` are the agent's system prompts ("" for
    none), of which each task has to use one. ``held_out`` are requests of the gate and report splits. ``elsewhere``
    fingerprints seeds in another process; without it determinism is judged between instances.
    An environment that raises is not admitted, and the check ``runs`` says where.
    """
    limits = thresholds or Thresholds()
    checks: list[Check] = []
    with Stage(make, limits.faults) as stage:
        name = "environment"
        try:
            name = stage.env.name
            checks.append(_interface(stage.env, target_tools))
            firsts = _fingerprints(make, _seeds(limits, min(limits.seeds, 40)))
            checks += _determinism(stage, firsts, elsewhere)
            checks += _diversity(stage, limits, systems, held_out)
            asyncio.run(_play(stage, limits, checks, lapse, label))
            checks.append(_unspoiled(stage, firsts))
        except Exception as error:
            stage.faults.append(f"{type(error).__name__}: {error}")
        checks.append(stage.runs())
    return AdmissionReport(name, tuple(checks))


def _fingerprints(make: Make, seeds: Sequence[int]) -> dict[int, str]:
    """Each seed in an instance of its own."""
    found: dict[int, str] = {}
    for seed in seeds:
        with fresh(make) as env:
            found[seed] = fingerprint(env, seed)
    return found


def _seeds(limits: Thresholds, count: int | None = None) -> list[int]:
    return list(range(limits.first_seed, limits.first_seed + (count or limits.seeds)))


def _interface(env: Environment, target: Sequence[Mapping[str, Json]]) -> Check:
    """Byte for byte: the same JSON text, key order included, since that is what the model reads."""
    ours, theirs = [json.dumps(t) for t in env.tools], [json.dumps(t) for t in target]
    odd = [index for index, (a, b) in enumerate(itertools.zip_longest(ours, theirs)) if a != b]
    share = 1.0 - len(odd) / max(len(ours), len(theirs), 1)
    where = f": {_name_of([*target, *env.tools[len(target) :]][odd[0]])} first" if odd else ""
    detail = f"{len(odd)} of {len(theirs)} tools differ{where}"
    return Check("interface", share, "= 1", ours == theirs and bool(ours), detail)


def _name_of(tool: Mapping[str, Json]) -> str:
    return str(function_of(tool).get("name"))


def _determinism(
    stage: Stage, firsts: Mapping[int, str], elsewhere: Callable[[Sequence[int]], Sequence[str]] | None
) -> list[Check]:
    seeds = list(firsts)
    again = list(elsewhere(seeds)) if elsewhere else list(_fingerprints(stage.make, seeds).values())
    equal = sum(a == b for a, b in zip(firsts.values(), again, strict=False)) / len(seeds)
    where = "in another process" if elsewhere else "in new instances"
    random.Random(0).shuffle(seeds)
    odd = [seed for seed in seeds if fingerprint(stage.env, seed) != firsts[seed]]
    detail = f"seed {odd[0]} differs when others came before" if odd else f"{len(seeds)} seeds in another order"
    return [
        Check("deterministic", equal, "= 1", equal == 1.0, f"{len(seeds)} seeds once more, {where}"),
        Check("order_independent", 1.0 - len(odd) / len(seeds), "= 1", not odd, detail),
    ]


def _unspoiled(stage: Stage, firsts: Mapping[int, str]) -> Check:
    """What odd policies did to it leaves no trace: seeds are what they were in new instances."""
    odd = [seed for seed in firsts if fingerprint(stage.env, seed) != firsts[seed]]
    detail = f"seed {odd[0]} is another task" if odd else f"{len(firsts)} seeds"
    return Check("unspoiled", 1.0 - len(odd) / len(firsts), "= 1", not odd, f"{detail}, after all that was played")


def _diversity(stage: Stage, limits: Thresholds, systems: Sequence[str], held_out: Sequence[str]) -> list[Check]:
    env = stage.env
    keys: set[str] = set()
    requests: list[str] = []
    longest = known = 0
    times: list[float] = []
    seeds = _seeds(limits, limits.distinct_seeds)
    for seed in seeds:
        began = time.perf_counter()
        task = env.reset(seed)
        times.append(time.perf_counter() - began)
        text = json.dumps([dict(m) for m in task.messages], sort_keys=True)
        longest = max(longest, len(text))
        # The text, not the environment's own word for it, says whether two tasks are the same.
        keys.add(text + "".join(_later_turns(env)))
        requests += [str(m.get("content")) for m in task.messages if m.get("role") == "user"]
        known += "".join(str(m.get("content")) for m in task.messages if m.get("role") == "system") in systems
    checks = [
        at_least("distinct", len(keys) / len(seeds), limits.distinct, f"{len(keys)} of {len(seeds)} tasks"),
        at_most("reset_seconds", sorted(times)[int(0.95 * len(times))], limits.reset_s, "95th percentile"),
        at_most("task_chars", longest, limits.task_chars, "longest"),
    ]
    if systems:
        share = known / len(seeds)
        checks.append(Check("system_prompt", share, "= 1", share == 1.0, "tasks that begin as the agent's own do"))
    if held_out:
        close = near_duplicates(requests, held_out, limits.duplicate)
        checks.append(at_most("held_out_near", close / max(len(requests), 1), 0.0, f"{close} near-duplicates"))
    return checks


def _later_turns(env: Environment) -> list[str]:
    turns: list[str] = []
    while len(turns) < 50 and (turn := env.respond("")) is not None:
        turns.append(turn)
    return turns


def near_duplicates(texts: Sequence[str], held_out: Sequence[str], similarity: float) -> int:
    """How many texts have a held-out text with at least this Jaccard similarity of their sets of words."""
    others = [_word_set(t) for t in held_out]
    count = 0
    for text in texts:
        words = _word_set(text)
        count += any(len(words & o) >= similarity * len(words | o) for o in others if o)
    return count


def _word_set(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[\w@.#-]+", text.casefold()))


async def _play(
    stage: Stage, limits: Thresholds, checks: list[Check], lapse: Mutate | None, label: Labeler | None
) -> None:
    """Play everything that is played. Checks are added as they are made, so that a fault leaves those before it."""
    seeds = _seeds(limits)
    steps = [stage.reference(seed) for seed in seeds]
    longest = max(map(len, steps))
    checks.append(at_most("reference_calls", longest, limits.reference_calls, "longest solution"))
    stage.turns = min(2 * longest + 12, 4 * limits.reference_calls)
    solved = await stage.play(seeds, ReferencePolicy())
    checks += [_solves(solved), *_bounds(solved, stage, limits)]
    with fresh(stage.make) as env:
        example = CopyTheExample.from_seed(env, limits.first_seed - 1)
    for name, policy in (
        ("null", NullPolicy()),
        ("echo", EchoPolicy()),
        ("random_calls", RandomValidCall()),
        ("call_everything", CallEverything()),
        ("odd_calls", OddCalls()),
        ("copy_example", example),
    ):
        checks.append(at_most(name, _success(await stage.play(seeds, policy)), limits.lazy, "success"))
    checks += await _wrong(stage, limits, seeds)
    checks.append(at_most("result_chars", stage.longest_result, limits.result_chars, "longest tool result"))
    checks.append(await _ordered(stage, limits, seeds, steps, solved))
    if lapse is not None:
        checks += await _lapse(stage, limits, lapse, label, steps, solved)


async def _wrong(stage: Stage, limits: Thresholds, seeds: Sequence[int]) -> list[Check]:
    episodes = await stage.play(seeds, OneArgumentWrong())
    total = _mean(e.score.total for e in episodes if e.score)
    return [
        Check("wrong_argument", total, "< 1", total < 1.0, "mean total of the solution with one wrong value"),
        at_most("wrong_solved", _success(episodes), limits.wrong, "success with one wrong value"),
    ]


def _solves(episodes: Sequence[Episode]) -> Check:
    value = _success(episodes)
    failed = next((e for e in episodes if e.score is None or not e.score.success), None)
    detail = ""
    if failed is not None:
        why = failed.error["message"] if failed.error else "; ".join(failed.score.reasons if failed.score else ())
        detail = f"seed {failed.task.seed}: {why}"[:200]
    return Check("reference", value, "= 1", value == 1.0, detail or f"{len(episodes)} seeds")


def _bounds(episodes: Sequence[Episode], stage: Stage, limits: Thresholds) -> list[Check]:
    """Of the solutions. Times are medians of the wall clock, which a busy machine moves least."""
    per_call = statistics.median(e.seconds / (e.calls + 1) for e in episodes)
    longest = max(sum(len(str(m.get("content"))) for m in e.messages) for e in episodes)
    state = len(json.dumps(stage.env.state(), default=str))
    return [
        at_most("call_seconds", per_call, limits.call_s, "median episode, a call"),
        at_most("episode_seconds", statistics.median(e.seconds for e in episodes), limits.episode_s, "median"),
        at_most("episode_chars", longest, limits.episode_chars, "longest transcript of a solution"),
        at_most("state_chars", state, limits.state_chars, "the world as JSON, at the end of one"),
    ]


async def _ordered(
    stage: Stage, limits: Thresholds, seeds: Sequence[int], steps: Sequence[Sequence[Act]], solved: Sequence[Episode]
) -> Check:
    """Credit rises with every further call of the solution, and the whole is worth more than nothing."""
    good = 0
    odd = ""
    sample = list(zip(seeds, steps, solved, strict=True))[:40]
    for seed, acts, whole in sample:
        calls = sum(1 for act in acts if act.tool)
        ladder = [_credit((await stage.play([seed], _Prefix(n)))[0]) for n in range(calls + 1)] + [_credit(whole)]
        rises = all(a <= b + 1e-9 for a, b in itertools.pairwise(ladder)) and ladder[0] < ladder[-1]
        good += rises
        odd = odd or ("" if rises else f"; not of seed {seed}: {', '.join(f'{c:.2f}' for c in ladder)}")
    detail = f"credit rises along the solution{odd}"
    return at_least("ordered", good / len(sample), limits.ordered, detail)


def _credit(episode: Episode) -> float:
    return episode.score.shaped if episode.score else -1.0


@dataclass(frozen=True)
class _Prefix(ReferencePolicy):
    """The first ``length`` calls of the solution and the talk between them, and nothing said at the end."""

    length: int

    def begin(self, env: Environment, task: Task) -> ScriptedPolicy:
        acts: list[Act] = []
        calls = 0
        for act in env.reference():
            calls += act.tool is not None
            if calls > self.length:
                break
            acts.append(act)
        if calls <= self.length and acts and acts[-1].tool is None:
            acts.pop()
        return ScriptedPolicy(acts, len(task.messages))


async def _lapse(
    stage: Stage,
    limits: Thresholds,
    lapse: Mutate,
    label: Labeler | None,
    steps: Sequence[Sequence[Act]],
    solved: Sequence[Episode],
) -> list[Check]:
    applies = [e.task.seed for acts, e in zip(steps, solved, strict=True) if lapse(acts, e.task)]
    share = len(applies) / len(solved)
    checks = [at_least("lapse_applies", share, limits.lapse_applies, "solutions that have a place for the lapse")]
    if not applies:
        return checks
    lapsed = await stage.play(applies, LapsePolicy(lapse))
    checks.append(
        at_most("lapse", _success(lapsed), limits.lapse, f"success without the capability, {len(lapsed)} seeds")
    )
    if label is not None:
        tools = stage.env.tools
        references = [label(e.messages, tools) for e in solved]
        present = references.count("PRESENT") / len(references)
        checks.append(at_least("isolation", present, limits.isolation, "solutions that show the capability"))
        pairs = [(lab == "PRESENT", _ok(e)) for lab, e in zip(references, solved, strict=True) if lab != "NA"]
        labels = [label(e.messages, tools) for e in lapsed]
        pairs += [(lab == "PRESENT", _ok(e)) for lab, e in zip(labels, lapsed, strict=True) if lab != "NA"]
        agree = sum(a == b for a, b in pairs) / len(pairs) if pairs else 0.0
        checks.append(at_least("agreement", agree, limits.agreement, f"detector and score, {len(pairs)} episodes"))
    return checks


def _ok(episode: Episode) -> bool:
    return episode.score is not None and episode.score.success


def _success(episodes: Sequence[Episode]) -> float:
    return _mean(float(_ok(e)) for e in episodes)


def _mean(values: Any) -> float:
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0
