"""The one address that agents talk to: an OpenAI-compatible server that sends each trajectory where the policy says.

An agent may send any model name. The first request of a trajectory (header ``x-trace-trajectory``) gets a decision,
all later ones keep it, whatever policy is set in between. Without the header, a conversation is known by its first
messages, and a request that has no assistant turn yet begins a new one. A request for exactly "base" or a served
adapter is passed on untouched. Each answer says what it came from in ``x-trace-policy``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import secrets
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import Any, Self

import httpx
import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from harness.router import BASE
from harness.serving.policy import Decision, Policy, policy_label
from storage.errors import TraceError

log = structlog.get_logger()
# uvicorn logs a traceback for every request that a stop cuts off; the gateway says what matters itself.
logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
TRAJECTORY_HEADER = "x-trace-trajectory"
POLICY_HEADER = "x-trace-policy"
Mixer = Callable[[tuple[tuple[str, float], ...]], str]
"""Serves a mixture of adapters and returns its name. Raises TraceError when it can't."""
_REMEMBERED = 100_000
_UNKNOWN_FOR = 1.0


class Gateway:
    """A context manager; serves in a thread of its own. ``port`` 0 picks a free one.

    ``upstream`` is the root of a vLLM server ("http://127.0.0.1:8000"), ``mixer`` serves mixtures (without one, a
    mixture falls back to its heavier adapter). ``token`` allows POST /trace/policy (one is made up by default).
    ``timeout`` is how long, in seconds, the upstream may take between two pieces of an answer.
    """

    _http: httpx.AsyncClient  # belongs to the serving thread's event loop, made and closed there

    def __init__(
        self,
        upstream: str,
        policy: Policy | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        mixer: Mixer | None = None,
        timeout: float = 600.0,
    ) -> None:
        self.upstream = upstream.rstrip("/")
        self.token = token or secrets.token_urlsafe(24)
        self._policy = policy or Policy("none")
        self._host = host
        self._port = port
        self._mixer = mixer
        self._timeout = timeout
        self._decided: OrderedDict[str, Decision] = OrderedDict()
        self._served: set[str] = {BASE}
        self._unknown: OrderedDict[str, float] = OrderedDict()
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._port}"

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes as its base URL."""
        return f"{self.url}/v1"

    @property
    def policy(self) -> Policy:
        return self._policy

    def set_policy(self, policy: Policy) -> None:
        """Trajectories that begin from now on follow ``policy``; running ones keep what they have."""
        self._policy = policy
        log.info("policy set", version=policy.version, arms=[arm.name for arm in policy.arms], forced=policy.forced)

    def start(self) -> Self:
        """Raises TraceError when the port is taken."""
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((self._host, self._port))
        except OSError as error:
            listener.close()
            raise TraceError(
                f"port {self._port} is in use", where=self._host, fix="Stop what uses it, or give another --port."
            ) from error
        self._port = listener.getsockname()[1]
        config = uvicorn.Config(self._app(), log_config=None, access_log=False, timeout_graceful_shutdown=3)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listener]}, name="trace-gateway", daemon=True
        )
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise TraceError("the gateway did not start", where=self.url, fix="Run with TRACE_LOG=info.")
            time.sleep(0.01)
        return self

    def stop(self) -> None:
        """Answers in progress get three seconds."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(10)
            self._server = self._thread = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _app(self) -> Starlette:
        @contextlib.asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            # vLLM closes idle connections after 5 s: never reuse one that is about to go. No pool limit: the
            # upstream queues, and waiting for a connection would look like a hang.
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=2.0)
            timeout = httpx.Timeout(self._timeout, connect=5.0, pool=None)
            async with httpx.AsyncClient(trust_env=False, limits=limits, timeout=timeout) as self._http:
                yield

        return Starlette(
            routes=[
                Route("/v1/chat/completions", self._generate, methods=["POST"]),
                Route("/v1/completions", self._generate, methods=["POST"]),
                Route("/v1/models", self._models, methods=["GET"]),
                Route("/health", self._health, methods=["GET"]),
                Route("/trace/policy", self._exchange_policy, methods=["GET", "POST"]),
            ],
            exception_handlers={404: _not_found, 405: _not_found},
            lifespan=lifespan,
        )

    async def _generate(self, request: Request) -> Response:
        try:
            body = json.loads(await request.body())
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict) or not isinstance(body.get("messages", []), list):
            return _failure(400, "the request body is not a JSON object of the OpenAI form", "invalid_request_error")
        path = request.url.path
        try:
            wanted = body.get("model")
            if isinstance(wanted, str) and await self._is_served(wanted):
                return await self._forward(path, body, f"direct/{wanted}")
            decision = self._decide(request.headers.get(TRAJECTORY_HEADER), body)
            served, hint, label = await self._resolve(decision, chat="messages" in body)
            answer = await self._forward(path, _for_upstream(body, served, hint), label)
            if answer.status_code == 404 and served != BASE:
                # The upstream lost the adapter (it was restarted, or the adapter unloaded) since we last looked.
                self._served.discard(served)
                answer = await self._forward(path, _for_upstream(body, BASE, None), self._fell_back(decision))
            return answer
        except httpx.TimeoutException:
            return _failure(504, f"the model server did not answer within {self._timeout:.0f} s", "upstream_timeout")
        except httpx.HTTPError as error:
            return _failure(502, f"the model server cannot be reached: {error or type(error).__name__}")

    async def _forward(self, path: str, body: Mapping[str, Any], label: str) -> Response:
        outgoing = self._http.build_request("POST", f"{self.upstream}{path}", json=body)
        answer = await self._http.send(outgoing, stream=True)
        headers = {POLICY_HEADER: label.encode("ascii", "replace").decode()}
        kind = answer.headers.get("content-type", "application/json")
        if body.get("stream") and answer.status_code == 200:
            return StreamingResponse(_pieces(answer), 200, headers, media_type=kind)
        try:
            content = await answer.aread()
        finally:
            await answer.aclose()
        return Response(content, answer.status_code, headers, media_type=kind)

    def _decide(self, trajectory: str | None, body: Mapping[str, Any]) -> Decision:
        """Sticky, see the module's docstring."""
        messages = [m for m in body.get("messages", []) if isinstance(m, dict)]
        if trajectory:
            key, running = f"t {trajectory}", True
        else:
            first_user = next((i for i, m in enumerate(messages) if m.get("role") == "user"), len(messages))
            opening = json.dumps([messages[: first_user + 1], body.get("prompt")], sort_keys=True)
            key = f"h {hashlib.sha256(opening.encode()).hexdigest()}"
            running = any(m.get("role") == "assistant" for m in messages)
        decision = self._decided.get(key) if running else None
        if decision is None:
            decision = self._policy.decide(_task_text(messages, body.get("prompt")), _tool_names(body))
        self._decided[key] = decision
        self._decided.move_to_end(key)
        while len(self._decided) > _REMEMBERED:
            self._decided.popitem(last=False)
        return decision

    async def _resolve(self, decision: Decision, *, chat: bool) -> tuple[str, str | None, str]:
        """Served model, hint and label of a decision, as far as the upstream can follow it."""
        if decision.hint and not chat:
            return BASE, None, self._fell_back(decision)  # a raw prompt has no system message to add to
        if not decision.parts:
            return BASE, decision.hint, decision.label
        if len(decision.parts) == 1:
            name = decision.parts[0][0]
            if await self._is_served(name):
                return name, decision.hint, decision.label
        elif self._mixer is not None:
            try:
                name = await run_in_threadpool(self._mixer, decision.parts)
                self._served.add(name)
                return name, decision.hint, decision.label
            except TraceError as error:
                log.warning("mixture not served", label=decision.label, error=str(error))
        else:
            name = max(decision.parts, key=lambda part: part[1])[0]
            if await self._is_served(name):
                return name, decision.hint, f"{decision.label}!{name}"
        return BASE, None, self._fell_back(decision)

    def _fell_back(self, decision: Decision) -> str:
        log.warning("served by base instead", label=decision.label)
        return policy_label(decision.version, f"{BASE}!fallback")

    async def _is_served(self, name: str) -> bool:
        """Whether the upstream serves ``name``. Asks when it isn't known, at most once a second for each name."""
        if name in self._served:
            return True
        now = time.monotonic()
        if now - self._unknown.get(name, -_UNKNOWN_FOR) < _UNKNOWN_FOR:
            return False
        answer = await self._http.get(f"{self.upstream}/v1/models")
        with contextlib.suppress(ValueError, KeyError, TypeError):
            self._served = {BASE, *(str(card["id"]) for card in answer.json()["data"])}
        if name in self._served:
            return True
        self._unknown[name] = now
        while len(self._unknown) > 1000:
            self._unknown.popitem(last=False)
        return False

    async def _models(self, _: Request) -> Response:
        try:
            answer = await self._http.get(f"{self.upstream}/v1/models")
        except httpx.HTTPError as error:
            return _failure(502, f"the model server cannot be reached: {error or type(error).__name__}")
        return Response(answer.content, answer.status_code, media_type="application/json")

    async def _health(self, _: Request) -> Response:
        try:
            up = (await self._http.get(f"{self.upstream}/health", timeout=10.0)).status_code == 200
        except httpx.HTTPError:
            up = False
        state = {"status": "ok" if up else "upstream down", "policy": self._policy.version, "upstream": self.upstream}
        return JSONResponse(state, 200 if up else 503)

    async def _exchange_policy(self, request: Request) -> Response:
        if request.method == "POST":
            given = request.headers.get("authorization", "").removeprefix("Bearer ")
            if not secrets.compare_digest(given.encode(), self.token.encode()):
                return _failure(401, "a policy is set with the gateway's token", "authentication_error")
            try:
                self.set_policy(Policy.from_json(json.loads(await request.body())))
            except ValueError as error:
                return _failure(400, str(error), "invalid_request_error")
        return JSONResponse(self._policy.to_json())


async def _pieces(answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for piece in answer.aiter_bytes():
            yield piece
    except httpx.HTTPError as error:
        # The status line is long gone; OpenAI clients raise on an event that holds an error.
        yield b"data: " + _error(502, f"the model server broke off: {error or type(error).__name__}") + b"\n\n"
    finally:
        await answer.aclose()


def _for_upstream(body: Mapping[str, Any], served: str, hint: str | None) -> dict[str, Any]:
    changed = {**body, "model": served}
    if hint and "messages" in body:
        changed["messages"] = _with_hint(body["messages"], hint)
    return changed


def _with_hint(messages: list[Any], hint: str) -> list[Any]:
    if messages and isinstance(messages[0], dict) and messages[0].get("role") in ("system", "developer"):
        content = messages[0].get("content")
        if isinstance(content, list):
            content = [*content, {"type": "text", "text": f"\n\n{hint}"}]
        else:
            content = f"{content}\n\n{hint}" if content else hint
        return [{**messages[0], "content": content}, *messages[1:]]
    return [{"role": "system", "content": hint}, *messages]


def _task_text(messages: list[dict[str, Any]], prompt: Any) -> str:
    content = next((m.get("content") for m in messages if m.get("role") == "user"), prompt)
    if isinstance(content, list):
        content = " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _tool_names(body: Mapping[str, Any]) -> list[str]:
    functions = [tool.get("function") for tool in body.get("tools") or [] if isinstance(tool, dict)]
    return [str(function["name"]) for function in functions if isinstance(function, dict) and "name" in function]


def _error(status: int, message: str, kind: str = "upstream_error") -> bytes:
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": status}}).encode()


def _failure(status: int, message: str, kind: str = "upstream_error") -> Response:
    return Response(_error(status, message, kind), status, media_type="application/json")


async def _not_found(request: Request, _: Exception) -> Response:
    return _failure(404, f"{request.method} {request.url.path} is not served here", "invalid_request_error")
