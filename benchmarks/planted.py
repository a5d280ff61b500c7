"""Does the analysis find what was planted, and nothing else?

    python benchmarks/planted.py [--quick]

A world is 200 runs (50 tasks x 4) of a made-up clerk. Each run first gets its outcome, then for each of eight
behaviours a label, drawn so that the true gap and coverage are known, and then the messages that show these labels.

The grid: gap 0.35, 0.50, 0.65, 0.80 x coverage 0.15, 0.30, 0.45, 0.60 x label noise 0, 5, 10 % (that share of runs
shows the opposite) x tasks equally hard or confounded (failure rate 25 or 85 %, and what applies applies more often
on hard tasks). In each world two behaviours are planted deficits, two are red herrings (as frequent, equally in both
groups, in confounded worlds more frequent on hard tasks), the others are lacking in 3 % of all runs, and in every
second world a tool is down in a tenth of the runs, which then fail. Where a behaviour applies to every run its
coverage is at least its gap.

A selected capability counts as right if it was planted. A sequence rule that states the planted order of two calls
is that deficit under another name. `failure_only_…` is the same analysis of failures alone: coverage >= 0.10 and
lacking rate >= 0.20 among failures, no contrast, no triage. `analyst_…` feeds the contrast with 10 passes of a
simulated LLM analyst that gets 10 % of the applicable labels wrong in each pass, independently.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from loop.analysis.analyze import analyze_runs
from loop.analysis.contrast import LACKING, NA, PRESENT, contrast
from loop.analysis.detectors import DETECTORS
from loop.analysis.labelling import label_runs
from storage.trajectory import Message, ToolCall, Trajectory

RUNS, TASKS = 200, 50
GAPS, COVERAGES, NOISES = (0.35, 0.50, 0.65, 0.80), (0.15, 0.30, 0.45, 0.60), (0.0, 0.05, 0.10)
ANALYST_ERROR = 0.10
SEQUENCE = "sequence:make_quote>sign_contract:before"
# Behaviours that do not apply to every run, and those that do.
OPTIONAL = ("lookup_before_change", "recovery_after_error", "grounded_answer", SEQUENCE)
ALWAYS = ("no_identical_repeats", "grounded_arguments", "schema_valid_arguments", "complete_ending")
TARGETS = {
    "precision": [">=", 0.95],
    "recall": [">=", 0.90],
    "red_herrings_rejected": [">=", 0.95],
    "harness_faults_selected": ["<=", 0],
    "analyst_precision": [">=", 0.95],
    "analyst_recall": [">=", 0.90],
    "analyst_red_herrings_rejected": [">=", 0.95],
}


@dataclass(frozen=True)
class Cell:
    """One point of the grid, with its seed."""

    gap: float
    coverage: float
    noise: float
    confounded: bool
    seed: int


@dataclass(frozen=True)
class Rates:
    """How often a behaviour applies, and is lacking where it does, among failures and successes."""

    applies: float
    failed: float
    succeeded: float


def rates(behaviour: str, gap: float, coverage: float) -> Rates:
    """Rates with this gap and at least this coverage; gap 0 makes a red herring."""
    if behaviour in ALWAYS:
        lacking = max(gap + 0.05, coverage)
        return Rates(1.0, lacking, lacking - gap)
    lacking = min(1.0, max(gap + 0.05, coverage, 0.4 if gap == 0 else 0.0))
    return Rates(min(1.0, coverage / lacking), lacking, lacking - gap)


def tool(name: str, **properties: str) -> dict[str, object]:
    schema = {
        "type": "object",
        "properties": {k: {"type": v} for k, v in properties.items()},
        "required": list(properties),
    }
    return {"type": "function", "function": {"name": name, "description": "", "parameters": schema}}


TOOLS = (
    tool("find_deeds", email="string"),
    tool("get_deed", deed_id="string"),
    tool("rename_deed", deed_id="string"),
    tool("get_stamp", colour="string"),
    tool("count_seals", many="integer"),
    tool("check_archive", shelf="string"),
    tool("make_quote", plan="string"),
    tool("sign_contract", plan="string"),
)


class Clerk:
    """Writes the messages of one run that show the wanted labels, each in a part of its own."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.email = f"clerk{draw.randrange(10**6)}@mail.example"
        self.deed = f"DD-{draw.randrange(10**6):06}"
        self.messages = [
            Message("system", "You are a clerk."),
            Message("user", f"I am {self.email}. Take care of deed {self.deed} and of the papers."),
        ]

    def call(self, name: str, result: str, **arguments: object) -> None:
        call = ToolCall.parse(f"c{len(self.messages)}", name, json.dumps(arguments))
        self.messages += [Message("assistant", "", (call,)), Message("tool", result, tool_call_id=call.id)]

    def work(self, shows: Mapping[str, int], down: bool) -> list[Message]:
        """``shows``: behaviour → label. ``down``: the archive does not answer."""
        self.call("get_stamp", '{"stamp": "ok"}', colour="red")
        if shows["no_identical_repeats"] == LACKING:
            self.call("get_stamp", '{"stamp": "ok"}', colour="red")
        many = "three" if shows["schema_valid_arguments"] == LACKING else 3
        self.call("count_seals", '{"seals": 3}', many=many)
        invented = f"DD-{self.draw.randrange(10**6):06}9"
        grounded = shows["grounded_arguments"] != LACKING
        self.call("get_deed", '{"state": "valid"}', deed_id=self.deed if grounded else invented)
        if shows[SEQUENCE] != NA:
            if shows[SEQUENCE] == PRESENT:
                self.call("make_quote", '{"price": 12}', plan="basic")
            self.call("sign_contract", '{"signed": true}', plan="basic")
        if shows["lookup_before_change"] == PRESENT:
            other = f"DX-{self.draw.randrange(10**6):06}"
            self.call("find_deeds", json.dumps([{"deed_id": other}]), email=self.email)
            self.call("rename_deed", '{"renamed": true}', deed_id=other)
        elif shows["lookup_before_change"] == LACKING:
            self.call("rename_deed", '{"renamed": true}', deed_id=self.email)
        if shows["recovery_after_error"] != NA:
            self.call("check_archive", "Error: no such shelf", shelf="north")
            if shows["recovery_after_error"] == PRESENT:
                self.call("check_archive", '{"shelf": "south"}', shelf="south")
        if down:
            self.call("check_archive", "Error: archive service unavailable (503)", shelf="east")
        self.messages.append(Message("assistant", self.words(shows)))
        return self.messages

    def words(self, shows: Mapping[str, int]) -> str:
        text = "Your papers are in order."
        if shows["grounded_answer"] != NA:
            known = shows["grounded_answer"] == PRESENT
            text = f"See deed {self.deed if known else f'DD-{self.draw.randrange(10**6):06}7'}. {text}"
        if shows["complete_ending"] == LACKING:
            text += " I'll now file the copies."
        return text


@dataclass(frozen=True)
class World:
    """The runs of a cell with what is true of them. ``truth`` has the labels before noise."""

    runs: list[Trajectory]
    planted: tuple[str, ...]
    herrings: tuple[str, ...]
    truth: dict[str, list[int]]
    faulty: bool


def build(cell: Cell) -> World:
    """A world, from its seed alone."""
    draw = random.Random(json.dumps(vars(cell)))
    behaviours = [*OPTIONAL, *ALWAYS]
    draw.shuffle(behaviours)
    planted, herrings = tuple(behaviours[:2]), tuple(behaviours[2:4])
    table = {b: rates(b, cell.gap, cell.coverage) for b in planted}
    table |= {b: rates(b, 0.0, cell.coverage) for b in herrings}
    table |= {b: Rates(0.5 if b in OPTIONAL else 1.0, 0.03, 0.03) for b in behaviours[4:]}
    faulty = cell.seed % 2 == 0
    runs: list[Trajectory] = []
    truth: dict[str, list[int]] = {b: [] for b in behaviours}
    for index in range(RUNS):
        hard = index % TASKS < TASKS // 2
        fails = draw.random() < ((0.85 if hard else 0.25) if cell.confounded else 0.55)
        down = faulty and draw.random() < 0.1
        shows: dict[str, int] = {}
        for behaviour in behaviours:
            rate = table[behaviour]
            applies, lacking = rate.applies, rate.failed if fails else rate.succeeded
            if cell.confounded and behaviour in OPTIONAL:
                applies *= 1.15 if hard else 0.85
            if cell.confounded and behaviour in herrings:
                lacking += 0.1 if hard else -0.1
            label = NA if draw.random() >= applies else LACKING if draw.random() < lacking else PRESENT
            truth[behaviour].append(label)
            if label != NA and draw.random() < cell.noise:
                label = PRESENT if label == LACKING else LACKING
            shows[behaviour] = label
        messages = Clerk(draw).work(shows, down)
        task = f"task {index % TASKS}"
        runs.append(Trajectory(f"r{index}", "clerk", tuple(messages), TOOLS, task=task, success=not (fails or down)))
    return World(runs, planted, herrings, truth, faulty)


def named(id: str) -> str:
    """The behaviour that a capability is: the orders of the planted calls are aliases of their behaviours."""
    if id in ("sequence:make_quote>sign_contract:after", SEQUENCE):
        return SEQUENCE
    return "lookup_before_change" if id.startswith("sequence:find_deeds>rename_deed:") else id


def tally(prefix: str, selected: Iterable[str], world: World) -> Counter[str]:
    """Counts of one analysis of one world."""
    found = {named(id) for id in selected}
    return Counter(
        {
            f"{prefix}right": len(found & set(world.planted)),
            f"{prefix}wrong": len(found - set(world.planted)),
            f"{prefix}planted": len(world.planted),
            f"{prefix}herrings": len(world.herrings),
            f"{prefix}herrings_selected": len(found & set(world.herrings)),
            # An archive that is down looks like a failure to recover; it is one only where that was planted.
            f"{prefix}faults": int(
                world.faulty
                and "recovery_after_error" in found
                and "recovery_after_error" not in (*world.planted, *world.herrings)
            ),
        }
    )


def evaluate(cell: Cell) -> Counter[str]:
    """Analyse one world in all three ways."""
    world = build(cell)
    report = analyze_runs("clerk", world.runs)
    counts = tally("", (f.id for f in report.selected), world)
    failures = [run for run in world.runs if not run.success]
    alone: list[str] = []
    for candidate in label_runs(failures, DETECTORS, rules=False):
        lacking, present = (int((candidate.codes == code).sum()) for code in (LACKING, PRESENT))
        if lacking >= 0.10 * len(failures) and lacking >= 0.20 * (lacking + present):
            alone.append(candidate.detector.id)
    counts += tally("failure_only_", alone, world)
    generator = np.random.default_rng(cell.seed)
    keep = np.array([not m for m in map(_is_down, world.runs)])
    codes = [np.array(world.truth[b], dtype=np.int8)[keep] for b in world.truth]
    passes = []
    for code in codes:
        repeated = np.repeat(code[None], 10, axis=0)
        wrong = (generator.random(repeated.shape) < ANALYST_ERROR) & (repeated != NA)
        passes.append(np.where(wrong, np.where(repeated == LACKING, PRESENT, LACKING), repeated).astype(np.int8))
    runs = [run for run, kept in zip(world.runs, keep, strict=True) if kept]
    results = contrast(passes, np.array([bool(r.success) for r in runs]), [r.task for r in runs])
    chosen = [b for b, result in zip(world.truth, results, strict=True) if result.selected]
    return counts + tally("analyst_", chosen, world)


def _is_down(run: Trajectory) -> bool:
    return any("503" in m.content for m in run.messages if m.role == "tool")


def figures(total: Counter[str], prefix: str) -> dict[str, float]:
    """Rates of one way of analysing, over all worlds."""
    right, wrong = total[f"{prefix}right"], total[f"{prefix}wrong"]
    rejected = 1 - total[f"{prefix}herrings_selected"] / total[f"{prefix}herrings"]
    return {
        f"{prefix}precision": round(right / (right + wrong), 4) if right + wrong else 0.0,
        f"{prefix}recall": round(right / total[f"{prefix}planted"], 4),
        f"{prefix}red_herrings_rejected": round(rejected, 4),
        f"{prefix}harness_faults_selected": total[f"{prefix}faults"],
    }


def main() -> None:
    """Analyse the worlds of the grid, and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one world for each of 32 points instead of 4 for all 96")
    quick = parser.parse_args().quick
    seeds = (0,) if quick else (0, 1, 2, 3)
    grid = itertools.product(GAPS, COVERAGES, (0.05,) if quick else NOISES, (False, True), seeds)
    cells = [Cell(gap, coverage, noise, bad, seed + i) for i, (gap, coverage, noise, bad, seed) in enumerate(grid)]
    total: Counter[str] = Counter()
    by_point: dict[str, Counter[str]] = {}
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for number, (cell, counts) in enumerate(zip(cells, pool.map(evaluate, cells, chunksize=4), strict=True), 1):
            total += counts
            for key in (
                f"gap {cell.gap}",
                f"coverage {cell.coverage}",
                f"noise {cell.noise}",
                f"bad {cell.confounded}",
            ):
                by_point.setdefault(key, Counter()).update(counts)
            if number % 50 == 0:
                print(f"{number} of {len(cells)} worlds", file=sys.stderr)
    for key, counts in sorted(by_point.items()):
        print(key, figures(counts, ""), figures(counts, "analyst_"), file=sys.stderr)
    found = figures(total, "") | figures(total, "failure_only_") | figures(total, "analyst_")
    met = all(found[k] <= v if op == "<=" else found[k] >= v for k, (op, v) in TARGETS.items())
    print(json.dumps({"benchmark": "planted", "figures": found, "targets": TARGETS, "met": met}))


if __name__ == "__main__":
    main()
