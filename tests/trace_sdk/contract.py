"""Runs a piece of a program in a process of its own and gives back how it ended and what its spool holds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.trace_sdk.scripted import ScriptedServer
from tests.trace_sdk.spool import Stored, runs

ROOT = Path(__file__).parents[2]

PREAMBLE = """
import asyncio, os, sys, threading, time
import httpx
import trace_sdk as trace

def ask(text):
    reply = httpx.post(os.environ["SCRIPTED_URL"] + "/v1/chat/completions", timeout=20,
                       json={"model": "m", "messages": [{"role": "user", "content": text}]})
    return reply.json()["choices"][0]["message"]["content"]

def ready():
    print("ready", flush=True)

@trace.agent(name="desk")
def desk(question, *, tone="plain"):
    return ask(question)
"""


@dataclass
class Ended:
    code: int
    out: str
    err: str
    runs: list[Stored]

    @property
    def run(self) -> Stored:
        assert len(self.runs) == 1, self.err
        return self.runs[0]


def play(
    server: ScriptedServer,
    home: Path,
    program: str,
    *,
    when_ready: Callable[[subprocess.Popen[str]], None] | None = None,
    timeout: float = 180,
    **environment: str,
) -> Ended:
    """``when_ready`` is called once the program has called `ready()`."""
    process = subprocess.Popen(
        [sys.executable, "-c", PREAMBLE + textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TRACE_HOME": str(home), "SCRIPTED_URL": server.url, **environment},
    )
    if when_ready is not None:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate(timeout=timeout)
        when_ready(process)
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"the program hung: {err}") from None
    return Ended(process.returncode, out, err, runs(home) if (home / "spool").is_dir() else [])


def stretched(seconds: float) -> float:
    """The window is stated for a process that gets to run: on a machine with more work than cores it is longer."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def kill_after(seconds: float, number: signal.Signals = signal.SIGKILL) -> Callable[[subprocess.Popen[str]], None]:
    def act(process: subprocess.Popen[str]) -> None:
        time.sleep(stretched(seconds))
        process.send_signal(number)

    return act
