"""`collect`, with real processes on both sides: what a remote agent recorded is in the database once, whatever dies."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from sqlalchemy import select

from storage import tables, trajectories
from storage.database import open_database
from storage.ids import new_id
from storage.ingest import abort_silent, receive
from tests.storage.spool import call, end, says, start, user

TOKEN = "collectors-token-0123456789"
AGENT = """
import os, sys, time
import trace_sdk as trace

@trace.agent(name="remote")
def work(n):
    trace.current().note(n=n)
    return n
"""
PATIENCE = 60.0


@dataclass
class Place:
    """A collector's home and address, and the agents' home."""

    folder: Path
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def outbox(self) -> Path:
        return self.folder / "agent" / "spool" / "outbox"

    @contextmanager
    def collector(self, home: Path | None = None, token: str = TOKEN) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [sys.executable, "-m", "loop.commands.app", "collect", "--port", str(self.port), "--token", token],
            stdout=subprocess.PIPE,
            text=True,
            env={**_clean(), "TRACE_HOME": str(home or self.folder / "collector")},
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("collecting at "), "it says its address once it listens"
            yield process
        finally:
            process.kill()
            process.communicate()

    def agent(self, program: str, token: str = TOKEN) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", AGENT + textwrap.dedent(program)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **_clean(),
                "TRACE_HOME": str(self.folder / "agent"),
                "TRACE_SHIP_TO": self.url,
                "TRACE_TOKEN": token,
            },
        )

    def play(self, program: str, token: str = TOKEN) -> tuple[str, str]:
        """An agent to its end: what it printed, and its log."""
        process = self.agent(program, token)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        return out, err

    def stored(self) -> tuple[list[int], Counter[int], Counter[str]]:
        """Outputs of the ended runs, how often each note is there, and how many runs are in each state."""
        with open_database(home=self.folder / "collector") as db, db.session() as session:
            runs = list(session.scalars(select(tables.Trajectory)))
            notes = Counter(note.data["n"] for note in session.scalars(select(tables.RunEvent)))
        assert {run.agent for run in runs} <= {"remote"}
        return sorted(r.output for r in runs if r.state == "completed"), notes, Counter(r.state for r in runs)


def _clean() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("TRACE_") and not k.lower().endswith("_proxy")}


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return Place(tmp_path, free.getsockname()[1])


def test_what_a_remote_agent_recorded_is_in_the_database_and_its_outbox_is_empty(place: Place) -> None:
    with place.collector() as collector:
        place.play("for n in range(20): work(n)")
        assert place.stored() == (list(range(20)), Counter(range(20)), Counter(completed=20))
        assert list(place.outbox.glob("*.jsonl*")) == []
        mapped = Path(f"/proc/{collector.pid}/maps")
        if mapped.exists():
            assert not any(name in mapped.read_text() for name in ("/torch/", "/vllm/"))


def test_what_happened_while_the_collector_was_away_arrives_when_it_comes(place: Place) -> None:
    agent = place.agent("work(1); trace.flush(); print('recorded', flush=True); work(2); time.sleep(60)")
    assert agent.stdout is not None
    assert agent.stdout.readline() == "recorded\n"
    until(lambda: bool(list(place.outbox.glob("*.jsonl"))))
    with place.collector():
        # Nothing but time is needed: the agent goes on by itself.
        until(lambda: place.stored()[0] == [1, 2])
        agent.kill()
        assert "collector_unreachable" in agent.communicate()[1]


def test_with_no_collector_the_agent_goes_on_and_its_spool_is_kept_for_the_next(place: Place) -> None:
    out, err = place.play("print(work(1), work(2))")
    assert out == "1 2\n"
    assert err.count("collector_unreachable") == 1
    assert list(place.outbox.glob("*.jsonl"))
    with place.collector():
        place.play("work(3)")
        assert place.stored()[0] == [1, 2, 3]
    assert list(place.outbox.glob("*.jsonl")) == []


def test_a_collector_that_takes_the_connection_and_never_answers_does_not_hold_the_agent(place: Place) -> None:
    with socket.create_server(("127.0.0.1", place.port)):
        out, _ = place.play("print(work(1)); trace.flush(); time.sleep(0.5); print(work(2))")
    assert out == "1\n2\n"
    assert list(place.outbox.glob("*.jsonl"))


def test_a_wrong_token_is_401_said_once_and_costs_nothing(place: Place) -> None:
    with place.collector():
        assert httpx.post(f"{place.url}/v1/spool/x?position=0", trust_env=False).status_code == 401
        program = "work(1); trace.flush(); time.sleep(1.5); work(2); trace.flush(); time.sleep(1)"
        _, err = place.play(program, token="another-token-0123456789")
        assert err.count("collector_refuses_the_token") == 1
        assert "another-token" not in err
        assert place.stored()[0] == []
        place.play("work(3)")
        assert place.stored()[0] == [1, 2, 3]


def test_what_an_ended_process_left_is_sent_by_a_command_too(place: Place) -> None:
    place.play("work(1)")
    environment = {**_clean(), "TRACE_HOME": str(place.folder / "agent"), "TRACE_TOKEN": TOKEN}
    ship = [sys.executable, "-m", "trace_sdk.ship"]
    nowhere = subprocess.run(ship, env=environment, capture_output=True, text=True, timeout=60)
    assert (nowhere.returncode, "TRACE_SHIP_TO" in nowhere.stderr) == (1, True)
    environment["TRACE_SHIP_TO"] = place.url
    assert subprocess.run(ship, env=environment, capture_output=True, timeout=60).returncode == 1
    with place.collector():
        assert subprocess.run(ship, env=environment, timeout=60).returncode == 0
        assert place.stored()[0] == [1]


def test_processes_of_one_home_are_all_shipped(place: Place) -> None:
    program = """
    pids = []
    work(0)
    for child in (1, 2, 3):
        pid = os.fork()
        if not pid:
            for n in range(10): work(100 * child + n)
            trace.flush()
            os._exit(0)
        pids.append(pid)
    [os.waitpid(pid, 0) for pid in pids]
    """
    with place.collector():
        place.play(program)
        until(lambda: len(place.stored()[0]) == 31)
        assert place.stored()[1] == Counter([0, *(100 * c + n for c in (1, 2, 3) for n in range(10))])


def test_killed_on_either_side_at_any_moment_nothing_is_lost_and_nothing_stored_twice(place: Place) -> None:
    chance = random.Random(11)
    promised: set[int] = set()
    killed = 0
    for turn in range(4):
        # What it prints is in its spool, and so promised.
        agent = place.agent(
            f"n = {turn * 1_000_000}\n"
            "while True:\n"
            "    for _ in range(20):\n"
            "        n += 1; work(n)\n"
            "    trace.flush(); print(n, flush=True); time.sleep(0.05)\n"
        )
        for _ in range(2):
            with place.collector() as collector:
                time.sleep(chance.uniform(0.3, 1.2))
                collector.send_signal(signal.SIGKILL)
                killed += collector.wait() == -signal.SIGKILL
        agent.kill()
        said = [int(line) for line in agent.communicate()[0].split("\n")[:-1]]
        promised |= {n for last in said for n in range(last - 19, last + 1)}
    with place.collector():
        place.play("work(0)")
        ended, notes, states = place.stored()
    assert killed == 8
    assert promised
    assert promised <= set(ended)
    assert len(ended) == len(set(ended))
    assert set(notes.values()) == {1}
    assert states["running"] == 0, "a killed agent's open runs are aborted"
    assert list(place.outbox.glob("*.jsonl")) == []


def _fill(path: Path) -> None:
    """Take all the room that is left."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small file system can only be mounted by root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_at_the_collector_is_507_and_the_spool_is_kept(place: Place, small_disk: Path) -> None:
    with place.collector(home=small_disk):
        filler = small_disk / "filler"
        _fill(filler)
        line = json.dumps(start(new_id(), input="x" * 300_000)).encode() + b"\n"
        answer = httpx.post(
            f"{place.url}/v1/spool/{new_id()}?position=0",
            content=line,
            headers={"authorization": f"Bearer {TOKEN}"},
            trust_env=False,
        )
        assert answer.status_code == 507
        _, err = place.play("for n in range(30): work('x' * 20_000 + str(n))")
        assert err.count("collector_does_not_take_it") == 1
        assert list(place.outbox.glob("*.jsonl"))
        filler.unlink()
        place.play("trace.feedback('none', True)")
        assert list(place.outbox.glob("*.jsonl")) == []
    with open_database(home=small_disk) as db, db.session() as session:
        outputs = [run.output for run in session.scalars(select(tables.Trajectory))]
    assert len(outputs) == len(set(outputs)) == 30


def test_requests_that_are_none_are_refused_with_a_reason(place: Place) -> None:
    with place.collector(), httpx.Client(base_url=place.url, trust_env=False) as client:
        client.headers["authorization"] = f"Bearer {TOKEN}"
        post = client.post
        assert post("/v1/spool/x").status_code == 400
        assert post("/v1/spool/a.b?position=0").status_code == 400
        zipped = {"content-encoding": "gzip"}
        assert "not gzip" in post("/v1/spool/x?position=0", content=b"no gzip", headers=zipped).json()["error"]
        assert post("/v1/spool/x?position=0", content=gzip.compress(b"{}")[:-9], headers=zipped).status_code == 400
        bomb = gzip.compress(bytes(300 << 20), 1)
        assert post("/v1/spool/x?position=0", content=bomb, headers=zipped, timeout=60).status_code == 413
        moved = post("/v1/spool/x?position=7", content=b"{}\n")
        assert (moved.status_code, moved.json()["position"]) == (409, 0)
        broken = post("/v1/spool/x?position=0&final=1", content=b"no event\n")
        assert (broken.status_code, broken.json()) == (200, {"position": 9, "broken": 1})


def _export(trace: str) -> dict[str, object]:
    """What an instrumented client's exporter sends for one model call."""
    said = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "small", "gen_ai.agent.name": "remote"}
    said["gen_ai.input.messages"] = json.dumps([{"role": "user", "parts": [{"type": "text", "content": "where"}]}])
    said["gen_ai.output.messages"] = json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": "here"}]}])
    span = {
        "traceId": trace,
        "spanId": "00f067aa0ba902b7",
        "name": "chat small",
        "kind": 3,
        "startTimeUnixNano": "1700000000000000000",
        "endTimeUnixNano": "1700000001000000000",
        "attributes": [{"key": key, "value": {"stringValue": value}} for key, value in said.items()],
        "status": {},
    }
    return {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}


def test_otlp_over_http_becomes_runs_and_a_repeated_request_adds_nothing(place: Place) -> None:
    from google.protobuf.json_format import ParseDict
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    first, second = "4bf92f3577b34da6a3ce929d0e0e4736", "5cf92f3577b34da6a3ce929d0e0e4736"
    protobuf = _export(second)
    protobuf_span = protobuf["resourceSpans"][0]["scopeSpans"][0]["spans"][0]  # type: ignore[index]
    # Protobuf's own JSON form has ids in base 64.
    protobuf_span["traceId"] = base64.b64encode(bytes.fromhex(second)).decode()
    protobuf_span["spanId"] = base64.b64encode(bytes.fromhex("00f067aa0ba902b7")).decode()
    raw = ParseDict(protobuf, ExportTraceServiceRequest()).SerializeToString()
    with place.collector(), httpx.Client(base_url=place.url, trust_env=False) as client:
        assert client.post("/v1/traces", json=_export(first)).status_code == 401
        client.headers["authorization"] = f"Bearer {TOKEN}"
        for _ in range(2):
            assert client.post("/v1/traces", json=_export(first)).json() == {"partialSuccess": {}}
            headers = {"content-type": "application/x-protobuf", "content-encoding": "gzip"}
            taken = client.post("/v1/traces", content=gzip.compress(raw), headers=headers)
            assert (taken.status_code, taken.content) == (200, b"")
        assert client.post("/v1/traces", json={"resourceSpans": []}).status_code == 200
        nonsense = {"content-type": "application/json"}
        assert client.post("/v1/traces", content=b"{", headers=nonsense).status_code == 400
    with open_database(home=place.folder / "collector") as db:
        stored = list(trajectories.load(db))
    assert [[m.content for m in run.messages] for run in stored] == [["where", "here"]] * 2


def test_it_says_what_is_wrong_before_it_listens(place: Place) -> None:
    def collect(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "loop.commands.app", "collect", *arguments]
        environment = {**_clean(), "TRACE_HOME": str(place.folder / "collector")}
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)

    open_to_all = collect("--host", "0.0.0.0")
    assert (open_to_all.returncode, "--token" in open_to_all.stderr) == (1, True)
    with socket.create_server(("127.0.0.1", place.port)):
        taken = collect("--port", str(place.port))
    assert (taken.returncode, "cannot listen" in taken.stderr) == (1, True)
    assert len(taken.stderr.strip().splitlines()) <= 2


def test_bytes_are_taken_only_at_the_position_where_a_segment_stands(tmp_path: Path) -> None:
    id = new_id()
    lines = [json.dumps(e).encode() + b"\n" for e in (start(id), call(id, [user("hi")], says("ho")), end(id))]
    first, rest = lines[0], lines[1] + lines[2]
    with open_database(home=tmp_path, durable=True) as db:
        assert receive(db, "s", 5, rest, False).position == 0
        assert receive(db, "s", 0, first, False).accepted
        again = receive(db, "s", 0, first, False)
        assert (again.accepted, again.position) == (False, len(first))
        assert receive(db, "s", len(first), rest, True).position == len(first + rest)
        # The answer to the last request was lost: it is sent once more.
        assert receive(db, "s", len(first + rest), b"", True).accepted
        with db.session() as session:
            assert len(list(session.scalars(select(tables.ModelCall)))) == 1


def test_the_open_runs_of_a_machine_that_is_gone_are_aborted_and_a_late_end_corrects_it(tmp_path: Path) -> None:
    id = new_id()
    line, last = (json.dumps(e).encode() + b"\n" for e in (start(id), end(id)))

    def state() -> str:
        with db.session() as session:
            return session.scalars(select(tables.Trajectory.state)).one()

    with open_database(home=tmp_path) as db:
        receive(db, "s", 0, line, False)
        assert (abort_silent(db, 60), state()) == (0, "running")
        assert (abort_silent(db, -1), state()) == (1, "aborted")
        receive(db, "s", len(line), last, True)
        assert state() == "completed"
