"""Admission: whether an environment may be used, decided by playing it with policies that need no model.

Every check leaves a number. Admission spends no token; how hard the environment is for the policy that will be
trained is a separate question, answered by `calibrate`.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import random
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.calibration import Calibration, Range, calibrate
from harness.checks import Check, at_least, at_most
from harness.environment import Act, Environment, Task
from harness.episodes import Episode, Policy, run_episodes
from harness.policies import (
    CallEverything,
    CopyTheExample,
    EchoPolicy,
    LapsePolicy,
    NullPolicy,
    OneArgumentWrong,
    RandomValidCall,
    ReferencePolicy,
    ScriptedPolicy,
)

__all__ = ["AdmissionReport", "Calibration", "Check", "Range", "Thresholds", "admit", "calibrate", "fingerprint"]

Json = Any
Make = Callable[[], Environment]
Mutate = Callable[[Sequence[Act], Task], "Sequence[Act] | None"]
Labeler = Callable[[Sequence[Mapping[str, Json]], Sequence[Mapping[str, Json]]], str]
"""(messages, tools) of an episode → "NA", "PRESENT" or "LACKING"."""


@dataclass(frozen=True)
class Thresholds:
    """What an environment has to reach. Shares are of seeds; times are seconds, sizes characters."""

    seeds: int = 100
    distinct_seeds: int = 200
    distinct: float = 0.95
    lazy: float = 0.05
    lapse: float = 0.3
    lapse_applies: float = 0.5
    ordered: float = 0.95
    agreement: float = 0.9
    isolation: float = 0.5
    reset_s: float = 0.5
    call_s: float = 0.1
    task_chars: int = 60_000
    result_chars: int = 60_000
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
    held_out: Sequence[str] = (),
    elsewhere: Callable[[Sequence[int]], Sequence[str]] | None = None,
    thresholds: Thresholds | None = None,
) -> AdmissionReport:
    """Play an environment and judge it.

    ``make`` gives a new instance; ``target_tools`` are the schemas of the agent that will be trained. ``lapse`` is the
    detector's mutation of a solution, ``label`` the detector itself. ``held_out`` are requests of the gate and report
    splits. ``elsewhere`` fingerprints seeds in another process; without it determinism is judged in this one alone.
    An environment that raises is not admitted, and the check says where.
    """
    limits = thresholds or Thresholds()
    checks: list[Check] = []
    name = "environment"
    try:
        env = make()
        name = env.name
        checks.append(_interface(env, target_tools))
        checks += _determinism(make, limits, elsewhere)
        checks += _diversity(make, limits, held_out)
        checks += asyncio.run(_play(make, limits, lapse, label))
    except Exception as error:
        checks.append(Check("runs", 0.0, "= 1", False, f"{type(error).__name__}: {error}"[:300]))
    return AdmissionReport(name, tuple(checks))


def fingerprint(env: Environment, seed: int) -> str:
    """A hash of all that a seed determines: the task, the goals, the solution, its answers and the final state."""
    task = env.reset(seed)
    goals, acts = env.goals(), list(env.reference())
    answers = [env.call(a.tool, a.arguments) if a.tool else env.respond(a.text) for a in acts]
    seen = [asdict(task), asdict(goals), [asdict(a) for a in acts], answers, env.state()]
    return hashlib.sha256(json.dumps(seen, sort_keys=True, default=str).encode()).hexdigest()


def _seeds(limits: Thresholds, count: int | None = None) -> list[int]:
    return list(range(limits.first_seed, limits.first_seed + (count or limits.seeds)))


def _interface(env: Environment, target: Sequence[Mapping[str, Json]]) -> Check:
    """Byte for byte: the same JSON text, key order included, since that is what the model reads."""
    ours, theirs = [json.dumps(t) for t in env.tools], [json.dumps(t) for t in target]
    odd = sum(a != b for a, b in zip(ours, theirs, strict=False)) + abs(len(ours) - len(theirs))
    share = 1.0 - odd / max(len(ours), len(theirs), 1)
    return Check("interface", share, "= 1", ours == theirs and bool(ours), f"{odd} of {len(theirs)} tools differ")


def _determinism(
    make: Make, limits: Thresholds, elsewhere: Callable[[Sequence[int]], Sequence[str]] | None
) -> list[Check]:
    seeds = _seeds(limits, min(limits.seeds, 40))
    fresh = {seed: fingerprint(make(), seed) for seed in seeds}
    shuffled = list(seeds)
    random.Random(0).shuffle(shuffled)
    env = make()
    ordered = sum(fingerprint(env, seed) == fresh[seed] for seed in shuffled) / len(seeds)
    checks = [Check("order_independent", ordered, "= 1", ordered == 1.0, f"{len(seeds)} seeds in another order")]
    if elsewhere is not None:
        found = list(elsewhere(seeds))
        equal = sum(a == fresh[s] for s, a in zip(seeds, found, strict=False)) / len(seeds)
        checks.append(Check("deterministic", equal, "= 1", equal == 1.0, "in another process"))
    return checks


def _diversity(make: Make, limits: Thresholds, held_out: Sequence[str]) -> list[Check]:
    env = make()
    keys: set[str] = set()
    requests: list[str] = []
    longest = 0
    times: list[float] = []
    seeds = _seeds(limits, limits.distinct_seeds)
    for seed in seeds:
        began = time.process_time()  # of this process alone: how busy the machine is does not count
        task = env.reset(seed)
        times.append(time.process_time() - began)
        text = json.dumps([dict(m) for m in task.messages], sort_keys=True)
        longest = max(longest, len(text))
        # The text, not the environment's own word for it, says whether two tasks are the same.
        keys.add(text + "".join(_later_turns(env)))
        requests += [str(m.get("content")) for m in task.messages if m.get("role") == "user"]
    checks = [
        at_least("distinct", len(keys) / len(seeds), limits.distinct, f"{len(keys)} of {len(seeds)} tasks"),
        at_most("reset_seconds", sorted(times)[int(0.95 * len(times))], limits.reset_s, "95th percentile"),
        at_most("task_chars", longest, limits.task_chars, "longest"),
    ]
    if held_out:
        close = near_duplicates(requests, held_out, limits.duplicate)
        checks.append(at_most("held_out_near", close / len(requests), 0.0, f"{close} near-duplicates"))
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


async def _play(make: Make, limits: Thresholds, lapse: Mutate | None, label: Labeler | None) -> list[Check]:
    seeds = _seeds(limits)
    longest = max(sum(1 for _ in _reference(make, seed)) for seed in seeds)
    turns = 2 * longest + 12

    async def play(policy: Policy) -> list[Episode]:
        return await run_episodes(make, seeds, policy, max_turns=turns)

    solved = await play(ReferencePolicy())
    checks = [_solves(solved), *_bounds(solved, limits)]
    example = CopyTheExample.from_seed(make(), limits.first_seed - 1)
    for name, policy in (
        ("null", NullPolicy()),
        ("echo", EchoPolicy()),
        ("random_calls", RandomValidCall()),
        ("call_everything", CallEverything()),
        ("copy_example", example),
    ):
        checks.append(at_most(name, _success(await play(policy)), limits.lazy, "success"))
    wrong = await play(OneArgumentWrong())
    total = _mean(e.score.total for e in wrong if e.score)
    checks.append(Check("wrong_argument", total, "< 1", total < 1.0, "mean total of the solution with one wrong value"))
    checks.append(await _ordered(make, seeds, turns, solved, limits))
    if lapse is not None:
        checks += await _lapse(make, seeds, turns, lapse, label, solved, limits)
    return checks


def _reference(make: Make, seed: int) -> Sequence[Act]:
    env = make()
    env.reset(seed)
    return env.reference()


def _solves(episodes: Sequence[Episode]) -> Check:
    value = _success(episodes)
    failed = next((e for e in episodes if e.score is None or not e.score.success), None)
    detail = ""
    if failed is not None:
        why = failed.error["message"] if failed.error else "; ".join(failed.score.reasons if failed.score else ())
        detail = f"seed {failed.task.seed}: {why}"[:200]
    return Check("reference", value, "= 1", value == 1.0, detail or f"{len(episodes)} seeds")


def _bounds(episodes: Sequence[Episode], limits: Thresholds) -> list[Check]:
    per_call = statistics.median(e.seconds / (e.calls + 1) for e in episodes)
    longest = max(
        (len(str(m.get("content"))) for e in episodes for m in e.messages if m.get("role") == "tool"), default=0
    )
    return [
        at_most("call_seconds", per_call, limits.call_s, "median episode, a call"),
        at_most("result_chars", longest, limits.result_chars, "longest tool result"),
    ]


async def _ordered(
    make: Make, seeds: Sequence[int], turns: int, solved: Sequence[Episode], limits: Thresholds
) -> Check:
    """Credit rises with every further call of the solution, and the whole is worth more than nothing."""

    async def prefix(seed: int, length: int) -> float:
        episode = (await run_episodes(make, [seed], _Prefix(length), max_turns=turns))[0]
        return episode.score.shaped if episode.score else -1.0

    good = 0
    sample = list(zip(seeds, solved, strict=True))[:40]
    for seed, whole in sample:
        top = whole.score.shaped if whole.score else -1.0
        calls = sum(1 for act in _reference(make, seed) if act.tool)
        ladder = [await prefix(seed, n) for n in range(calls + 1)] + [top]
        good += all(a <= b + 1e-9 for a, b in itertools.pairwise(ladder)) and ladder[0] < top
    return at_least("ordered", good / len(sample), limits.ordered, "credit rises along the solution")


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
    make: Make,
    seeds: Sequence[int],
    turns: int,
    lapse: Mutate,
    label: Labeler | None,
    solved: Sequence[Episode],
    limits: Thresholds,
) -> list[Check]:
    applies = [seed for seed, episode in zip(seeds, solved, strict=True) if lapse(_reference(make, seed), episode.task)]
    share = len(applies) / len(seeds)
    checks = [at_least("lapse_applies", share, limits.lapse_applies, "solutions that have a place for the lapse")]
    if not applies:
        return checks
    lapsed = await run_episodes(make, applies, LapsePolicy(lapse), max_turns=turns)
    checks.append(
        at_most("lapse", _success(lapsed), limits.lapse, f"success without the capability, {len(lapsed)} seeds")
    )
    if label is not None:
        tools = make().tools
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
