"""`@trace.tool`: calls of the agent's tools, as the tool saw them."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast, overload

from trace_sdk import _errors, _log
from trace_sdk._decorator import parameters
from trace_sdk._run import AgentSpec, Run, live_run, put_tool
from trace_sdk._snapshot import Snapshot

F = TypeVar("F", bound=Callable[..., Any])


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(*, name: str | None = None) -> Callable[[F], F]: ...
def tool(function: Any = None, /, *, name: str | None = None) -> Any:
    """Record calls of this function, sync or async, as tool calls of the run that makes them.

    Optional: results that go back to the model are recorded anyway. It closes the gap of a result that no
    later request carries (the last tool of a run), and marks errors that the tool raised as the tool's.
    """
    if function is None:
        return functools.partial(_decorate, name=name)
    return _decorate(function, name)


def _decorate(function: Any, name: str | None) -> Any:
    if isinstance(function, staticmethod | classmethod):
        method = cast(Any, function)
        return type(method)(_decorate(method.__func__, name))
    if not callable(function) or isinstance(function, type):
        raise TypeError(f"@trace.tool decorates a function or a method, not {function!r}")
    names, is_method = parameters(function)
    spec = AgentSpec(name=name or getattr(function, "__name__", "tool"), names=names, is_method=is_method)

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def async_wrapper(*args: Any, **kwargs: Any) -> Any:
            begun = _begin_tool(spec, args, kwargs)
            try:
                result = await function(*args, **kwargs)
            except BaseException as error:
                _end_tool(begun, spec, None, error)
                raise
            _end_tool(begun, spec, result, None)
            return result

        return async_wrapper

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        begun = _begin_tool(spec, args, kwargs)
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            _end_tool(begun, spec, None, error)
            raise
        _end_tool(begun, spec, result, None)
        return result

    return wrapper


_Begun = tuple[Run, Snapshot, float] | None


def _begin_tool(spec: AgentSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Begun:
    run = live_run()
    if run is None:
        return None
    try:
        return run, Snapshot((args[1:] if spec.is_method else args, kwargs)), time.time()
    except Exception as error:
        _log.say_once("tool", "trace.tool_not_recorded", tool=spec.name, error=repr(error))
        return None


def _end_tool(begun: _Begun, spec: AgentSpec, result: Any, error: BaseException | None) -> None:
    if begun is None:
        return
    try:
        run, arguments, started = begun
        if error is not None:
            _errors.mark_tool(error)
        put_tool(run.id, spec, arguments, None if error is not None else Snapshot(result), error, started)
    except Exception as problem:
        _log.say_once("tool", "trace.tool_not_recorded", tool=spec.name, error=repr(problem))
