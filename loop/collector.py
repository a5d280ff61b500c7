"""The collector: an address that agents on other machines send their spool to, and that takes OTLP over HTTP.

A segment's bytes are applied in the transaction that moves its position, and only at that position: a request that
is repeated, from whichever moment on either side, stores nothing twice. What is acknowledged is on the disk.
"""

from __future__ import annotations

import hmac
import logging
import re
import socket
import threading
import time
import zlib
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import structlog
import uvicorn
from sqlalchemy.exc import DatabaseError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from storage.database import Database, is_full
from storage.errors import TraceError
from storage.ingest import abort_silent, receive

log = structlog.get_logger()
# A request that a stop cuts off is repeated by its sender; it needs no traceback.
logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)

_MOST_BYTES = 256 << 20
"""Of one request, unpacked. A line of the spool is at most as long as the recorder's queue."""
_SEGMENT = re.compile(r"[\w-]{1,100}")
_HOUSEKEEPING = 3600.0


class _Refused(Exception):
    """A request that would not be taken however often it is sent."""

    def __init__(self, status: int, reason: str) -> None:
        self.status, self.reason = status, reason


class Collector:
    """Serves until `stop`, in the calling thread. ``port`` 0 picks a free one; ``token`` None asks nobody for one.

    Raises TraceError if the address cannot be had.
    """

    def __init__(self, db: Database, host: str, port: int, token: str | None) -> None:
        self._db = db
        self._token = token
        # SQLite has one writer; requests wait here and not in the database, which gives up after a while.
        self._one = threading.Lock()
        self._checked = 0.0
        self._socket = _listen(host, port)
        self.url = f"http://{host if ':' not in host else f'[{host}]'}:{self._socket.getsockname()[1]}"

    def run(self) -> None:
        """Serve until SIGINT or SIGTERM; requests under way are finished."""
        routes = [
            Route("/v1/spool/{segment}", self._guarded(self._spool), methods=["POST"]),
            Route("/v1/traces", self._guarded(self._otlp), methods=["POST"]),
            Route("/v1/logs", self._guarded(self._otlp), methods=["POST"]),
            Route("/health", _health, methods=["GET"]),
        ]
        config = uvicorn.Config(
            Starlette(routes=routes), log_config=None, access_log=False, timeout_graceful_shutdown=5
        )
        uvicorn.Server(config).run(sockets=[self._socket])

    def _guarded(self, handle: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """Ask for the token, and say in the status what the sender can do about a failure."""

        async def guarded(request: Request) -> Response:
            if self._token is not None:
                given = request.headers.get("authorization", "")
                if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
                    return _error(401, "the token is missing or wrong")
            try:
                return await handle(request)
            except _Refused as refused:
                return _error(refused.status, refused.reason)
            except DatabaseError as error:
                full = is_full(error)
                reason = "no space is left" if full else str(error.orig).splitlines()[0]
                log.error("collector.not_stored", reason=reason)
                return _error(507 if full else 503, reason)

        return guarded

    async def _spool(self, request: Request) -> Response:
        name = request.path_params["segment"]
        try:
            position, final = int(request.query_params["position"]), request.query_params.get("final") == "1"
        except (KeyError, ValueError):
            raise _Refused(400, "the query says no position") from None
        if not _SEGMENT.fullmatch(name):
            raise _Refused(400, "this is no segment's name")
        data = await _body(request)
        taken = await run_in_threadpool(self._take, name, position, data, final)
        document = {"position": taken.position, "broken": taken.broken}
        return JSONResponse(document, 200 if taken.accepted else 409)

    def _take(self, name: str, position: int, data: bytes, final: bool) -> Any:
        with self._one:
            if time.monotonic() - self._checked > _HOUSEKEEPING:
                abort_silent(self._db)
                self._checked = time.monotonic()
            return receive(self._db, name, position, data, final)

    async def _otlp(self, request: Request) -> Response:
        """One export request; a repeated one adds nothing, because a trace's id is its run's."""
        content_type = request.headers.get("content-type", "")
        signal = "logs" if request.url.path.endswith("/logs") else "traces"
        try:
            rejected = await run_in_threadpool(self._take_otlp, await _body(request), content_type, signal)
        except TraceError as error:
            raise _Refused(400, str(error)) from None
        if "json" not in content_type:
            # An empty answer is a whole success; what was rejected is only in the log.
            return Response(b"", media_type="application/x-protobuf")
        partial = {"rejectedSpans": len(rejected), "errorMessage": "; ".join(rejected)} if rejected else {}
        return JSONResponse({"partialSuccess": partial})

    def _take_otlp(self, payload: bytes, content_type: str, signal: Literal["traces", "logs"]) -> list[str]:
        from storage.importers import otlp

        with self._one:
            _, broken = otlp.receive(self._db, payload, content_type, signal=signal)
        for record in broken:
            log.warning("collector.trace_not_read", record=str(record))
        return [str(record) for record in broken]


async def _health(_: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _body(request: Request) -> bytes:
    """The whole body, unpacked. Raises _Refused if it is too long or not what its header says."""
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding not in ("identity", "gzip", "deflate"):
        raise _Refused(415, f"content-encoding {encoding} is not gzip")
    unpack = zlib.decompressobj(47) if encoding != "identity" else None
    parts: list[bytes] = []
    size = 0
    try:
        async for piece in request.stream():
            while piece:
                part = unpack.decompress(piece, 1 << 20) if unpack else piece
                piece = unpack.unconsumed_tail if unpack else b""
                parts.append(part)
                size += len(part)
                if size > _MOST_BYTES:
                    raise _Refused(413, f"more than {_MOST_BYTES >> 20} MiB in one request")
        if unpack is not None:
            parts.append(unpack.flush())
            if not unpack.eof:
                raise _Refused(400, "the body is cut off")
    except zlib.error as error:
        raise _Refused(400, f"the body is not {encoding}: {error}") from None
    return b"".join(parts)


def _error(status: int, reason: str) -> Response:
    return JSONResponse({"error": reason}, status)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=256)
    except OSError as error:
        raise TraceError(
            f"the collector cannot listen: {error.strerror or error}",
            where=f"{host}:{port}",
            fix="Choose another --port, or stop what listens there.",
        ) from error
