"""A team's agent in a process of its own: tasks in, trajectory ids and outcomes out.

Starts `python -m trace_sdk.runner MODULE:NAME` in the team's environment and talks JSON lines over its pipes; the
runner's docstring has the protocol. Their code never runs in this process.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog

from harness.serving.process import OwnedProcess
from storage.errors import TraceError

log = structlog.get_logger()
Json = Any
_PATIENCE = 5
"""Crashes in a row, without an answer between them, before a target counts as broken."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """One task's run. ``success`` None: no outcome. ``error`` has type, message and boundary (see storage).

    A run that ended with its process, or took too long, has no trajectory id here; the spool has it as aborted.
    """

    task_index: int
    trajectory: str | None = None
    success: bool | None = None
    score: float | None = None
    error: Mapping[str, Json] | None = None


@dataclass(slots=True)
class _Running:
    index: int
    deadline: float


@dataclass(slots=True)
class _Round:
    """The state of one `run_many`: what waits, what is under way, what is done."""

    tasks: Sequence[Json]
    waiting: deque[int]
    suspects: deque[int] = field(default_factory=deque)
    """Tasks whose process crashed while others ran in it too; each gets one more run, alone."""
    running: dict[int, _Running] = field(default_factory=dict)
    done: dict[int, RunResult] = field(default_factory=dict)
    retried: set[int] = field(default_factory=set)
    poisoned: bool = False
    """A run took too long; its thread can't be stopped, so the process is replaced when the others are done."""


class TargetProcess:
    """A context manager; starts at the first request and again after a crash.

    ``spec`` is MODULE:NAME. ``env`` is added to this process's environment (TRACE_GATEWAY, TRACE_HOME, …), ``cwd``
    is where their modules are found, ``python`` their interpreter. What they print goes to ``log``.
    """

    def __init__(
        self,
        spec: str,
        env: Mapping[str, str] | None = None,
        concurrency: int = 4,
        *,
        cwd: Path | None = None,
        python: str = sys.executable,
        log: Path | None = None,
        start_timeout: float = 120.0,
    ) -> None:
        self.spec = spec
        self.log = Path(log) if log else Path(tempfile.mkdtemp(prefix="trace-target-")) / "target.log"
        self._env = dict(env or {})
        self._concurrency = concurrency
        self._cwd = cwd
        self._python = python
        self._start_timeout = start_timeout
        self._process: OwnedProcess | None = None
        self._answers: queue.Queue[dict[str, Json] | None] = queue.Queue()
        self._next_id = 0
        self._log_start = 0
        self._barren = 0  # crashes since the last answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def suite(self, split: str) -> list[Json]:
        """The tasks of a split ("train", "gate", "report"). Raises TraceError when the target can't say."""
        self._ensure_started()
        self._send({"op": "suite", "split": split})
        deadline = time.monotonic() + self._start_timeout
        while True:
            try:
                answer = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self.stop()
                raise self._fault(f"gave no tasks within {self._start_timeout:.0f} s") from None
            if answer is None:
                raise self._fault(f"ended: {self._last_words()}")
            if "tasks" in answer:
                if not isinstance(answer["tasks"], list):
                    raise self._fault(f"has no suite {split!r}: {_message(answer.get('error'))}")
                return answer["tasks"]
            if answer.get("op") == "load":
                self.stop()
                raise self._fault(f"cannot be loaded: {_message(answer.get('error'))}")

    def run(self, task: Json, *, timeout: float = 300.0) -> RunResult:
        """Run one task; `run_many` says how faults are told."""
        return self.run_many([task], timeout_each=timeout)[0]

    def run_many(
        self,
        tasks: Sequence[Json],
        concurrency: int | None = None,
        timeout_each: float = 300.0,
        on_result: Callable[[RunResult], None] | None = None,
    ) -> list[RunResult]:
        """Run tasks, several at a time; results in the order of ``tasks``, ``on_result`` as each is done.

        A run that takes longer than ``timeout_each`` seconds ends as an error of type "Timeout" (boundary agent).
        A crash of the process ends its runs; each of them is tried once more, alone, and one that crashes again
        ends as type "Crash" (boundary infrastructure). Neither has an outcome. Raises TraceError when the target
        cannot be started or loaded, or crashes again and again without an answer.
        """
        width = min(concurrency or self._concurrency, self._concurrency)
        state = _Round(tasks, deque(range(len(tasks))))
        while len(state.done) < len(tasks):
            self._ensure_started()
            self._hand_out(state, width, timeout_each)
            earliest = min((run.deadline for run in state.running.values()), default=time.monotonic())
            try:
                answer = self._answers.get(timeout=max(0.0, earliest - time.monotonic()))
            except queue.Empty:
                finished = self._overdue(state, timeout_each)
            else:
                finished = self._crashed(state) if answer is None else self._answered(state, answer)
            for result in finished:
                state.done[result.task_index] = result
                if on_result is not None:
                    on_result(result)
            if state.poisoned and not state.running:
                log.warning("target restarted after a run that took too long", spec=self.spec)
                self.stop()
                state.poisoned = False
        return [state.done[index] for index in range(len(tasks))]

    def stop(self) -> None:
        """End the process and what it started. A later request starts a new one."""
        if self._process is not None:
            self._process.stop(grace=3.0)
            for pipe in (self._process.popen.stdin, self._process.popen.stdout):
                if pipe is not None:
                    with _quiet():
                        pipe.close()
            self._process = None

    def _ensure_started(self) -> None:
        if self._process is not None and self._process.returncode is None:
            return
        self.stop()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        command = [self._python, "-m", "trace_sdk.runner", self.spec, "--concurrency", str(self._concurrency)]
        # A queue for each process: what a dead one still had to say isn't taken for the new one's.
        answers: queue.Queue[dict[str, Json] | None] = queue.Queue()
        self._answers = answers
        with self.log.open("ab") as sink:
            self._log_start = sink.tell()
            try:
                self._process = OwnedProcess(
                    command,
                    env={**os.environ, "PYTHONUNBUFFERED": "1", **self._env},
                    cwd=self._cwd,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=sink,
                )
            except OSError as error:
                raise self._fault(f"cannot be started: {error}") from error
        pipe = self._process.popen.stdout
        assert pipe is not None
        threading.Thread(target=_read, args=(pipe, answers), name="trace-target", daemon=True).start()

    def _hand_out(self, state: _Round, width: int, timeout_each: float) -> None:
        while not state.poisoned and len(state.running) < width:
            if state.waiting:
                index = state.waiting.popleft()
            elif state.suspects and not state.running:
                index, width = state.suspects.popleft(), 1
                state.retried.add(index)
            else:
                return
            self._next_id += 1
            state.running[self._next_id] = _Running(index, time.monotonic() + timeout_each)
            self._send({"op": "run", "task": state.tasks[index], "id": self._next_id})

    def _answered(self, state: _Round, answer: dict[str, Json]) -> list[RunResult]:
        if answer.get("op") == "load":
            self.stop()
            raise self._fault(f"cannot be loaded: {_message(answer.get('error'))}")
        run = state.running.pop(answer["id"], None) if isinstance(answer.get("id"), int) else None
        if run is None:  # noise, or a run that was given up
            return []
        self._barren = 0
        success, score = answer.get("success"), answer.get("score")
        return [
            RunResult(
                run.index,
                trajectory=answer.get("trajectory"),
                success=success if isinstance(success, bool) else None,
                score=float(score) if isinstance(score, int | float) else None,
                error=answer.get("error"),
            )
        ]

    def _overdue(self, state: _Round, timeout_each: float) -> list[RunResult]:
        now = time.monotonic()
        late = [number for number, run in state.running.items() if run.deadline <= now]
        state.poisoned = state.poisoned or bool(late)
        error = {"type": "Timeout", "message": f"took longer than {timeout_each:g} s", "boundary": "agent"}
        return [RunResult(state.running.pop(number).index, error=error) for number in late]

    def _crashed(self, state: _Round) -> list[RunResult]:
        """The process ended by itself: whoever ran in it is suspect, who was alone or a suspect already is guilty."""
        assert self._process is not None
        self._process.popen.wait(10)
        words = self._last_words()
        log.warning("target crashed", spec=self.spec, status=self._process.returncode, said=words)
        error = {
            "type": "Crash",
            "message": f"the agent's process ended with status {self._process.returncode}: {words}",
            "boundary": "infrastructure",
        }
        self.stop()
        self._barren += 1
        if self._barren > _PATIENCE:
            raise self._fault(f"crashed {self._barren} times in a row: {words}")
        crashed = [run.index for run in state.running.values()]
        state.running.clear()
        state.poisoned = False
        guilty = [index for index in crashed if index in state.retried]
        state.suspects.extend(index for index in crashed if index not in state.retried)
        return [RunResult(index, error=error) for index in guilty]

    def _send(self, request: dict[str, Json]) -> None:
        assert self._process is not None
        assert self._process.popen.stdin is not None
        with _quiet():  # a dead process is noticed where its answers are read
            self._process.popen.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.popen.stdin.flush()

    def _last_words(self) -> str:
        with self.log.open("rb") as stream:
            stream.seek(self._log_start)
            lines = [line.strip() for line in stream.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1][:300] if lines else "it said nothing"

    def _fault(self, what: str) -> TraceError:
        return TraceError(f"{self.spec} {what}", where=str(self.log), fix="Run it by hand to see why.")


class _quiet:
    """Pipes to a process that is gone raise in several ways; none of them is news."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, OSError | ValueError)


def _read(pipe: Any, answers: queue.Queue[dict[str, Json] | None]) -> None:
    """Put each answer on the queue, and None at the end. Lines that are no JSON object are noise."""
    with _quiet():
        for line in pipe:
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                value = None
            if isinstance(value, dict):
                answers.put(value)
            elif line.strip():
                log.info("noise on the target's stdout", line=line[:200].decode(errors="replace"))
    answers.put(None)


def _message(error: Any) -> str:
    return str(error.get("message") or error) if isinstance(error, dict) else str(error)
