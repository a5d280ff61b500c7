"""The contract inside what hosts agents: gunicorn that forks after loading, gevent, a disk that is really full."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.trace_sdk.contract import ROOT, play
from tests.trace_sdk.scripted import Reply, ScriptedServer, Seen, chat
from tests.trace_sdk.spool import runs
from tests.trace_sdk.test_contract import COMPLETE, facts

DESK = """
import os
import httpx
import trace_sdk as trace

@trace.agent(name="desk")
def desk(question, *, tone="plain"):
    reply = httpx.post(os.environ["SCRIPTED_URL"] + "/v1/chat/completions", timeout=20,
                       json={"model": "m", "messages": [{"role": "user", "content": question}]})
    return reply.json()["choices"][0]["message"]["content"]
"""


def _answer(seen: Seen) -> Reply:
    return Reply(chat(seen.body["messages"][-1]["content"].upper()))


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(_answer) as running:
        yield running


def environment(server: ScriptedServer, home: Path) -> dict[str, str]:
    return {**os.environ, "TRACE_HOME": str(home), "SCRIPTED_URL": server.url, "PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize("warm", [True, False])
def test_gunicorn_with_preload_loses_nothing_in_any_worker(server: ScriptedServer, tmp_path: Path, warm: bool) -> None:
    pytest.importorskip("gunicorn", reason="gunicorn is not installed")
    # Warm: the recorder's thread runs in the master before it forks, and does not exist in the workers.
    (tmp_path / "shop.py").write_text(
        DESK
        + ("desk('hi', tone='warm')\n" if warm else "")
        + textwrap.dedent("""
        def app(environ, start_response):
            answer = desk("hi", tone="warm")
            start_response("200 OK", [("content-type", "text/plain")])
            return [f"{answer} {os.getpid()}".encode()]
        """)
    )
    command = [sys.executable, "-m", "gunicorn", "--preload", "--workers", "2", "--bind", "127.0.0.1:0", "shop:app"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment(server, tmp_path / "home"), stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        address = None
        while address is None:
            line = process.stderr.readline()
            assert line, "gunicorn ended"
            address = re.search(r"Listening at: (http://\S+)", line)
        url = address.group(1)
        with ThreadPoolExecutor(4) as pool, httpx.Client(trust_env=False, timeout=60) as client:
            answers = list(pool.map(lambda _: client.get(url).text, range(12)))
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert {answer.split()[0] for answer in answers} == {"HI"}
    stored = runs(tmp_path / "home")
    assert [facts(run) for run in stored] == [COMPLETE] * (13 if warm else 12)
    assert len({run.id for run in stored}) == len(stored)
    workers = {int(answer.split()[1]) for answer in answers}
    assert {run.start["pid"] for run in stored} - workers == ({process.pid} if warm else set())


def test_gevents_greenlets_each_have_their_run(server: ScriptedServer, tmp_path: Path) -> None:
    pytest.importorskip("gevent", reason="gevent is not installed")
    program = (
        "from gevent import monkey\nmonkey.patch_all()\nimport gevent\n"
        + DESK
        + textwrap.dedent("""
        @trace.agent(name="outer")
        def outer(n):
            return desk(f"question {n}"), trace.current().id
        jobs = [gevent.spawn(outer, n) for n in range(6)]
        gevent.joinall(jobs, raise_error=True)
        print(sorted(job.value[0] for job in jobs))
        """)
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(server, tmp_path),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    stored = runs(tmp_path)
    outers = {run.id: run for run in stored if run.start["agent"] == "outer"}
    desks = [run for run in stored if run.start["agent"] == "desk"]
    assert (len(outers), len(desks)) == (6, 6)
    for run in desks:
        parent = outers[run.start["parent"]]
        question = f"question {parent.input['n']}"
        assert facts(run) == ({"question": question}, question.upper(), "completed", [(question, question.upper())])
        assert parent.output == [question.upper(), parent.id]


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a small file system with the given options."""
    if os.getuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a file system")
    with ExitStack() as stack:

        def mount(options: str) -> Path:
            folder = tmp_path / "mounted"
            folder.mkdir()
            if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]).returncode:
                pytest.skip("this machine lets nobody mount a file system")
            stack.callback(subprocess.run, ["umount", "-l", str(folder)], check=True)
            return folder

        yield mount


def test_a_disk_that_is_really_full_loses_nothing_that_fits_in_memory(
    server: ScriptedServer, mounted: Callable[[str], Path]
) -> None:
    home = mounted("size=256k")
    filler = home / "filler"
    program = f"""
    big = trace.agent(name="big")(lambda n: "x" * 20_000)
    with open({str(filler)!r}, "wb", buffering=0) as file:
        try:
            while True: file.write(bytes(4096))
        except OSError:
            pass
    for n in range(5): big(n)
    time.sleep(0.5)
    print(trace.flush(2))
    os.unlink({str(filler)!r})
    for n in range(5, 8): big(n)
    """
    ended = play(server, home, program)
    assert ended.code == 0
    assert ended.out == "False\n", "nothing could be written until there was room"
    assert ended.err.count("recording_impossible") == 1
    assert [(run.input, len(run.output), run.status) for run in ended.runs] == [
        ({"n": n}, 20_000, "completed") for n in range(8)
    ]


def test_a_file_system_that_is_really_read_only_costs_the_recording_and_nothing_else(
    server: ScriptedServer, mounted: Callable[[str], Path]
) -> None:
    ended = play(server, mounted("ro,size=256k"), "print(desk('hi')); print(desk('hi'))")
    assert (ended.code, ended.out, ended.runs) == (0, "HI\nHI\n", [])
    assert ended.err.count("recording_impossible") == 1
    assert "events_lost" in ended.err
