"""`@trace.agent`: what is around the agent's function while it runs, whatever kind of function it is.

Nothing here changes what the function returns, raises or yields, and a fault of the recorder never reaches it.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, TypeVar, cast, overload

from trace_sdk import _log
from trace_sdk._drive import around_async_generator, drive_coroutine, drive_generator, end_run, leave, settle
from trace_sdk._recorder import recorder
from trace_sdk._run import AgentSpec, Run, current_run, live_run, started_roots, task_of_runner
from trace_sdk._snapshot import Snapshot

F = TypeVar("F", bound=Callable[..., Any])
_installed: list[bool] = []
_installing = threading.Lock()
_PATIENCE = 5.0
"""Seconds to wait for another thread's hooking. A child forked in its midst would else wait for ever."""


@overload
def agent(function: F, /) -> F: ...
@overload
def agent(
    *,
    name: str | None = None,
    version: str | None = None,
    task: Callable[..., Any] | None = None,
    session: Any = None,
    user: Any = None,
    tags: Any = (),
    outcome: Callable[[Any], Any] | None = None,
    durable: bool = False,
    trainable: bool = True,
    exceptions_fail: bool = True,
) -> Callable[[F], F]: ...
def agent(function: Any = None, /, **options: Any) -> Any:
    """Record every run of this function as a trajectory: sync, async, generator or async generator, or a method.

    ``name`` defaults to the function's qualified name. ``task`` gives the task's key from the arguments;
    ``session``, ``user`` and ``tags`` are values, or functions of the arguments. ``outcome`` judges the result
    (of a generator: the list of what it yielded): a bool, a score in 0..1, an `Outcome`, or None for unknown.
    ``durable`` returns only when the run is on disk. ``trainable=False`` keeps the run out of training.
    ``exceptions_fail=False`` leaves the outcome of a run that raised unknown.

        @trace.agent(task=lambda question: question, outcome=lambda answer: "42" in answer)
        def answer(question: str) -> str: ...
    """
    if function is None:
        return functools.partial(_decorate, options=options)
    return _decorate(function, options)


def _decorate(function: Any, options: dict[str, Any]) -> Any:
    if isinstance(function, staticmethod | classmethod):
        method = cast(Any, function)
        return type(method)(_decorate(method.__func__, options))
    if not callable(function) or isinstance(function, type):
        raise TypeError(f"@trace.agent decorates a function or a method, not {function!r}")
    names, is_method = parameters(function)
    given = dict(options)
    name = given.pop("name", None) or getattr(function, "__qualname__", type(function).__qualname__)
    spec = AgentSpec(name=name.replace("<locals>.", ""), names=names, is_method=is_method, **given)
    if inspect.isasyncgenfunction(function):
        return around_async_generator(function, functools.partial(_begin, spec), spec)
    if inspect.isgeneratorfunction(function):
        return _around_generator(function, spec)
    if inspect.iscoroutinefunction(function):
        return _around_coroutine(function, spec)
    return _around_function(function, spec)


def parameters(function: Callable[..., Any]) -> tuple[tuple[str, ...], bool]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return (), False
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    is_method = bool(names) and names[0] in ("self", "cls")
    return tuple(names[1:] if is_method else names), is_method


# Around the function.


def _begin(spec: AgentSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run | None:
    """The new run, not yet current; None when recording is switched off or impossible."""
    try:
        if not (recorder.active or recorder.settings).enabled:
            return None
        if not _installed:
            _install()
        parent = live_run()
        run = Run(
            spec,
            parent,
            Snapshot((args[1:] if spec.is_method else args, kwargs)),
            _value(spec.task, args, kwargs) if spec.task is not None else task_of_runner.get(),
            _value(spec.session, args, kwargs) if spec.session is not None else None,
            _value(spec.user, args, kwargs) if spec.user is not None else None,
            _value(spec.tags, args, kwargs) if spec.tags else (),
        )
        if parent is None:
            roots = started_roots.get()
            if roots is not None:
                roots.append(run)
        return run
    except Exception as error:
        _log.say_once("start", "trace.run_not_recorded", agent=spec.name, error=repr(error))
        return None


def _value(given: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not callable(given):
        return given
    try:
        return given(*args, **kwargs)
    except Exception as error:
        _log.say_once(f"value {id(given)}", "trace.option_failed", error=repr(error))
        return None


def _install() -> None:
    """Hook the clients, once: threads whose first runs begin together wait for the one that hooks."""
    held = _installing.acquire(timeout=_PATIENCE)
    try:
        if not _installed:
            from trace_sdk._clients import install

            install()
    finally:
        _installed.append(True)
        if held:
            _installing.release()


def _around_function(function: Callable[..., Any], spec: AgentSpec) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        run = _begin(spec, args, kwargs)
        if run is None:
            return function(*args, **kwargs)
        token = current_run.set(run)
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            leave(token)
            end_run(run, spec, None, error)
            if spec.durable:
                settle()
            raise
        leave(token)
        # A plain function that hands out a coroutine or a generator has not run yet.
        kind = cast(object, type(result))
        if kind is CoroutineType:
            return drive_coroutine(result, run, spec)
        if kind is GeneratorType:
            return drive_generator(result, run, spec)
        if kind is AsyncGeneratorType:
            generator = cast(AsyncGenerator[Any, Any], result)
            return around_async_generator(lambda: generator, lambda args, kwargs: run, spec)()
        end_run(run, spec, result, None)
        if spec.durable:
            settle()
        return result

    return wrapper


def _around_coroutine(function: Callable[..., Any], spec: AgentSpec) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        run = _begin(spec, args, kwargs)
        if run is None:
            return await function(*args, **kwargs)
        return await drive_coroutine(function(*args, **kwargs), run, spec)

    return wrapper


def _around_generator(function: Callable[..., Any], spec: AgentSpec) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        run = _begin(spec, args, kwargs)
        if run is None:
            return (yield from cast(Generator[Any, Any, Any], function(*args, **kwargs)))
        return (yield from drive_generator(function(*args, **kwargs), run, spec))

    return wrapper
