"""From the first line of the agent's function to its last, for each kind of function; then the end is written."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextvars import Token
from types import CoroutineType
from typing import Any

from trace_sdk import _errors, _log
from trace_sdk._recorder import recorder
from trace_sdk._run import AgentSpec, Outcome, Run, current_run
from trace_sdk._snapshot import Snapshot

_MAX_ITEMS = 10_000
_DURABLE_TIMEOUT = 30.0


def end_run(run: Run, spec: AgentSpec, result: Any, error: BaseException | None) -> None:
    """Judge, then write the end. Never raises."""
    try:
        output = Snapshot(result) if error is None else None
        if spec.outcome is not None and error is None:
            _judge(run, spec.outcome, result)
        run.end(output, error)
    except Exception as problem:
        _log.say_once("end", "trace.end_not_recorded", agent=spec.name, error=repr(problem))


def _judge(run: Run, verifier: Callable[[Any], Any], result: Any) -> None:
    # Out of the run: what a judge asks a model is not part of what the agent did.
    token = current_run.set(None)
    try:
        verdict = verifier(result)
        if isinstance(verdict, CoroutineType):
            verdict.close()  # pyright: ignore[reportUnknownMemberType]
            raise TypeError("outcome= is an async function; it has to answer at once")
        if verdict is not None:
            run.record_outcome(Outcome.of(verdict), "verifier")
    except Exception as error:  # the grader failed, which says nothing about the agent: unknown
        run.note({"verifier_error": {**_errors.describe(error), "boundary": "grader"}})
        _log.say_once(f"verifier {id(verifier)}", "trace.verifier_failed", error=repr(error))
    finally:
        current_run.reset(token)


def settle() -> None:
    if not recorder.flush(_DURABLE_TIMEOUT, sync=True):
        _log.say_once("durable", "trace.durable_run_not_on_disk")


async def drive_coroutine(awaitable: Coroutine[Any, Any, Any], run: Run, spec: AgentSpec) -> Any:
    token = current_run.set(run)
    try:
        result = await awaitable
    except BaseException as error:
        leave(token)
        end_run(run, spec, None, error)
        if spec.durable:
            await _settle_async()
        raise
    leave(token)
    end_run(run, spec, result, None)
    if spec.durable:
        await _settle_async()
    return result


async def _settle_async() -> None:
    import asyncio

    try:
        await asyncio.to_thread(settle)
    except RuntimeError:  # the loop is being closed
        settle()


def leave(token: Token[Run | None]) -> None:
    try:
        current_run.reset(token)
    except ValueError:  # closed in another context than the one it ran in: nothing to restore there
        return


# Generators. The run is current only while the generator's own code runs, never in its consumer's.


class _Yielded:
    """What a generator gave out, for the output; the first ten thousand, so that an endless one stays bounded."""

    def __init__(self, run: Run | None, spec: AgentSpec) -> None:
        self._items: list[Any] = []
        self._run = run
        self._spec = spec
        if run is not None:
            recorder.open_generators[id(self)] = self

    def enter(self) -> Token[Run | None]:
        return current_run.set(self._run if self._run is not None else current_run.get())

    def add(self, item: Any) -> None:
        if len(self._items) < _MAX_ITEMS:
            self._items.append(item)

    def end(self, error: BaseException | None = None) -> bool:
        """Write the end; True when the caller has to wait for the disk."""
        recorder.open_generators.pop(id(self), None)
        if self._run is None:
            return False
        end_run(self._run, self._spec, self._items, error)
        return self._spec.durable


def drive_generator(generator: Generator[Any, Any, Any], run: Run | None, spec: AgentSpec) -> Generator[Any, Any, Any]:
    """The generator as it is: what is sent or thrown arrives, what it yields, returns or raises comes out."""
    yielded = _Yielded(run, spec)
    sent: Any = None
    thrown: BaseException | None = None
    while True:
        token = yielded.enter()
        try:
            item = generator.send(sent) if thrown is None else generator.throw(thrown)
        except StopIteration as stop:
            leave(token)
            if yielded.end():
                settle()
            return stop.value
        except BaseException as error:
            leave(token)
            if yielded.end(error):
                settle()
            raise
        leave(token)
        thrown = None
        yielded.add(item)
        try:
            sent = yield item
        except GeneratorExit:
            # The consumer has had enough: a normal end, with what was given out until here.
            token = yielded.enter()
            try:
                generator.close()
            except BaseException as error:
                leave(token)
                yielded.end(error)
                raise
            leave(token)
            if yielded.end():
                settle()
            raise
        except BaseException as error:
            thrown = error


def around_async_generator(
    function: Callable[..., AsyncGenerator[Any, Any]],
    begin: Callable[[tuple[Any, ...], dict[str, Any]], Run | None],
    spec: AgentSpec,
) -> Callable[..., AsyncGenerator[Any, Any]]:
    """The same for an async generator function; ``begin`` gives the run when the first item is asked for."""

    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        generator = function(*args, **kwargs)
        run = begin(args, kwargs)
        yielded = _Yielded(run, spec)
        sent: Any = None
        thrown: BaseException | None = None
        while True:
            token = yielded.enter()
            try:
                item = await (generator.asend(sent) if thrown is None else generator.athrow(thrown))
            except StopAsyncIteration:
                leave(token)
                if yielded.end():
                    await _settle_async()
                return
            except BaseException as error:
                leave(token)
                # Cancelled while it waited for its consumer: a loop that ends closes what was left early so.
                closed = error is thrown and type(error).__name__ == "CancelledError"
                if yielded.end(None if closed else error):
                    await _settle_async()
                raise
            leave(token)
            thrown = None
            yielded.add(item)
            try:
                sent = yield item
            except GeneratorExit:
                token = yielded.enter()
                try:
                    await generator.aclose()
                except RuntimeError as error:
                    # The loop, on its way out, may be closing the inner generator itself at this moment.
                    leave(token)
                    yielded.end(None if "already running" in str(error) else error)
                    raise
                except BaseException as error:
                    leave(token)
                    yielded.end(error)
                    raise
                leave(token)
                if yielded.end():
                    await _settle_async()
                raise
            except BaseException as error:
                thrown = error

    return wrapper
