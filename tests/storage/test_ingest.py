"""The spool reaches the database exactly once, whatever arrives in pieces, out of order, torn, or is killed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from storage import ingest, tables, trajectories
from storage.content import ContentReader
from storage.database import Database, open_database
from storage.ids import new_id
from storage.ingest import IngestReport, ingest_spool
from storage.trajectory import message_to_dict
from tests.storage.spool import Writer, asks, call, end, outcome, result, says, start, system, tool, user

TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}]


def rows(db: Database, table: type[tables.Row]) -> list[Any]:
    with db.session() as session:
        return list(session.scalars(select(table)))


def messages_of(db: Database, id: str) -> list[dict[str, Any]]:
    return [message_to_dict(m) for m in trajectories.get(db, id).messages]


def conversation(id: str) -> list[dict[str, Any]]:
    """A whole run: two model calls, one tool between them, an outcome, an end."""
    first = [system("You help."), user("where is O-1?")]
    second = [*first, asks("find"), result("shipped")]
    return [
        start(id, session="s", user="u", tags=["a", "b"], task="t", input={"question": "where is O-1?"}, version="2"),
        call(id, first, asks("find"), seq=0, tools=TOOLS, policy="3/refunds@1"),
        tool(id, "find", "shipped"),
        call(id, second, says("It is shipped."), seq=1, tools=TOOLS, policy="3/refunds@1"),
        {"v": 1, "type": "note", "id": id, "ts": 1002.5, "data": {"shift": "night"}},
        outcome(id, True, score=0.9),
        end(id),
    ]


def test_a_whole_run_is_stored_with_everything_that_was_recorded(db: Database, tmp_path: Path) -> None:
    id = new_id()
    writer = Writer(tmp_path)
    writer.write(*conversation(id))
    report = ingest_spool(db, tmp_path)
    assert report == IngestReport(segments=1, events=7, runs=1, ended=1, outcomes=1)
    run = trajectories.get(db, id)
    assert (run.agent, run.version, run.task, run.session, run.user) == ("desk", "2", "t", "s", "u")
    assert (run.status, run.success, run.score, run.tags) == ("completed", True, 0.9, ("a", "b"))
    assert (run.model, run.policy, run.tools) == ("small", "3/refunds@1", tuple(TOOLS))
    assert [s.result for s in run.steps()] == ["shipped"]
    assert [m.role for m in run.messages] == ["system", "user", "assistant", "tool", "assistant"]
    (row,) = rows(db, tables.Trajectory)
    assert (row.prompt_tokens, row.completion_tokens, row.output, row.ended_at) == (20, 4, "done", 1003.0)
    assert row.input == {"question": "where is O-1?"}
    assert {(e.kind, e.data.get("result") or e.data.get("shift")) for e in rows(db, tables.RunEvent)} == {
        ("tool", "shipped"),
        ("note", "night"),
    }


def test_each_call_gives_back_its_request_and_answer_though_messages_are_stored_once(
    db: Database, tmp_path: Path
) -> None:
    id = new_id()
    events = conversation(id)
    Writer(tmp_path).write(*events)
    ingest_spool(db, tmp_path)
    calls = sorted(rows(db, tables.ModelCall), key=lambda c: c.seq)
    with db.engine.connect() as connection:
        lists = ContentReader(connection).messages(c.messages for c in calls)
    for stored, event in zip(calls, [e for e in events if e["type"] == "call"], strict=True):
        assert lists[stored.messages][: stored.request_count] == event["request"]["messages"]
        assert lists[stored.messages][stored.request_count] == event["response"]["message"]
        assert "message" not in stored.response
        assert stored.response["usage"] == event["response"]["usage"]
    # The system prompt and the whole run: the requests are beginnings of it.
    assert len(rows(db, tables.MessageList)) == 2


def test_a_run_may_arrive_line_by_line_and_ends_up_the_same(db: Database, tmp_path: Path) -> None:
    whole, pieces = new_id(), new_id()
    writer = Writer(tmp_path)
    writer.write(*conversation(whole))
    for event in conversation(pieces):
        writer.write(event)
        ingest_spool(db, tmp_path)
    assert messages_of(db, pieces) == messages_of(db, whole)
    one, other = (next(r for r in rows(db, tables.Trajectory) if r.id == id) for id in (whole, pieces))
    assert {**one.model_dump(), "id": "", "root": ""} == {**other.model_dump(), "id": "", "root": ""}
    assert len(rows(db, tables.ModelCall)) == 4


def test_reading_again_adds_nothing(db: Database, tmp_path: Path) -> None:
    Writer(tmp_path).write(*conversation(new_id()))
    ingest_spool(db, tmp_path)
    assert ingest_spool(db, tmp_path) == IngestReport()
    assert len(rows(db, tables.Outcome)) == 1


def test_the_last_tools_result_is_kept_when_no_request_follows(db: Database, tmp_path: Path) -> None:
    together, apart, failed = new_id(), new_id(), new_id()
    writer = Writer(tmp_path)
    for id in (together, apart, failed):
        writer.write(start(id), call(id, [user("go")], asks("find")))
        if id == apart:
            ingest_spool(db, tmp_path)
        error = {"type": "Timeout", "message": "too slow", "boundary": "tool"} if id == failed else None
        writer.write(tool(id, "other", "no"), tool(id, "find", None if error else {"status": "ok"}, error), end(id))
    ingest_spool(db, tmp_path)
    for id in (together, apart):
        assert messages_of(db, id)[-1] == result('{"status":"ok"}')
    assert messages_of(db, failed)[-1] == result("error: Timeout: too slow")


def test_threads_stay_apart_and_the_longest_is_the_run(db: Database, tmp_path: Path) -> None:
    id = new_id()
    plan, work = [system("Plan."), user("p")], [system("Work."), user("w"), says("1"), user("w2")]
    Writer(tmp_path).write(
        start(id),
        call(id, work, says("2"), seq=1, thread="w", model="big"),
        call(id, plan, says("plan"), seq=2, thread="p"),
        end(id),
    )
    ingest_spool(db, tmp_path)
    assert messages_of(db, id) == [*work, says("2")]
    assert trajectories.get(db, id).model == "big"
    planned = next(c for c in rows(db, tables.ModelCall) if c.thread == "p")
    with db.engine.connect() as connection:
        assert ContentReader(connection).messages([planned.messages])[planned.messages] == [*plan, says("plan")]


def test_a_retry_takes_the_place_of_the_attempt_that_failed(db: Database, tmp_path: Path) -> None:
    id = new_id()
    writer = Writer(tmp_path)
    error = {"type": "APITimeoutError", "message": "", "boundary": "provider"}
    failed = call(id, [user("x")], None, error=error)
    writer.write(start(id), failed)
    ingest_spool(db, tmp_path)
    assert rows(db, tables.ModelCall)[0].error == error
    writer.write({**call(id, [user("x")], says("y")), "call_id": failed["call_id"], "attempt": 2})
    ingest_spool(db, tmp_path)
    (stored,) = rows(db, tables.ModelCall)
    assert (stored.attempt, stored.error, stored.completion_tokens) == (2, None, 2)
    assert messages_of(db, id) == [user("x"), says("y")]


def test_a_torn_line_waits_for_its_rest_while_the_writer_lives(db: Database, tmp_path: Path) -> None:
    id = new_id()
    writer = Writer(tmp_path)
    line = json.dumps(end(id)).encode() + b"\n"
    writer.write(start(id))
    writer.raw(line[:20])
    assert ingest_spool(db, tmp_path).events == 1
    assert trajectories.get(db, id).status == "running"
    writer.raw(line[20:])
    assert ingest_spool(db, tmp_path) == IngestReport(segments=1, events=1, ended=1)
    assert trajectories.get(db, id).status == "completed"


def test_a_dead_writers_runs_without_an_end_are_aborted_and_its_file_goes(db: Database, tmp_path: Path) -> None:
    ended, cut = new_id(), new_id()
    writer = Writer(tmp_path)
    writer.write(
        start(ended), end(ended, "raised", error={"type": "E", "message": "", "boundary": "agent"}), start(cut)
    )
    ingest_spool(db, tmp_path)
    assert trajectories.get(db, cut).status == "running"
    assert writer.path.exists()
    writer.die()
    assert ingest_spool(db, tmp_path).aborted == 1
    assert trajectories.get(db, cut).status == "aborted"
    assert trajectories.get(db, cut).success is None
    assert (trajectories.get(db, ended).status, trajectories.get(db, ended).error) == (
        "raised",
        {"type": "E", "message": "", "boundary": "agent"},
    )
    assert not writer.path.exists()
    assert rows(db, tables.SpoolSegment) == []


def test_a_late_end_corrects_an_abort(db: Database, tmp_path: Path) -> None:
    id = new_id()
    first = Writer(tmp_path)
    first.write(start(id))
    first.die()
    ingest_spool(db, tmp_path)
    assert trajectories.get(db, id).status == "aborted"
    Writer(tmp_path).write(end(id))
    ingest_spool(db, tmp_path)
    assert trajectories.get(db, id).status == "completed"


def test_a_run_may_go_on_in_its_writers_next_segment(db: Database, tmp_path: Path) -> None:
    id = new_id()
    first, second = Writer(tmp_path, "A"), Writer(tmp_path, "B")
    events = conversation(id)
    first.write(*events[:3])
    second.write(*events[3:])
    ingest_spool(db, tmp_path)
    assert trajectories.get(db, id).status == "completed"
    assert len(messages_of(db, id)) == 5


def test_lines_that_are_no_events_are_counted_and_their_file_is_kept(db: Database, tmp_path: Path) -> None:
    id = new_id()
    writer = Writer(tmp_path)
    writer.write(start(id))
    writer.raw(b"\xff\xfe not json\n[1, 2]\n" + b'{"type": "start", "id": 5, "ts": 1}\n' + b"[" * 100_000 + b"\n")
    writer.write(end(id))
    writer.raw(b'{"torn')
    writer.die()
    report = ingest_spool(db, tmp_path)
    assert (report.broken, report.events, report.ended) == (5, 2, 1)
    assert not writer.path.exists()
    kept = writer.path.with_name(writer.path.name + ".broken").read_bytes()
    assert b"not json" in kept
    assert ingest_spool(db, tmp_path) == IngestReport()


HUGE = [10**400, 2**70, -(2**64), 1e300, float("1e308")]


@pytest.mark.parametrize(
    "odd",
    [
        *({"ts": value} for value in HUGE),
        *({"seq": value, "attempt": value, "latency": value, "started": value} for value in HUGE),
        {"response": {"message": says("x"), "usage": {"prompt_tokens": 2**70, "completion_tokens": 2**40}}},
        {"weight": 10**400, "score": 10**400, "started": 10**400},
        {"id": "half \ud800 a pair"},
        {"id": "nul \x00"},
        {"call_id": "\ud800", "thread": 5, "url": ["x"], "model": {"a": 1}, "provider": None},
    ],
    ids=str,
)
def test_no_event_keeps_the_others_out(db: Database, tmp_path: Path, odd: dict[str, Any]) -> None:
    writer = Writer(tmp_path)
    for event in conversation("odd"):
        writer.write({**event, **odd})
    writer.write(*conversation("whole"))
    writer.die()
    report = ingest_spool(db, tmp_path)
    assert report.events + report.broken == 14
    assert trajectories.get(db, "whole").success is True


@pytest.mark.parametrize("when", ["before", "with", "after"])
def test_outcomes_reach_their_run_whenever_they_come(db: Database, tmp_path: Path, when: str) -> None:
    id = new_id()
    verdict, run = outcome(id, False, source="user", reason="wrong"), [start(id), end(id)]
    writer = Writer(tmp_path)
    for batch in {"before": ([verdict], run), "with": ([*run, verdict],), "after": (run, [verdict])}[when]:
        writer.write(*batch)
        ingest_spool(db, tmp_path)
    assert trajectories.get(db, id).success is False
    assert [o.reason for o in trajectories.outcomes(db, id)] == ["wrong"]


def test_an_unknown_outcome_stays_unknown(db: Database, tmp_path: Path) -> None:
    id = new_id()
    Writer(tmp_path).write(start(id), outcome(id, None, score=None), end(id))
    ingest_spool(db, tmp_path)
    assert trajectories.get(db, id).success is None


def test_sampled_out_runs_are_dropped_and_kept_ones_have_their_weight(db: Database, tmp_path: Path) -> None:
    dropped, late, kept = new_id(), new_id(), new_id()
    writer = Writer(tmp_path)
    writer.write(*conversation(late)[:-1])
    ingest_spool(db, tmp_path)
    writer.write(end(late, weight=0.0), *conversation(dropped)[:-1], end(dropped, weight=0.0))
    writer.write(*conversation(kept)[:-1], end(kept, weight=4.0))
    assert ingest_spool(db, tmp_path).dropped == 2
    assert [(r.id, r.weight) for r in rows(db, tables.Trajectory)] == [(kept, 4.0)]
    assert {c.trajectory for c in rows(db, tables.ModelCall)} == {kept}
    assert {o.trajectory for o in rows(db, tables.Outcome)} == {kept}


def test_events_without_a_start_are_counted(db: Database, tmp_path: Path) -> None:
    Writer(tmp_path).write(end(new_id()), tool(new_id(), "x"))
    assert ingest_spool(db, tmp_path).orphans == 2
    assert rows(db, tables.Trajectory) == []


def test_a_spool_that_is_larger_than_a_chunk_is_read_in_several(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "_CHUNK_BYTES", 700)
    writer = Writer(tmp_path)
    ids = [new_id() for _ in range(10)]
    for id in ids:
        writer.write(*conversation(id))
    writer.write(start("long", input="x" * 5000))
    writer.die()
    report = ingest_spool(db, tmp_path)
    assert (report.runs, report.ended, report.aborted, report.events) == (11, 10, 1, 71)
    assert all(len(messages_of(db, id)) == 5 for id in ids)


@pytest.fixture
def read_ahead(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """A second process reads, also where there is little; here are those that were started."""
    started: list[subprocess.Popen[bytes]] = []

    class Watched(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            started.append(self)

    monkeypatch.setattr(ingest, "_AHEAD_BYTES", 0)
    monkeypatch.setattr(ingest, "_CHUNK_BYTES", 2000)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(subprocess, "Popen", Watched)
    return started


def everything(db: Database) -> dict[str, list[dict[str, Any]]]:
    """All rows that a spool brings, without the numbers that the database gives them."""
    kinds: list[type[tables.Row]] = [
        tables.Trajectory, tables.ModelCall, tables.RunEvent, tables.Outcome, tables.Tag, tables.MessageList,
        tables.ToolSet,
    ]  # fmt: skip
    own = {tables.RunEvent: {"id"}, tables.Outcome: {"id"}}
    found = {kind.__name__: [row.model_dump(exclude=own.get(kind)) for row in rows(db, kind)] for kind in kinds}
    return {kind: sorted(values, key=lambda v: json.dumps(v, sort_keys=True)) for kind, values in found.items()}


def fill(home: Path) -> None:
    """Three segments of dead writers: whole runs, runs without an end, broken lines and a torn one."""
    for number in range(3):
        writer = Writer(home)
        for index in range(20):
            writer.write(*conversation(f"run-{number}-{index}")[: 7 if index % 5 else 4])
        writer.raw(b"not an event\n" if number else b'{"v": 1, "type": "sta')
        writer.die()


def test_what_another_process_reads_is_stored_as_what_is_read_here(
    db: Database, tmp_path: Path, read_ahead: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)
    aside = tmp_path / "aside"
    shutil.copytree(tmp_path / "spool", aside / "spool")
    report = ingest_spool(db, tmp_path)
    assert len(read_ahead) == 1
    monkeypatch.setattr(ingest, "_AHEAD_BYTES", 1 << 40)
    with open_database(home=aside) as other:
        ingest_spool(other, aside)
        alone = everything(other)
    assert len(read_ahead) == 1
    assert (report.runs, report.ended, report.aborted, report.broken) == (60, 48, 12, 3)
    assert everything(db) == alone


@pytest.mark.parametrize("fault", ["dies at once", "dies half-way", "says nonsense", "cannot be started"])
def test_without_the_other_process_everything_is_read_here(
    db: Database,
    tmp_path: Path,
    read_ahead: list[subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fault: str,
) -> None:
    fill(tmp_path)
    real = subprocess.Popen
    instead = {"dies at once": "exit 1", "says nonsense": "echo nonsense", "dies half-way": "head -c 9000; exit 1"}

    def faulty(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        if fault == "cannot be started":
            raise OSError("no processes left")
        script = f'"$0" "$@" | ({instead[fault]})' if fault == "dies half-way" else instead[fault]
        return real(["sh", "-c", script, *command], **options)

    monkeypatch.setattr(subprocess, "Popen", faulty)
    report = ingest_spool(db, tmp_path)
    assert (report.runs, report.ended, report.aborted, report.broken) == (60, 48, 12, 3)
    assert len(rows(db, tables.ModelCall)) == 120
    assert "spool.read_without_help" in capsys.readouterr().out


def test_a_package_of_the_same_name_where_it_is_started_is_not_the_one_that_reads(
    db: Database,
    tmp_path: Path,
    read_ahead: list[subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fill(tmp_path)
    theirs = tmp_path / "project" / "storage"
    theirs.mkdir(parents=True)
    (theirs / "__init__.py").write_text("raise SystemExit('this is another storage')")
    monkeypatch.chdir(theirs.parent)
    assert ingest_spool(db, tmp_path).runs == 60
    assert len(read_ahead) == 1
    assert "spool.read_without_help" not in capsys.readouterr().out


def test_two_readers_at_once_read_everything_once(
    db: Database, tmp_path: Path, read_ahead: list[subprocess.Popen[bytes]]
) -> None:
    writers = [Writer(tmp_path) for _ in range(6)]
    for writer in writers:
        for _ in range(5):
            writer.write(*conversation(new_id()))
        writer.die()
    failures: list[BaseException] = []

    def read() -> None:
        try:
            ingest_spool(db, tmp_path)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    # A segment that one reader held when the other looked is the next reading's.
    ingest_spool(db, tmp_path)
    assert len(rows(db, tables.Trajectory)) == len(rows(db, tables.Outcome)) == 30
    assert list((tmp_path / "spool").iterdir()) == []


_KILLED = """
import sys
from pathlib import Path
from storage import ingest
from storage.database import open_database
ingest._CHUNK_BYTES, ingest._AHEAD_BYTES = 1500, int(sys.argv[2])
home = Path(sys.argv[1])
db = open_database(home=home)
print("reading", flush=True)
ingest.ingest_spool(db, home)
"""


@pytest.mark.parametrize("ahead", [0, 1 << 40], ids=["read ahead", "read alone"])
def test_killed_at_any_moment_nothing_is_lost_and_nothing_counted_twice(
    db: Database, tmp_path: Path, ahead: int
) -> None:
    chance = random.Random(7)
    for _ in range(4):
        writer = Writer(tmp_path)
        for _ in range(100):
            writer.write(*conversation(new_id()))
        writer.die()
    killed = 0
    for _ in range(5):
        command = [sys.executable, "-c", _KILLED, str(tmp_path), str(ahead)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(chance.uniform(0.0, 0.3))
        os.kill(process.pid, signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
        process.stdout.close()
    assert killed >= 2
    ingest_spool(db, tmp_path)
    with db.engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(tables.Trajectory)) == 400
        assert connection.scalar(select(func.count()).select_from(tables.Outcome)) == 400
        assert connection.scalar(select(func.count()).select_from(tables.ModelCall)) == 800
        assert connection.scalar(select(func.count()).select_from(tables.RunEvent)) == 800
        ended = select(func.count()).select_from(tables.Trajectory).where(tables.Trajectory.state == "completed")  # type: ignore[arg-type]
        assert connection.scalar(ended) == 400
    assert list((tmp_path / "spool").iterdir()) == []
