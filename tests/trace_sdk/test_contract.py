"""What survives which end of a process: for each, the stored input, output, status and model calls.

The stated window: what happened more than a second ago survives anything; a normal end loses nothing.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trace_sdk.contract import kill_after, play, stretched
from tests.trace_sdk.scripted import Reply, ScriptedServer, Seen, chat, chat_chunks
from tests.trace_sdk.spool import Stored, events, runs

WINDOW = 1.0


def _answer(seen: Seen) -> Reply:
    text = seen.body["messages"][-1]["content"]
    if seen.body.get("stream"):
        return Reply(events=chat_chunks([{"role": "assistant", "content": f"{n} "} for n in range(20)]), cut=60)
    return Reply(chat(text.upper()), delay=30.0 if text == "hang" else 0.0)


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(_answer) as running:
        yield running


def facts(run: Stored) -> tuple[Any, Any, str, list[tuple[Any, Any]]]:
    """Input, output, status, and each call's last message and reply."""
    calls = [
        (c["request"]["messages"][-1]["content"], c["response"]["message"]["content"] if c["response"] else None)
        for c in run.calls
    ]
    return run.input, run.output, run.status, calls


COMPLETE = ({"question": "hi", "tone": "warm"}, "HI", "completed", [("hi", "HI")])


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("raise RuntimeError('after the run')", 1),
        ("threading.Thread(target=lambda: desk('hi', tone='warm')).start(); sys.exit(0)", 0),
    ],
)
def test_a_normal_end_loses_nothing(server: ScriptedServer, tmp_path: Path, ending: str, code: int) -> None:
    ended = play(server, tmp_path, f"desk('hi', tone='warm')\n{ending}")
    assert ended.code == code
    assert [facts(run) for run in ended.runs] == [COMPLETE] * (2 if "Thread" in ending else 1)


def test_an_exception_inside_is_the_runs_end(server: ScriptedServer, tmp_path: Path) -> None:
    program = """
    @trace.agent
    def fails(question):
        ask(question)
        raise KeyError("no such order")
    fails("hi")
    """
    ended = play(server, tmp_path, program)
    assert ended.code == 1
    assert facts(ended.run) == ({"question": "hi"}, None, "raised", [("hi", "HI")])
    assert ended.run.end["error"] == {"type": "KeyError", "message": "'no such order'", "boundary": "agent"}
    assert [(o["success"], o["source"]) for o in ended.run.outcomes] == [(False, "exception")]


def test_sys_exit_inside_is_no_failure(server: ScriptedServer, tmp_path: Path) -> None:
    program = """
    @trace.agent
    def leaves(question):
        ask(question)
        sys.exit(4)
    leaves("hi")
    """
    ended = play(server, tmp_path, program)
    assert ended.code == 4
    assert facts(ended.run) == ({"question": "hi"}, None, "raised", [("hi", "HI")])
    assert ended.run.end["error"]["type"] == "SystemExit"
    assert ended.run.outcomes == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_happened_before_the_window_survives_a_kill_after_the_run(
    server: ScriptedServer, tmp_path: Path, number: signal.Signals
) -> None:
    program = "desk('hi', tone='warm'); ready(); time.sleep(60)"
    ended = play(server, tmp_path, program, when_ready=kill_after(WINDOW, number))
    assert ended.code == -number
    assert facts(ended.run) == COMPLETE


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_killed_in_the_middle_keeps_its_calls_and_has_no_end(
    server: ScriptedServer, tmp_path: Path, number: signal.Signals
) -> None:
    program = """
    @trace.agent
    def long(question):
        ask(question)
        ready()
        ask("hang")
    long("hi")
    """
    ended = play(server, tmp_path, program, when_ready=kill_after(WINDOW + 0.2, number))
    # The call under way is there too, with its request and without a response.
    assert facts(ended.run) == ({"question": "hi"}, None, "open", [("hi", "HI"), ("hang", None)])


def test_os_exit_keeps_what_is_older_than_the_window(server: ScriptedServer, tmp_path: Path) -> None:
    ended = play(server, tmp_path, f"desk('hi', tone='warm'); time.sleep({stretched(WINDOW)}); os._exit(5)")
    assert ended.code == 5
    assert facts(ended.run) == COMPLETE


def test_a_durable_run_survives_even_an_exit_right_after_it(server: ScriptedServer, tmp_path: Path) -> None:
    program = """
    @trace.agent(durable=True)
    def desk(question, *, tone="plain"):
        return ask(question)
    @trace.agent(durable=True)
    async def async_desk(question, *, tone="plain"):
        return ask(question)
    desk("hi", tone="warm")
    asyncio.run(async_desk("hi", tone="warm"))
    os._exit(0)
    """
    assert [facts(run) for run in play(server, tmp_path, program).runs] == [COMPLETE, COMPLETE]


def test_a_writer_that_died_leaves_a_segment_that_can_be_locked(server: ScriptedServer, tmp_path: Path) -> None:
    def check_locked(process: Any) -> None:
        kill = kill_after(WINDOW)
        [segment] = (tmp_path / "spool").glob("*.jsonl")
        with segment.open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        kill(process)

    program = "desk('hi'); trace.flush(); ready(); time.sleep(60)"
    play(server, tmp_path, program, when_ready=check_locked)
    [segment] = (tmp_path / "spool").glob("*.jsonl")
    with segment.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("warm", [True, False])
def test_multiprocessing_children_lose_nothing(server: ScriptedServer, tmp_path: Path, method: str, warm: bool) -> None:
    # In a file: a spawned child imports it again.
    script = tmp_path / "program.py"
    script.write_text(
        f"""
import multiprocessing, os, httpx
import trace_sdk as trace
@trace.agent(name="desk")
def desk(question, *, tone="plain"):
    reply = httpx.post(os.environ["SCRIPTED_URL"] + "/v1/chat/completions",
                       json={{"model": "m", "messages": [{{"role": "user", "content": question}}]}})
    return reply.json()["choices"][0]["message"]["content"]
def child(n):
    desk("hi", tone="warm")
if __name__ == "__main__":
    context = multiprocessing.get_context("{method}")
    if {warm}:
        desk("hi", tone="warm")
    children = [context.Process(target=child, args=(n,)) for n in range(3)]
    [c.start() for c in children]
    [c.join() for c in children]
    assert [c.exitcode for c in children] == [0, 0, 0]
"""
    )
    ended = play(
        server,
        tmp_path,
        f"os.execv(sys.executable, [sys.executable, {str(script)!r}])",
    )
    assert ended.code == 0, ended.err
    assert [facts(run) for run in ended.runs] == [COMPLETE] * (4 if warm else 3)
    assert len({run.id for run in ended.runs}) == len(ended.runs)
    assert len({run.start["pid"] for run in ended.runs}) == len(ended.runs)


def test_a_child_forked_inside_a_run_adds_its_calls_and_does_not_end_it(server: ScriptedServer, tmp_path: Path) -> None:
    program = """
    @trace.agent
    def forks(question):
        pid = os.fork()
        if pid == 0:
            ask("from the child")
            trace.flush()
            os._exit(0)
        os.waitpid(pid, 0)
        return ask(question)
    forks("hi")
    """
    ended = play(server, tmp_path, program)
    run_input, output, status, calls = facts(ended.run)
    assert (run_input, output, status) == ({"question": "hi"}, "HI", "completed")
    assert sorted(calls) == [("from the child", "FROM THE CHILD"), ("hi", "HI")]


def test_a_child_that_returns_through_the_decorated_function_writes_no_second_end(
    server: ScriptedServer, tmp_path: Path
) -> None:
    program = """
    @trace.agent
    def forks(question):
        answer = ask(question)
        return answer, os.fork()
    _, pid = forks("hi")
    if pid:
        os.waitpid(pid, 0)
    """
    ended = play(server, tmp_path, program)
    assert ended.run.output[0] == "HI"
    assert ended.run.output[1] > 0


def test_threads_and_pools_belong_to_the_run_that_gave_them_work(server: ScriptedServer, tmp_path: Path) -> None:
    program = """
    from concurrent.futures import ThreadPoolExecutor
    pool = ThreadPoolExecutor(2)
    @trace.agent
    def spreads(question):
        thread = threading.Thread(target=ask, args=(question + " thread",))
        thread.start()
        list(pool.map(ask, [question + " pool"]))
        thread.join()
        return trace.current().id
    ids = [spreads("a"), spreads("b")]
    pool.submit(ask, "outside").result()
    """
    ended = play(server, tmp_path, program)
    for run, word in zip(ended.runs, "ab", strict=True):
        assert run.output == run.id
        assert sorted(c["request"]["messages"][0]["content"] for c in run.calls) == [f"{word} pool", f"{word} thread"]


def test_many_threads_at_once_are_all_there(server: ScriptedServer, tmp_path: Path) -> None:
    program = """
    @trace.agent
    def quick(n):
        trace.current().note(n=n)
        return n * 2
    def many(base):
        for n in range(200):
            quick(base + n)
    threads = [threading.Thread(target=many, args=(1000 * t,)) for t in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    """
    stored = play(server, tmp_path, program).runs
    assert sorted((r.input["n"], r.output, r.notes[0]["n"]) for r in stored) == [
        (n, 2 * n, n) for n in sorted(1000 * t + i for t in range(8) for i in range(200))
    ]


def test_a_cancelled_task_is_marked_as_stopped_from_outside(server: ScriptedServer, tmp_path: Path) -> None:
    program = """
    @trace.agent
    async def waits(question):
        async with httpx.AsyncClient(timeout=20) as client:
            await client.post(os.environ["SCRIPTED_URL"] + "/v1/chat/completions",
                              json={"model": "m", "messages": [{"role": "user", "content": "hang"}]})
    async def main():
        task = asyncio.create_task(waits("hi"))
        await asyncio.sleep(0.3)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            print("cancelled")
    asyncio.run(main())
    """
    ended = play(server, tmp_path, program)
    assert ended.out == "cancelled\n"
    assert facts(ended.run) == ({"question": "hi"}, None, "raised", [("hang", None)])
    assert (ended.run.end["error"]["type"], ended.run.end["error"]["boundary"]) == ("CancelledError", "infrastructure")
    assert ended.run.calls[0]["error"]["type"] == "CancelledError"
    assert ended.run.outcomes == []


GENERATORS = """
@trace.agent(name="gen")
def gen(question):
    answer = ask(question)
    for letter in answer:
        yield letter
    ask("last")
@trace.agent(name="gen")
async def agen(question):
    answer = ask(question)
    for letter in answer:
        yield letter
    ask("last")
def consume(*, upto):
    out = []
    for letter in gen("hello"):
        out.append(letter)
        if len(out) == upto:
            break
    return out
async def aconsume(*, upto):
    out = []
    async for letter in agen("hello"):
        out.append(letter)
        if len(out) == upto:
            break
    return out
"""
ALL = [("hello", "HELLO"), ("last", "LAST")]


@pytest.mark.parametrize(
    ("program", "output", "calls"),
    [
        ("consume(upto=0)", list("HELLO"), ALL),
        ("consume(upto=2)", list("HE"), ALL[:1]),
        ("kept = gen('hello'); next(kept)", ["H"], ALL[:1]),
        ("asyncio.run(aconsume(upto=0))", list("HELLO"), ALL),
        ("asyncio.run(aconsume(upto=2))", list("HE"), ALL[:1]),
    ],
)
def test_generators_end_with_what_they_gave_out(
    server: ScriptedServer, tmp_path: Path, program: str, output: list[str], calls: list[Any]
) -> None:
    ended = play(server, tmp_path, GENERATORS + program)
    assert ended.code == 0, ended.err
    assert facts(ended.run) == ({"question": "hello"}, output, "completed", calls)


def test_a_generators_consumer_is_not_inside_the_run(server: ScriptedServer, tmp_path: Path) -> None:
    program = GENERATORS + "for letter in gen('a'):\n    ask('consumer'); assert trace.current() is None\n"
    ended = play(server, tmp_path, program)
    assert ended.code == 0, ended.err
    assert facts(ended.run)[3] == [("a", "A"), ("last", "LAST")]


def test_what_is_sent_and_thrown_into_a_generator_arrives(server: ScriptedServer, tmp_path: Path) -> None:
    program = """
    @trace.agent
    def dialogue():
        got = []
        while len(got) < 3:
            try:
                got.append((yield len(got)))
            except ValueError as error:
                got.append(str(error))
        return got
    talk = dialogue()
    assert next(talk) == 0 and talk.send("a") == 1 and talk.throw(ValueError("b")) == 2
    try:
        talk.send("c")
    except StopIteration as stop:
        print(stop.value)
    @trace.agent
    async def adialogue():
        got = []
        while len(got) < 2:
            try:
                got.append((yield len(got)))
            except ValueError as error:
                got.append(str(error))
        yield got
    async def main():
        talk = adialogue()
        assert await anext(talk) == 0 and await talk.asend("a") == 1
        print(await talk.athrow(ValueError("b")))
    asyncio.run(main())
    """
    ended = play(server, tmp_path, program)
    assert ended.out == "['a', 'b', 'c']\n['a', 'b']\n", ended.err


def test_nested_decorated_calls_form_a_tree(server: ScriptedServer, tmp_path: Path) -> None:
    program = """
    @trace.agent(name="planner")
    def planner(question):
        first = worker(question + " one")
        return ask(first), worker(question + " two")
    @trace.agent(name="worker")
    def worker(question):
        return ask(question)
    planner("hi")
    """
    stored = {(r.start["agent"], r.input["question"]): r for r in play(server, tmp_path, program).runs}
    planner = stored["planner", "hi"]
    assert [len(planner.calls), *(len(stored["worker", f"hi {n}"].calls) for n in ("one", "two"))] == [1, 1, 1]
    for worker in (stored["worker", "hi one"], stored["worker", "hi two"]):
        assert (worker.start["parent"], worker.start["root"]) == (planner.id, planner.id)


def test_methods_static_methods_and_class_methods_are_recorded_without_self(
    server: ScriptedServer, tmp_path: Path
) -> None:
    program = """
    class Desk:
        @trace.agent
        def method(self, question): return ask(question)
        @trace.agent
        @staticmethod
        def static(question): return ask(question)
        @classmethod
        @trace.agent
        def klass(cls, question): return ask(question)
    desk = Desk()
    desk.method("a"); Desk.static("b"); Desk.klass(question="c")
    """
    stored = play(server, tmp_path, program).runs
    assert [(r.start["agent"], r.input, r.output) for r in stored] == [
        ("Desk.method", {"question": "a"}, "A"),
        ("Desk.static", {"question": "b"}, "B"),
        ("Desk.klass", {"question": "c"}, "C"),
    ]


def test_arguments_are_stored_as_they_were_when_the_function_was_called(server: ScriptedServer, tmp_path: Path) -> None:
    program = """
    class Order:
        def __repr__(self): return "<Order 7>"
    class Broken:
        def __repr__(self): raise RuntimeError
    @trace.agent
    def changes(items, extra):
        items.append("later")
        extra["n"] = 99
        return items
    changes(["early"], {"n": 1, "order": Order(), "broken": Broken(), "nan": float("nan"), 3: {1}})
    """
    run = play(server, tmp_path, program).run
    assert run.input["items"] == ["early"]
    assert run.output == ["early", "later"]
    extra = run.input["extra"]
    assert (extra["n"], extra["order"], extra["nan"], extra["3"]) == (1, "<Order 7>", "nan", [1])
    assert "RuntimeError" in extra["broken"]


def test_a_read_only_home_costs_the_recording_and_nothing_else(server: ScriptedServer, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("a file, where the home should be: nobody can make a folder here, not even root")
    ended = play(server, blocked, "print(desk('hi')); print(desk('hi')); trace.flush(2); time.sleep(0.5)")
    assert ended.code == 0
    assert ended.out == "HI\nHI\n"
    assert ended.err.count("recording_impossible") == 1
    assert "events_lost" in ended.err


FULL_DISK = """
import errno, trace_sdk._spool as spool
full = True
class FullOs:
    def __getattr__(self, name): return getattr(os, name)
    def write(self, fd, data):
        if full:
            os.write(fd, bytes(data)[:10])
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.write(fd, data)
spool.os = FullOs()
"""


def test_a_full_disk_never_reaches_the_agent_and_what_waited_is_written_when_there_is_room(
    server: ScriptedServer, tmp_path: Path
) -> None:
    program = FULL_DISK + "desk('hi', tone='warm'); time.sleep(0.6); full = False; desk('hi', tone='warm')\n"
    ended = play(server, tmp_path, program)
    assert ended.code == 0
    assert [facts(run) for run in ended.runs] == [COMPLETE, COMPLETE]
    assert ended.err.count("recording_impossible") == 1
    assert all(event["v"] == 1 for event in events(tmp_path)), "no torn line in the middle"


def test_a_disk_that_stays_full_does_not_hang_the_exit(server: ScriptedServer, tmp_path: Path) -> None:
    ended = play(server, tmp_path, FULL_DISK + "print(desk('hi'))", timeout=120)
    assert (ended.code, ended.out) == (0, "HI\n")
    assert ended.runs == []


def test_a_full_queue_drops_counts_and_says_so_once(server: ScriptedServer, tmp_path: Path) -> None:
    program = FULL_DISK + (
        "import dataclasses\n"
        "from trace_sdk._recorder import recorder\n"
        "recorder.configure(dataclasses.replace(recorder.settings, queue_bytes=50_000))\n"
        "for n in range(300): desk_like(n)\n"
        "print(recorder.dropped > 0, recorder._held + recorder._fresh <= 50_000)\n"
    ).replace("for n", "@trace.agent\ndef desk_like(n):\n    return 'x' * 500\nfor n", 1)
    ended = play(server, tmp_path, program)
    assert ended.out == "True True\n", ended.err
    assert ended.err.count("queue_full") == 1


def test_a_torn_last_line_of_an_earlier_writer_is_left_alone(server: ScriptedServer, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir(parents=True)
    torn = spool / "00000000000000000000000000-1.jsonl"
    torn.write_bytes(b'{"v":1,"type":"start","id":"X"')
    ended = play(server, tmp_path, "desk('hi', tone='warm')")
    assert torn.read_bytes() == b'{"v":1,"type":"start","id":"X"'
    assert facts(ended.run) == COMPLETE


def test_two_processes_writing_at_once_do_not_mix(server: ScriptedServer, tmp_path: Path) -> None:
    program = """
    pid = os.fork()
    for n in range(300):
        trace.agent(name="quick")(lambda n: "x" * 2000)(n)
    if pid:
        os.waitpid(pid, 0)
    """
    stored = play(server, tmp_path, program).runs
    assert len(stored) == 600
    assert {run.output for run in stored} == {"x" * 2000}


def test_a_segment_that_grew_too_large_is_followed_by_another_and_stays_locked_while_it_matters(
    server: ScriptedServer, tmp_path: Path
) -> None:
    program = """
    import dataclasses
    from trace_sdk._recorder import recorder
    recorder.configure(dataclasses.replace(recorder.settings, segment_bytes=5000))
    @trace.agent
    def outer():
        for n in range(5):
            inner()
            trace.flush()
        ready()
        time.sleep(60)
    @trace.agent
    def inner():
        return "x" * 3000
    outer()
    """
    locked: list[bool] = []

    def look(process: Any) -> None:
        for segment in sorted((tmp_path / "spool").glob("*.jsonl")):
            with segment.open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    locked.append(False)
                except BlockingIOError:
                    locked.append(True)
        process.kill()

    play(server, tmp_path, program, when_ready=look)
    # The first holds the outer run's start; those between hold only runs that are over.
    assert locked[0] is True
    assert locked[-1] is True
    assert not any(locked[1:-1])
    assert len(locked) >= 3
    assert len(runs(tmp_path)) == 6


def test_switched_off_it_records_nothing(server: ScriptedServer, tmp_path: Path) -> None:
    ended = play(server, tmp_path, "print(desk('hi'), trace.current())", TRACE_DISABLED="1")
    assert ended.out == "HI None\n"
    assert not (tmp_path / "spool").exists()


def test_a_wrong_gateway_address_is_said_and_the_agent_goes_on(server: ScriptedServer, tmp_path: Path) -> None:
    ended = play(server, tmp_path, "print(desk('hi'))", TRACE_GATEWAY="nonsense")
    assert ended.out == "HI\n"
    assert "TRACE_GATEWAY" in ended.err
    assert facts(ended.run)[3] == [("hi", "HI")]


def test_a_run_without_a_model_call_says_so_once(server: ScriptedServer, tmp_path: Path) -> None:
    program = "silent = trace.agent(name='silent')(lambda: 1)\nsilent(); silent()\ndesk('hi')"
    ended = play(server, tmp_path, program)
    assert ended.err.count("run_without_model_calls") == 1
    assert "silent" in ended.err


def test_importing_is_quick_and_brings_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys, time; t = time.process_time(); import trace_sdk; took = time.process_time() - t\n"
        "heavy = {'httpx', 'httpx2', 'structlog', 'asyncio', 'logging', 'multiprocessing', 'pydantic', 'concurrent'}\n"
        "print(took, sorted(heavy & set(sys.modules)))"
    )
    took: list[float] = []
    for _ in range(5):
        out = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ}
        ).stdout.split(" ", 1)
        took.append(float(out[0]))
        assert out[1].strip() == "[]"
    assert min(took) < 0.12, "seconds of the processor's time, so that a busy machine does not decide"


def test_what_exit_handlers_and_finalizers_still_do_is_kept_and_nothing_hangs(
    server: ScriptedServer, tmp_path: Path
) -> None:
    program = """
    import atexit
    quick = trace.agent(name="quick")(lambda n: n)
    class Late:
        def __del__(self):
            quick(3)
    atexit.register(quick, 2)  # before the recorder's own handler, so it runs after it
    quick(1)
    late = Late()
    """
    ended = play(server, tmp_path, program, timeout=120)
    assert ended.code == 0, ended.err
    assert [run.output for run in ended.runs][:2] == [1, 2]
    assert {run.status for run in ended.runs} == {"completed"}
