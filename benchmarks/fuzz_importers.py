"""What importers do with broken files: 10,000 mutated ones for each format, by a seed.

    python benchmarks/fuzz_importers.py [--quick] [--seed TEXT]

A file of each format is broken in one to three places (values replaced, removed, doubled, renamed, also inside of
JSON that stands in text; in a fifth of them bytes as well). `tracebacks` counts what an importer lets escape
beside its clear errors. `partial` counts runs that can't be stored, or come back from the database with other
messages, calls, tools or another verdict than were read. The other figures say what became of the files.
`--quick` takes 1,000 for each format.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from storage import bulk, trajectories
from storage.database import Database, open_database
from storage.importers import FORMATS
from storage.trajectory import Trajectory
from tests.storage.importers.fuzz import fuzz

TARGETS = {"tracebacks": ["<=", 0], "partial": ["<=", 0]}
_BATCH = 500


def partial(db: Database, runs: list[Trajectory]) -> int:
    """How many of the runs are not in the database as they were read."""
    lost = 0
    for batch in bulk.chunks({run.id: run for run in runs}.values(), _BATCH):
        trajectories.save(db, batch, "fuzz")
        stored = {run.id: run for run in trajectories.load(db, ids=[run.id for run in batch])}
        for run in batch:
            back = stored.get(run.id)
            whole = (run.messages, run.tools, run.success, run.score)
            lost += back is None or (back.messages, back.tools, back.success, back.score) != whole
    return lost


def measure(name: str, count: int, seed: str) -> Counter[str]:
    """Feed one importer, in batches; a batch whose importer breaks is counted and printed with its seed."""
    total: Counter[str] = Counter()
    for batch in range(0, count, _BATCH):
        try:
            runs, seen = fuzz(name, min(_BATCH, count - batch), f"{seed}/{batch}/")
        except Exception:
            total["tracebacks"] += 1
            print(f"{name}, seed {seed}/{batch}/:\n{traceback.format_exc()}", file=sys.stderr)
            continue
        total += seen
        # A database for each: a run that is known by a name and is there already stays as the first file had it.
        with tempfile.TemporaryDirectory() as folder, open_database(home=Path(folder)) as db:
            total["partial"] += partial(db, runs)
    return total


def main() -> None:
    """Measure, and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seed", default="1")
    arguments = parser.parse_args()
    count = 1_000 if arguments.quick else 10_000
    total: Counter[str] = Counter(dict.fromkeys(("tracebacks", "partial", "runs", "broken", "refused"), 0))
    begun = time.perf_counter()
    for name in FORMATS:
        found = measure(name, count, arguments.seed)
        for key, value in found.items():
            total[key] += value
        print(f"{name}: {count} files, {dict(found)}", file=sys.stderr)
    figures = {
        "formats": len(FORMATS),
        "files": count * len(FORMATS),
        **total,
        "files_per_second": round(count * len(FORMATS) / (time.perf_counter() - begun)),
    }
    met = all(figures[name] <= limit for name, (_, limit) in TARGETS.items())
    print(json.dumps({"benchmark": "fuzz_importers", "figures": figures, "targets": TARGETS, "met": met}))


if __name__ == "__main__":
    main()
