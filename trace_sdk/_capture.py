"""Model calls, seen where every client passes: `Client.send` and `AsyncClient.send` of httpx and of httpx2.

Outside a decorated run the wrappers hand the call through. Inside, a call to a known path is put aside as raw
bytes, streams included, and decoded later in the writer's thread. With a gateway set, it is sent there instead.
"""

from __future__ import annotations

import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from trace_sdk import _decode, _errors, _log, _threads
from trace_sdk._ids import new_id
from trace_sdk._layers import mark_seen
from trace_sdk._recorder import recorder
from trace_sdk._run import VERSION, Run, live_run

TRAJECTORY_HEADER = "x-trace-trajectory"
POLICY_HEADER = "x-trace-policy"
# Not for the gateway: it is not the one that these were meant for.
_CREDENTIALS = ("authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie")


class Call:
    """One model call of a run, from its request to the last byte of its response."""

    __slots__ = (
        "_begun",
        "_finished",
        "attempt",
        "body",
        "call_id",
        "chunks",
        "encoding",
        "error",
        "exhausted",
        "key",
        "latency",
        "policy",
        "provider",
        "provisional",
        "response_type",
        "run",
        "seq",
        "size",
        "started",
        "status",
        "streamed",
        "thread",
        "url",
    )

    def __init__(self, run: Run, provider: str, url: str, body: bytes | None) -> None:
        self.run = run
        self.provider = provider
        self.url = url
        self.body = body
        self.key = hash(body)
        # The same request again after it failed is a retry, by the client or by the agent: one call, not two.
        failed: Call | None = run.take_failed(self.key)
        if failed is not None:
            self.call_id, self.seq, self.attempt = failed.call_id, failed.seq, failed.attempt + 1
        else:
            self.call_id, self.seq, self.attempt = new_id(), run.next_seq(), 1
        self.size = len(body or b"") + 400
        self.chunks: list[bytes] = []
        self.status = 0
        self.encoding = ""
        self.policy: str | None = None
        self.error: dict[str, Any] | None = None
        self.response_type: Any = None
        self.streamed = self.exhausted = self.provisional = self._finished = False
        self.latency: float | None = None
        self.thread: str | None = None
        self.started = time.time()
        self._begun = time.perf_counter()
        mark_seen()
        recorder.open_call(self.call_id, self)

    def answered(self, response: Any) -> None:
        """The head of the response is there."""
        self.status = response.status_code
        headers = response.headers
        self.policy = headers.get(POLICY_HEADER)
        self.streamed = "event-stream" in headers.get("content-type", "")
        self.encoding = headers.get("content-encoding", "")
        self.response_type = type(response)

    def failed(self, error: BaseException) -> None:
        self.error = _errors.describe(error)

    def finish(self) -> None:
        """Hand the call to the writer, once."""
        if self._finished:
            return
        self._finished = True
        self.latency = time.perf_counter() - self._begun
        if self.error is not None or self.status >= 400:
            self.run.failed_calls()[self.key] = self
        self.size += sum(map(len, self.chunks))
        recorder.open_calls.pop(self.call_id, None)
        recorder.put(_render, self, self.size)

    abandon = finish
    """At the process's end: what came of the response is kept."""

    def render_provisional(self, _: None) -> dict[str, Any] | None:
        """The call as far as it is known while it goes on; a later event of the same id replaces it."""
        return None if self._finished else self._event(None, None)

    def _event(self, response: dict[str, Any] | None, error: dict[str, Any] | None) -> dict[str, Any]:
        request = _decode.request_of(self.provider, self.body)
        if self.provider == "openai.responses":
            _restore(self.run.responses(), request, response)
        if self.thread is None:
            self.thread = _threads.assign(self.run.threads(), request["messages"])
        if response is not None and self.policy is not None:
            response["policy"] = self.policy
        return {
            "v": VERSION,
            "type": "call",
            "id": self.run.id,
            "ts": self.started + (self.latency or 0.0),
            "call_id": self.call_id,
            "seq": self.seq,
            "attempt": self.attempt,
            "started": self.started,
            "latency": self.latency,
            "provider": self.provider,
            "url": self.url,
            "model": request.pop("model"),
            "thread": self.thread,
            "request": request,
            "response": response,
            "error": error,
        }


def _restore(seen: dict[str, Any], request: dict[str, Any], response: dict[str, Any] | None) -> None:
    """Put back the messages that the server keeps and the request only names, where the run has seen them."""
    earlier = seen.get(str(request["params"].get("previous_response_id")), [])
    own = request["messages"]
    rules = [m for m in own if m.get("role") == "system"]
    request["messages"] = [*rules, *earlier, *(m for m in own if m.get("role") != "system")]
    if response is not None and response.get("id"):
        # Instructions are not carried over by the server.
        seen[response["id"]] = [*request["messages"][len(rules) :], response["message"]]


def _render(call: Call) -> dict[str, Any]:
    response, error = None, None
    if call.status:
        body = _decoded(call)
        response, error = _decode.response_of(call.provider, call.status, body, call.streamed, call.exhausted)
    event = call._event(response, call.error or error)  # pyright: ignore[reportPrivateUsage]
    call.chunks = []
    return event


def _decoded(call: Call) -> bytes:
    if not call.encoding:
        return b"".join(call.chunks)
    # The client library's own decoders, on a response of our own. A stream cut short gives what it holds.
    parts: list[bytes] = []
    try:
        copy = call.response_type(200, headers={"content-encoding": call.encoding}, content=iter(call.chunks))
        parts.extend(copy.iter_bytes())
    except Exception as error:
        _log.say_once("encoding", "trace.response_not_decoded", encoding=call.encoding, error=repr(error))
    return b"".join(parts)


def _begin(run: Run, request: Any) -> tuple[Call, Any, bool] | None:
    """The call, the request to send and whether it goes to the gateway; None when it is no model call."""
    if request.method != "POST":
        return None
    known = _decode.provider_of(request.url.path)
    if known is None:
        return None
    provider, ending = known
    try:
        body: bytes | None = request.content
    except Exception:  # a body that is itself a stream: reading it would take it from the client
        body = None
    gateway = recorder.settings.gateway
    url = request.url
    call = Call(run, provider, f"{url.scheme}://{url.netloc.decode('ascii').rpartition('@')[2]}{url.path}", body)
    if gateway is None:
        return call, request, False
    return call, _redirected(request, gateway, ending, run.id), True


def _redirected(request: Any, gateway: str, ending: str, trajectory: str) -> Any:
    """The same request for the gateway. A new object: the client's own never carries the trajectory's id."""
    base = urlsplit(gateway)
    prefix = base.path.rstrip("/").removesuffix("/v1")
    tail = ending if ending.startswith("/v1/") else f"/v1{ending}"
    target = f"{base.scheme}://{base.netloc}{prefix}{tail}"
    headers = [(k, v) for k, v in request.headers.multi_items() if k.lower() not in (*_CREDENTIALS, "host")]
    headers += [("host", base.netloc.rpartition("@")[2]), (TRAJECTORY_HEADER, trajectory)]
    return type(request)(
        request.method, target, headers=headers, stream=request.stream, extensions=dict(request.extensions)
    )


def _tee_types(library: Any) -> tuple[type, type]:
    """Streams that the library takes for its own and that put every chunk aside on its way through."""

    class Tee(library.SyncByteStream):
        def __init__(self, inner: Any, call: Call) -> None:
            self._inner = inner
            self._call = call

        def __iter__(self) -> Iterator[bytes]:
            keep = self._call.chunks.append
            try:
                for chunk in self._inner:
                    keep(chunk)
                    yield chunk
                self._call.exhausted = True
            except GeneratorExit:
                raise
            except BaseException as error:
                self._call.failed(error)
                raise

        def close(self) -> None:
            try:
                self._inner.close()
            finally:
                self._call.finish()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def __del__(self) -> None:
            self._call.finish()

    class AsyncTee(library.AsyncByteStream):
        def __init__(self, inner: Any, call: Call) -> None:
            self._inner = inner
            self._call = call

        async def __aiter__(self) -> AsyncIterator[bytes]:
            keep = self._call.chunks.append
            try:
                async for chunk in self._inner:
                    keep(chunk)
                    yield chunk
                self._call.exhausted = True
            except GeneratorExit:
                raise
            except BaseException as error:
                self._call.failed(error)
                raise

        async def aclose(self) -> None:
            try:
                await self._inner.aclose()
            finally:
                self._call.finish()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def __del__(self) -> None:
            self._call.finish()

    return Tee, AsyncTee


def _attach(call: Call, response: Any, streaming: bool, tee: Callable[[Any, Call], Any]) -> None:
    call.answered(response)
    if streaming and not response.is_closed:
        response.stream = tee(response.stream, call)
        return
    call.chunks = [response.content]
    call.encoding = ""  # the client has decoded it already
    call.exhausted = True
    call.finish()


def install(library: Any) -> None:
    """Wrap the two `send`s of a library of httpx's shape, once."""
    if getattr(library.Client.send, "_trace_sdk", False):
        return
    tee, async_tee = _tee_types(library)
    library.Client.send = _wrap(library.Client.send, tee)
    library.AsyncClient.send = _wrap_async(library.AsyncClient.send, async_tee)


def _guarded(run: Run, request: Any) -> tuple[Call, Any, bool] | None:
    try:
        return _begin(run, request)
    except Exception as error:
        _log.say_once("begin", "trace.call_not_recorded", error=repr(error))
        return None


def _complete(call: Call, response: Any, streaming: bool, tee: Callable[[Any, Call], Any]) -> None:
    try:
        _attach(call, response, streaming, tee)
    except Exception as error:
        _log.say_once("attach", "trace.call_not_recorded", error=repr(error))


def _wrap(original: Callable[..., Any], tee: Callable[[Any, Call], Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def send(client: Any, request: Any, **options: Any) -> Any:
        run = live_run()
        begun = _guarded(run, request) if run is not None else None
        if begun is None:
            return original(client, request, **options)
        call, request, redirected = begun
        if redirected:
            options["follow_redirects"] = False  # a redirect would carry the header somewhere else
        try:
            response = original(client, request, **options)
        except BaseException as error:
            call.failed(error)
            call.finish()
            raise
        _complete(call, response, bool(options.get("stream")), tee)
        return response

    send._trace_sdk = True  # type: ignore[attr-defined]
    return send


def _wrap_async(
    original: Callable[..., Awaitable[Any]], tee: Callable[[Any, Call], Any]
) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(original)
    async def send(client: Any, request: Any, **options: Any) -> Any:
        run = live_run()
        begun = _guarded(run, request) if run is not None else None
        if begun is None:
            return await original(client, request, **options)
        call, request, redirected = begun
        if redirected:
            options["follow_redirects"] = False  # a redirect would carry the header somewhere else
        try:
            response = await original(client, request, **options)
        except BaseException as error:
            call.failed(error)
            call.finish()
            raise
        _complete(call, response, bool(options.get("stream")), tee)
        return response

    send._trace_sdk = True  # type: ignore[attr-defined]
    return send
