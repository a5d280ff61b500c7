"""The run of an agent while it goes on: what `current()` returns, and the events it leaves behind."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from trace_sdk import _errors, _log
from trace_sdk._ids import new_id
from trace_sdk._recorder import recorder
from trace_sdk._snapshot import Snapshot, jsonable

VERSION = 1
_sequence = itertools.count()
_silent: set[str] = set()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run went. ``success`` None is unknown, which is never counted as failure; ``score`` is 0..1."""

    success: bool | None = None
    score: float | None = None
    reason: str | None = None

    @classmethod
    def of(cls, value: object, score: float | None = None, reason: str | None = None) -> Outcome:
        """From a bool, a score (1.0 and more is success, less is failure), an Outcome, or None (unknown).

        Raises TypeError for anything else, because a guess here would be counted.
        """
        if isinstance(value, Outcome):
            return value
        if value is None or isinstance(value, bool):
            return cls(value, score, reason)
        kind = type(value).__name__
        if kind in ("bool", "bool_"):  # numpy's
            return cls(bool(value), score, reason)
        try:
            number = float(value)  # type: ignore[arg-type]  # whatever is a number, numpy's too
        except (TypeError, ValueError):
            raise TypeError(f"an outcome is a bool, a number, an Outcome or None, not {kind}") from None
        if number != number:
            raise TypeError("an outcome's score is not a number (NaN)")
        return cls(number >= 1.0, number if score is None else score, reason)


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """What the decorator was told, with the names of the function's parameters (without ``self``)."""

    name: str
    version: str | None = None
    task: Callable[..., Any] | None = None
    session: Any = None
    user: Any = None
    tags: Any = ()
    outcome: Callable[[Any], Any] | None = None
    durable: bool = False
    trainable: bool = True
    exceptions_fail: bool = True
    names: tuple[str, ...] = ()
    is_method: bool = False


class Run:
    """A handle on the running trajectory. ``id`` names it everywhere, also in `trace.feedback` later."""

    __slots__ = (
        "_calls",
        "_ended",
        "_failed_calls",
        "_outcome",
        "_pid",
        "_responses",
        "_spec",
        "_started",
        "_threads",
        "id",
        "parent",
        "root",
    )

    def __init__(
        self,
        spec: AgentSpec,
        parent: Run | None,
        input: Snapshot,
        task: Any = None,
        session: Any = None,
        user: Any = None,
        tags: Any = (),
    ) -> None:
        self.id = new_id()
        self.parent = parent
        self.root: Run = self if parent is None else parent.root
        self._spec = spec
        self._started = time.time()
        self._calls = 0
        self._ended = False
        self._outcome: Outcome | None = None
        self._pid = recorder.pid
        self._failed_calls: dict[int, Any] | None = None
        # The two below belong to the writer's thread.
        self._threads: list[Any] | None = None
        self._responses: dict[str, Any] | None = None
        # Arguments go to the writer and are not kept here: a run can be long.
        recorder.put(_render_start, (self, input, task, session, user, tags), input.size + 400)

    # What the agent may call.

    def outcome(
        self, value: bool | float | Outcome | None, score: float | None = None, *, reason: str | None = None
    ) -> None:
        """Say how this run went. Can be said again; the last one counts. Raises TypeError for a value that is none."""
        self.record_outcome(Outcome.of(value, score, reason), "agent")

    def note(self, data: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Keep facts beside the trajectory, by name."""
        snapshot = Snapshot({**(data or {}), **more})
        recorder.put(_render_note, (self.id, time.time(), snapshot), snapshot.size + 100)

    # What the recorder's other parts call.

    def record_outcome(self, outcome: Outcome, source: str) -> None:
        self._outcome = outcome
        put_outcome(self.id, outcome, source)

    def next_seq(self) -> int:
        """A number that orders the model calls of a process; calls of sub-agents count for the runs they belong to."""
        run: Run | None = self
        while run is not None:
            run._calls += 1
            run = run.parent
        return next(_sequence)

    # What the parts keep on the run between its calls, made when first needed.

    def failed_calls(self) -> dict[int, Any]:
        """Model calls that failed, by the hash of their request: the same request again is a retry."""
        if self._failed_calls is None:
            self._failed_calls = {}
        return self._failed_calls

    def take_failed(self, key: int) -> Any:
        return self._failed_calls.pop(key, None) if self._failed_calls else None

    def threads(self) -> list[Any]:
        """The threads of messages seen so far; for the writer's thread alone."""
        if self._threads is None:
            self._threads = []
        return self._threads

    def responses(self) -> dict[str, Any]:
        """Messages by the id of the response that they led to; for the writer's thread alone."""
        if self._responses is None:
            self._responses = {}
        return self._responses

    def verdict(self) -> Outcome:
        """The outcome as far as it is known in this process."""
        return self._outcome or Outcome()

    def end(self, output: Snapshot | None, error: BaseException | None) -> None:
        """Write the end, once; in the process that began the run, not in a child forked inside it."""
        if self._ended or self._pid != recorder.pid:
            return
        self._ended = True
        described = _errors.describe(error) if error is not None else None
        if (
            described is not None
            and self._spec.exceptions_fail
            and self._outcome is None
            and _counts_as_failure(error, described["boundary"])
        ):
            self.record_outcome(Outcome(False, None, f"raised {described['type']}"), "exception")
        weight = 1.0
        settings = recorder.active
        share = settings.sample_successes if settings is not None else 1.0
        if share < 1.0 and self._outcome is not None and self._outcome.success is True:
            # Weight 0: sampled out; the reader drops the run and the kept ones stand for it.
            weight = 1.0 / share if share > 0 and random.random() < share else 0.0
        recorder.put(
            self._render_end, (time.time(), described, output, weight), (output.size if output is not None else 0) + 200
        )
        if self.parent is None and self._calls == 0 and error is None and self._spec.name not in _silent:
            _silent.add(self._spec.name)
            _log.say(
                "trace.run_without_model_calls",
                agent=self._spec.name,
                hint="no model call passed httpx, httpx2, litellm or langchain inside this run; "
                "calls from threads or clients that are not seen can be recorded with @trace.tool",
            )

    # Rendering: in the writer's thread.

    def start_event(self, input: Snapshot, task: Any, session: Any, user: Any, tags: Any) -> dict[str, Any]:
        args, kwargs = input.thaw()
        return {
            "v": VERSION,
            "type": "start",
            "id": self.id,
            "ts": self._started,
            "agent": self._spec.name,
            "version": self._spec.version,
            "task": _text(task),
            "session": _text(session),
            "user": _text(user),
            "tags": [str(tag) for tag in tags or ()],
            "parent": self.parent.id if self.parent is not None else None,
            "root": self.root.id,
            "input": _named(self._spec.names, args, kwargs),
            "trainable": self._spec.trainable,
            "pid": self._pid,
        }

    def _render_end(self, data: tuple[float, dict[str, Any] | None, Snapshot | None, float]) -> dict[str, Any]:
        at, error, output, weight = data
        return {
            "v": VERSION,
            "type": "end",
            "id": self.id,
            "ts": at,
            "status": "completed" if error is None else "raised",
            "error": error,
            "output": output.thaw() if output is not None else None,
            "weight": weight,
        }


current_run: ContextVar[Run | None] = ContextVar("trace_sdk_run", default=None)
started_roots: ContextVar[list[Run] | None] = ContextVar("trace_sdk_started_roots", default=None)
"""Where the runner collects the runs that a task starts."""
task_of_runner: ContextVar[str | None] = ContextVar("trace_sdk_task", default=None)
"""The key of the task that the runner is running, for agents that name none themselves."""


def live_run() -> Run | None:
    """The run of this context, unless it has ended."""
    run = current_run.get()
    return run if run is not None and not run._ended else None  # pyright: ignore[reportPrivateUsage]


def put_outcome(id: str, outcome: Outcome, source: str) -> None:
    """Write an outcome for any trajectory, running, ended or long stored."""
    recorder.put(_render_outcome, (id, time.time(), outcome, source), 300)


def _render_start(data: tuple[Run, Snapshot, Any, Any, Any, Any]) -> dict[str, Any]:
    run, *given = data
    return run.start_event(*given)


def _render_outcome(data: tuple[str, float, Outcome, str]) -> dict[str, Any]:
    id, at, outcome, source = data
    return {
        "v": VERSION,
        "type": "outcome",
        "id": id,
        "ts": at,
        "success": outcome.success,
        "score": outcome.score,
        "source": source,
        "reason": outcome.reason,
    }


def _render_note(data: tuple[str, float, Snapshot]) -> dict[str, Any]:
    id, at, snapshot = data
    return {"v": VERSION, "type": "note", "id": id, "ts": at, "data": snapshot.thaw()}


def put_tool(
    id: str, spec: AgentSpec, arguments: Snapshot, result: Snapshot | None, error: BaseException | None, started: float
) -> None:
    """Write one call of a decorated tool."""
    size = arguments.size + (result.size if result is not None else 0) + 200
    described = _errors.describe(error) if error is not None else None
    recorder.put(_render_tool, (id, spec, arguments, result, described, started, time.time()), size)


def _render_tool(
    data: tuple[str, AgentSpec, Snapshot, Snapshot | None, dict[str, Any] | None, float, float],
) -> dict[str, Any]:
    id, spec, arguments, result, error, started, ended = data
    args, kwargs = arguments.thaw()
    return {
        "v": VERSION,
        "type": "tool",
        "id": id,
        "ts": ended,
        "name": spec.name,
        "arguments": _named(spec.names, args, kwargs),
        "result": result.thaw() if result is not None else None,
        "error": error,
        "started": started,
        "latency": ended - started,
    }


def _counts_as_failure(error: BaseException | None, boundary: str) -> bool:
    """An exception of the agent or its tools is a failure; an infrastructure's, a provider's or an exit is not."""
    return isinstance(error, Exception) and boundary in ("agent", "tool")


def _named(names: tuple[str, ...], args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by the names of their parameters; those of ``*args`` by position under ``args``."""
    named = dict(zip(names, args, strict=False))
    if len(args) > len(names):
        named["args"] = args[len(names) :]
    named.update(kwargs)
    return named


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    import json

    return json.dumps(jsonable(value), sort_keys=True, ensure_ascii=False)
