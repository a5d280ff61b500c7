"""Work that a run hands to other threads stays the run's: plain threads do not inherit context variables.

Only while a run is going on; a thread of a pool carries nothing itself, each piece of work does.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from trace_sdk._run import Run, current_run, live_run


def _carried(run: Run, function: Callable[..., Any]) -> Callable[..., Any]:
    def work(*args: Any, **kwargs: Any) -> Any:
        token = current_run.set(run)
        try:
            return function(*args, **kwargs)
        finally:
            current_run.reset(token)

    return work


def install_threads() -> None:
    """Let a thread that is started inside a run belong to it."""
    original = threading.Thread.start
    if getattr(original, "_trace_sdk", False):
        return

    @functools.wraps(original)
    def start(thread: Any) -> None:
        run = live_run()
        target = getattr(thread, "_target", None)
        # A pool's workers outlive the run that happened to start them.
        if run is not None and getattr(target, "__module__", None) != "concurrent.futures.thread":
            inner = thread.run

            def first() -> None:
                del thread.run  # the way it was, and no reference cycle left behind
                _carried(run, inner)()

            thread.run = first
        original(thread)

    start._trace_sdk = True  # type: ignore[attr-defined]
    thread_type: Any = threading.Thread
    thread_type.start = start


def install_pools(module: ModuleType) -> None:
    """Let work that is submitted inside a run belong to it; ``module`` is concurrent.futures.thread."""
    pool: Any = module.ThreadPoolExecutor
    original = pool.submit
    if getattr(original, "_trace_sdk", False):
        return

    @functools.wraps(original)
    def submit(self: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        run = live_run()
        return original(self, function if run is None else _carried(run, function), *args, **kwargs)

    submit._trace_sdk = True  # type: ignore[attr-defined]
    pool.submit = submit
