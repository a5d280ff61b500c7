"""How fast the spool gets into an SQLite database that is already large.

    .venv/bin/python benchmarks/ingest.py [--quick]

A trajectory is what the recorder writes for one run: a start, a model call with a conversation of 16 KB in 14
messages (a system prompt, then user, assistant, tool calls and their results), an outcome and an end. The system
prompt and the tool schemas are shared, at least 80 % of the bytes are words drawn for this run alone. The database
already holds 100,000 of them (built once, kept in the temporary folder). Measured is `ingest_spool`, from the first
byte read to the last commit, in a process of its own; three rounds, the median counts.

`trajectories_per_second`; `per_processor_second`, which other work on the machine changes less. `peak_mb`: resident
memory at its highest, of that process and of the one that reads ahead for it. `sqlmodel_ratio`: how many times slower
the same events are, decoded before, through SQLModel's `session.add` with one commit a trajectory. `turns_per_second`
(no target): runs whose six calls each repeat the conversation so far, as an agent's loop makes them, so that the spool
holds about four times the bytes of the run.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import random
import resource
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from storage.database import open_database
from storage.ids import new_id
from storage.ingest import ingest_spool

TARGETS: dict[str, list[Any]] = {"trajectories_per_second": [">=", 3000.0], "sqlmodel_ratio": [">=", 3.0]}
LETTERS = "abcdefghijklmnopqrstuvwxyz"
PROMPT = "You are the clerk of a shop. Look the customer up before you change anything. " * 6
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name.replace('_', ' ')} of the shop",
            "parameters": {"type": "object", "properties": {"id": {"type": "string", "description": "its id"}}},
        },
    }
    for name in ("find_customer", "find_order", "cancel_order", "refund_order")
]


class Words:
    """Text that no other run has: words of random letters."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def text(self, size: int) -> str:
        raw = self._random.randbytes(size)
        letters = raw.translate(bytes(LETTERS[b % 26].encode()[0] if b % 7 else 32 for b in range(256)))
        return letters.decode()


def conversation(words: Words, size: int) -> list[dict[str, Any]]:
    """14 messages whose JSON is about ``size`` bytes, from a system prompt to an answer."""
    share = (size - len(PROMPT) - 900) // 13
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": PROMPT},
        {"role": "user", "content": words.text(share)},
    ]
    while len(messages) < 13:
        id = f"call_{words.text(8)}"
        arguments = json.dumps({"id": words.text(share)})
        function = {"name": "find_order", "arguments": arguments}
        calls = [{"id": id, "type": "function", "function": function}]
        messages.append({"role": "assistant", "content": None, "tool_calls": calls})
        messages.append({"role": "tool", "tool_call_id": id, "content": words.text(share)})
    messages.append({"role": "assistant", "content": words.text(share)})
    return messages[:14]


def call(id: str, seq: int, messages: list[dict[str, Any]], answer: dict[str, Any], at: float) -> dict[str, Any]:
    return {
        "v": 1,
        "type": "call",
        "id": id,
        "ts": at,
        "call_id": new_id(),
        "seq": seq,
        "attempt": 1,
        "started": at - 0.5,
        "latency": 0.5,
        "provider": "openai.chat",
        "url": "http://models/v1/chat/completions",
        "model": "small",
        "thread": new_id(),
        "request": {"messages": messages, "tools": TOOLS, "params": {"temperature": 0.7}},
        "response": {
            "message": answer,
            "finish_reason": "stop",
            "usage": {"prompt_tokens": 4000, "completion_tokens": 60},
        },
        "error": None,
    }


def run(number: int, turns: bool) -> Iterator[dict[str, Any]]:
    """The events of one run."""
    id, at = new_id(), time.time()
    messages = conversation(Words(number), 16_000)
    yield {"v": 1, "type": "start", "id": id, "ts": at, "agent": "clerk", "root": id, "parent": None, "pid": 1}
    answers = [n for n, m in enumerate(messages) if m["role"] == "assistant"]
    for seq, n in enumerate(answers if turns else answers[-1:]):
        yield call(id, seq, messages[:n], messages[n], at + seq)
    yield {"v": 1, "type": "outcome", "id": id, "ts": at + 9, "success": number % 3 > 0, "source": "verifier"}
    yield {"v": 1, "type": "end", "id": id, "ts": at + 9, "status": "completed", "error": None, "output": "done"}


def write_spool(home: Path, numbers: range, turns: bool = False) -> None:
    """Segments of at most 32 MiB, as the recorder leaves them when its process ends."""
    folder = home / "spool"
    folder.mkdir(parents=True, exist_ok=True)
    file, size = None, 0
    for number in numbers:
        if file is None or size > 32 << 20:
            file = (folder / f"{new_id()}-1.jsonl").open("wb")
            size = 0
        data = b"".join(json.dumps(event, separators=(",", ":")).encode() + b"\n" for event in run(number, turns))
        file.write(data)
        size += len(data)


def unique_share(numbers: range) -> float:
    """The part of a run's bytes that no other run has: messages and tool lists by content."""
    seen: set[bytes] = set()
    total = unique = 0
    for number in numbers:
        for event in run(number, False):
            request = event.get("request") or {}
            for part in [
                *request.get("messages", []),
                request.get("tools"),
                (event.get("response") or {}).get("message"),
            ]:
                if not part:
                    continue
                raw = json.dumps(part).encode()
                total += len(raw)
                digest = hashlib.sha256(raw).digest()
                unique += len(raw) * (digest not in seen)
                seen.add(digest)
    return unique / total


def filled(count: int) -> Path:
    """A home whose database holds ``count`` runs; built once."""
    folder = Path(tempfile.gettempdir()) / f"trace-benchmark-ingest-{count}"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with open_database(home=folder) as db:
            with db.engine.connect() as connection:
                done = connection.exec_driver_sql("SELECT count(*) FROM trajectory").scalar() or 0
            for first in range(done, count, 5000):
                print(f"filling the database: {first} of {count}", file=sys.stderr)
                write_spool(folder, range(first, min(first + 5000, count)))
                ingest_spool(db, folder)
        # Outside of a transaction: everything into the one file that is copied.
        with sqlite3.connect(folder / "trace.db", isolation_level=None) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return folder


def measured(home: Path) -> tuple[float, float, int]:
    """Seconds, seconds of the processors, and peak kilobytes of one reading, the process that reads ahead included."""
    with open_database(home=home) as db:
        started, busy = time.perf_counter(), processor_seconds()
        ingest_spool(db, home)
        took, busy = time.perf_counter() - started, processor_seconds() - busy
    peaks = [resource.getrusage(whose).ru_maxrss for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return took, busy, sum(peaks)


def processor_seconds() -> float:
    """Of this process and of those that it has ended."""
    return sum(os.times()[:4])


def plainly(home: Path) -> float:
    """Seconds for the same runs through SQLModel, a session and a commit each, everything in its own row."""
    from storage import tables

    runs: dict[str, list[dict[str, Any]]] = {}
    for path in sorted((home / "spool").glob("*.jsonl")):
        for line in path.read_bytes().splitlines():
            event = json.loads(line)
            runs.setdefault(event["id"], []).append(event)
        path.unlink()
    with open_database(home=home) as db:
        started = time.perf_counter()
        for id, events in runs.items():
            _add_plainly(db, tables, id, events)
        return time.perf_counter() - started


def _add_plainly(db: Any, tables: Any, id: str, events: list[dict[str, Any]]) -> None:
    asked = next(e for e in events if e["type"] == "call")
    verdict = next(e for e in events if e["type"] == "outcome")
    messages = json.dumps([*asked["request"]["messages"], asked["response"]["message"]])
    name = hashlib.sha256(messages.encode()).hexdigest()
    tools = json.dumps(asked["request"]["tools"])
    with db.session() as session:
        if session.get(tables.Agent, "clerk") is None:
            session.add(tables.Agent(name="clerk"))
        tool_set = hashlib.sha256(tools.encode()).hexdigest()
        if session.get(tables.ToolSet, tool_set) is None:
            session.add(tables.ToolSet(sha256=tool_set, tools=tools))
        session.add(tables.MessageList(sha256=name, count=14, messages=messages))
        session.flush()
        fields = {"agent": "clerk", "source": "spool", "state": "completed", "success": verdict["success"]}
        content = {"tools": tool_set, "messages": name}
        session.add(
            tables.Trajectory(id=id, started_at=asked["ts"], message_count=14, output="done", **fields, **content)
        )
        session.flush()
        session.add(
            tables.ModelCall(
                id=asked["call_id"],
                trajectory=id,
                seq=0,
                started_at=asked["started"],
                params=asked["request"]["params"],
                response={"usage": asked["response"]["usage"]},
                **content,
            )
        )
        session.add(tables.Outcome(trajectory=id, success=verdict["success"], source="verifier"))
        session.commit()


def child(kind: str, home: Path) -> Any:
    command = [sys.executable, __file__, "--child", kind, str(home)]
    # What is logged goes to stdout as well; the result is the last line.
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])


def copy_of(full: Path, home: Path) -> Path:
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    shutil.copyfile(full / "trace.db", home / "trace.db")
    os.sync()  # the copy is not what is measured
    return home


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under a minute, into a smaller database")
    parser.add_argument("--child", nargs=2, metavar=("KIND", "HOME"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        kind, home = options.child[0], Path(options.child[1])
        print(json.dumps(measured(home) if kind == "ours" else plainly(home)))
        return 0
    before, count, plain, rounds = (5_000, 2_000, 300, 1) if options.quick else (100_000, 6_000, 1_000, 3)
    full = filled(before)
    rates: list[float] = []
    processor: list[float] = []
    peaks: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        home = copy_of(full, Path(folder) / "home")
        for number in range(rounds):
            first = 10_000_000 + number * count
            write_spool(home, range(first, first + count))
            took, busy, peak = child("ours", home)
            rates.append(count / took)
            processor.append(count / busy)
            peaks.append(peak / 1024)
        write_spool(home, range(20_000_000, 20_000_000 + count // 3), turns=True)
        turns = count // 3 / child("ours", home)[0]
        write_spool(home, range(30_000_000, 30_000_000 + plain))
        plain_rate = plain / child("plain", home)
    rate = statistics.median(rates)
    figures = {
        "trajectories_per_second": round(rate, 1),
        "peak_mb": round(max(peaks), 1),
        "sqlmodel_ratio": round(rate / plain_rate, 2),
        "per_processor_second": round(statistics.median(processor), 1),
        "sqlmodel_per_second": round(plain_rate, 1),
        "turns_per_second": round(turns, 1),
        "unique_share": round(unique_share(range(50)), 3),
        "bytes": round(statistics.mean(sum(len(json.dumps(e)) for e in run(n, False)) for n in range(50))),
        "load": round(os.getloadavg()[0], 2),
    }
    for name, value in figures.items():
        wanted = f"   (target {TARGETS[name][0]} {TARGETS[name][1]})" if name in TARGETS else ""
        print(f"{name:26} {value:10}{wanted}")
    met = all(figures[n] <= t if how == "<=" else figures[n] >= t for n, (how, t) in TARGETS.items())
    print(json.dumps({"benchmark": "ingest", "figures": figures, "targets": TARGETS, "met": met}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
