"""`python -m trace_sdk.runner MODULE:NAME`: run a team's agent on tasks, in the team's own environment.

Speaks JSON lines over its pipes: requests on stdin, answers on stdout, each on one line.

    {"op": "suite", "split": "gate"}        → {"tasks": [...]}
    {"op": "run", "task": ..., "id": 7}     → {"id": 7, "trajectory": ID, "success": true|false|null,
                                                "score": 0..1|null, "error": {...}|null}

NAME is an evaluation (`@trace.evaluation`) or a decorated agent, which is called with the task. Answers come in
the order in which runs finish. What the agent prints goes to stderr. Ends when stdin does, after the runs under
way; time limits and crashes are the caller's to notice.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TextIO

import trace_sdk
from trace_sdk import _errors
from trace_sdk._json import as_dict
from trace_sdk._run import Outcome, Run, started_roots, task_of_runner
from trace_sdk._snapshot import jsonable

_FLUSH_TIMEOUT = 10.0


class Target:
    """What the runner runs. Raises TypeError or ValueError, with what to do, when the name gives nothing to run."""

    def __init__(self, spec: str) -> None:
        module_name, _, name = spec.partition(":")
        if not module_name or not name:
            raise ValueError(f"{spec!r} is not MODULE:NAME, such as my_agent.evaluation:Desk")
        found: Any = importlib.import_module(module_name)
        for part in name.split("."):
            found = getattr(found, part)
        if isinstance(found, type):
            found = found()
        self._suite: Callable[[str], Any] | None = getattr(found, "suite", None)
        self._is_evaluation = callable(getattr(found, "run", None)) and callable(self._suite)
        self._run: Callable[[Any], Any] = found.run if self._is_evaluation else found
        if not callable(self._run):
            raise TypeError(f"{spec} is neither an evaluation (suite and run) nor a function")

    def suite(self, split: str) -> list[Any]:
        if self._suite is None:
            raise TypeError("a function has no suite of tasks; use an object with suite(split) and run(task)")
        return [jsonable(task) for task in _finished(self._suite(split))]

    def run(self, task: Any) -> dict[str, Any]:
        """Run one task. An exception of the agent is data: ``error`` says what and whose."""
        roots: list[Run] = []
        tokens = started_roots.set(roots), task_of_runner.set(_key(task))
        outcome: Outcome | None = None
        error: dict[str, Any] | None = None
        try:
            result = _finished(self._run(task))
            if self._is_evaluation and result is not None:
                outcome = _verdict(result)
                if roots:
                    roots[0].record_outcome(outcome, "evaluation")
        except _BadVerdict as bad:
            error = {"type": "TypeError", "message": str(bad), "boundary": "grader"}
        except BaseException as raised:
            error = _errors.describe(raised)
        finally:
            started_roots.reset(tokens[0])
            task_of_runner.reset(tokens[1])
        if outcome is None:
            outcome = roots[0].verdict() if roots else Outcome()
        return {
            "trajectory": roots[0].id if roots else None,
            "success": outcome.success,
            "score": outcome.score,
            "error": error,
        }


class _BadVerdict(Exception):
    """`run` of an evaluation returned something that is no outcome."""


def _verdict(result: Any) -> Outcome:
    try:
        return Outcome.of(result)
    except TypeError as error:
        raise _BadVerdict(str(error)) from error


def _finished(result: Any) -> Any:
    """The value itself, whether it came as one, as a coroutine or as a generator's last word."""
    if inspect.iscoroutine(result):
        import asyncio

        return asyncio.run(result)
    if inspect.isasyncgen(result):
        import asyncio

        return asyncio.run(_collect(result))
    return list(result) if inspect.isgenerator(result) else result


async def _collect(items: Any) -> list[Any]:
    return [item async for item in items]


def _key(task: Any) -> str:
    """The task's key: its own text, the ``id`` or ``key`` that it names, else all of it."""
    if isinstance(task, str):
        return task
    named = as_dict(task)
    for name in ("key", "id", "task_id"):
        if isinstance(named.get(name), str | int):
            return str(named[name])
    return json.dumps(jsonable(task), sort_keys=True, ensure_ascii=False)


class Pipe:
    """The protocol's end of stdin and stdout. Everybody else's stdout is stderr from here on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.requests: TextIO = os.fdopen(os.dup(0), "r", encoding="utf-8", errors="replace")
        self._answers: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
        # At the level of descriptors, so that what child processes print does not get between the answers.
        os.dup2(2, 1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        sys.stdout = sys.stderr

    def answer(self, value: dict[str, Any]) -> None:
        line = json.dumps(value) + "\n"
        with self._lock:
            self._answers.write(line)
            self._answers.flush()


def _serve(target: Target, pipe: Pipe, concurrency: int) -> None:
    with ThreadPoolExecutor(concurrency, thread_name_prefix="trace-run") as pool:
        for line in pipe.requests:
            if not line.strip():
                continue
            try:
                request = as_dict(json.loads(line))
            except ValueError as error:
                pipe.answer({"error": _usage(f"a request is not JSON: {error}")})
                continue
            operation = request.get("op")
            if operation == "suite":
                pool.submit(_answer_suite, target, pipe, request)
            elif operation == "run" and "task" in request:
                pool.submit(_answer_run, target, pipe, request)
            else:
                pipe.answer({"id": request.get("id"), "error": _usage(f"unknown request {line.strip()[:200]}")})


def _answer_suite(target: Target, pipe: Pipe, request: dict[str, Any]) -> None:
    try:
        pipe.answer({"tasks": target.suite(str(request.get("split", "train"))), "error": None})
    except BaseException as error:
        pipe.answer({"tasks": None, "error": _errors.describe(error)})


def _answer_run(target: Target, pipe: Pipe, request: dict[str, Any]) -> None:
    answer = target.run(request["task"])
    # Whoever reads the answer finds the trajectory in the spool.
    trace_sdk.flush(_FLUSH_TIMEOUT)
    pipe.answer({"id": request.get("id"), **answer})


def _usage(message: str) -> dict[str, Any]:
    return {"type": "UsageError", "message": message, "boundary": "unknown"}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m trace_sdk.runner", description="Run an agent on tasks.")
    parser.add_argument("target", help="MODULE:NAME of an evaluation or a decorated function")
    parser.add_argument("--concurrency", type=int, default=1, help="how many runs may be under way at once")
    options = parser.parse_args(arguments)
    if options.concurrency < 1:
        parser.error("--concurrency has to be at least 1")
    pipe = Pipe()
    try:
        target = Target(options.target)
    except BaseException as error:
        pipe.answer({"op": "load", "error": {**_errors.describe(error), "boundary": "agent"}})
        return 1
    _serve(target, pipe, options.concurrency)
    return 0


if __name__ == "__main__":
    sys.exit(main())
