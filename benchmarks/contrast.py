"""How fast the analysis is: labels aggregated with intervals, and detectors over trajectories.

    python benchmarks/contrast.py [--quick]

`aggregate_seconds`, `peak_mb`: labels of 100,000 runs (25,000 tasks of 4) x 10 capabilities x 10 passes, contrasted
with 1,000 resamples in a process of its own, whose peak resident memory is measured less what the imports take.
`detector_trajectories_per_second`: all detectors on synthetic runs of 24 messages and 16 KB, reading included,
spread over this machine's cores (2 at most).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from loop.analysis.contrast import contrast
from loop.analysis.detectors import DETECTORS
from loop.analysis.labelling import label_runs
from storage.trajectory import Message, ToolCall, Trajectory

TARGETS = {
    "aggregate_seconds": ["<=", 10],
    "peak_mb": ["<=", 1024],
    "detector_trajectories_per_second": [">=", 1000],
}


def tool(name: str, *parameters: str) -> dict[str, object]:
    """A tool whose parameters are required strings."""
    schema = {"type": "object", "properties": {p: {"type": "string"} for p in parameters}, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": f"{name}.", "parameters": schema}}


TOOLS = (
    tool("find_parcels", "email"),
    tool("get_parcel", "parcel_id"),
    tool("redirect_parcel", "parcel_id", "street"),
    tool("list_depots", "city"),
    tool("get_rates", "city", "size"),
)


def trajectory(seed: int) -> Trajectory:
    """A conversation of 24 messages and about 16 KB: a policy, 9 calls with records as results, some talk."""
    draw = random.Random(seed)
    ids = [f"PX-{draw.randrange(10**6)}" for _ in range(9)]
    email = f"user{draw.randrange(10**4)}@mail.example"
    rules = " ".join(f"Rule {i}: a parcel of class {i} may be redirected until noon of day {i}." for i in range(80))
    messages = [Message("system", rules), Message("user", f"I am {email}, please redirect my parcel.")]
    for index, id in enumerate(ids):
        name = "find_parcels" if index == 0 else "redirect_parcel" if index == 8 else "get_parcel"
        arguments = {"email": email} if index == 0 else {"parcel_id": ids[index - 1]}
        if name == "redirect_parcel":
            arguments["street"] = "12 Mill Lane"
        record = {"parcel_id": id, "history": [{"at": f"2026-01-{d:02}", "place": f"depot {d}"} for d in range(1, 23)]}
        call = ToolCall.parse(f"c{index}", name, json.dumps(arguments))
        messages.append(Message("assistant", "", (call,)))
        messages.append(Message("tool", json.dumps(record), tool_call_id=call.id))
    messages.append(Message("assistant", f"Shall I redirect {ids[3]}?"))
    messages.append(Message("user", "Yes, please."))
    messages.append(Message("assistant", f"Your parcel {ids[8]} has been redirected."))
    messages.append(Message("user", "Thank you."))
    return Trajectory(f"t{seed}", "bench", tuple(messages), TOOLS, task=str(seed % 50), success=seed % 3 == 0)


def label(seeds: range) -> tuple[int, float, float]:
    """Label the runs of these seeds: (runs, when it began, when it ended). Making them is not counted."""
    runs = [trajectory(seed) for seed in seeds]
    begun = time.time()
    label_runs(runs, DETECTORS)
    return len(runs), begun, time.time()


def detectors_per_second(count: int) -> float:
    """Runs labelled in a second by all worker processes together."""
    workers = min(2, os.cpu_count() or 1)
    share = count // workers
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        list(pool.map(label, [range(8)] * workers))
        done = list(pool.map(label, [range(i * share, (i + 1) * share) for i in range(workers)]))
    return sum(n for n, _, _ in done) / (max(end for _, _, end in done) - min(begun for _, begun, _ in done))


def aggregate(runs: int) -> tuple[float, float]:
    """Seconds and peak MB of contrasting labels of that many runs, in this (fresh) process."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    draw = np.random.default_rng(0)
    success = draw.random(runs) < 0.4
    tasks = np.arange(runs) // 4
    labels = [draw.integers(0, 3, size=(10, runs), dtype=np.int8) for _ in range(10)]
    begun = time.perf_counter()
    contrast(labels, success, tasks)
    seconds = time.perf_counter() - begun
    return seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def main() -> None:
    """Measure, and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    sizes = [len(json.dumps([m.content for m in trajectory(s).messages])) for s in range(20)]
    print(f"runs of {len(trajectory(0).messages)} messages, {np.median(sizes) / 1024:.1f} KB", file=sys.stderr)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        seconds, peak = pool.submit(aggregate, 20_000 if quick else 100_000).result()
    figures = {
        "aggregate_seconds": round(seconds, 2),
        "peak_mb": round(peak),
        "detector_trajectories_per_second": round(detectors_per_second(1000 if quick else 6000)),
    }
    met = all(figures[k] <= v if op == "<=" else figures[k] >= v for k, (op, v) in TARGETS.items())
    print(json.dumps({"benchmark": "contrast", "figures": figures, "targets": TARGETS, "met": met}))


if __name__ == "__main__":
    main()
