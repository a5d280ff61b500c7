"""A scripted model server on real HTTP: answers like vLLM, remembers what it was asked, can be killed.

In a test's own process, or as one of its own: `python upstream.py PORT`.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
import time
from typing import Any, Self

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


class ScriptedUpstream:
    """Echoes the model it was asked for. ``asked`` holds (path, headers, body) of every generation request."""

    def __init__(self, *adapters: str) -> None:
        self.adapters = list(adapters)
        self.asked: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.delay = 0.0
        self.break_stream = False
        self.hold: threading.Event | None = None
        """A stream sends its first piece and waits for this before the second."""

    @property
    def last(self) -> dict[str, Any]:
        return self.asked[-1][2]

    def app(self) -> Starlette:
        routes = [
            Route("/v1/load_lora_adapter", self._load, methods=["POST"]),
            Route("/v1/unload_lora_adapter", self._unload, methods=["POST"]),
            Route("/v1/chat/completions", self._answer, methods=["POST"]),
            Route("/v1/completions", self._answer, methods=["POST"]),
            Route("/v1/models", self._models),
            Route("/health", lambda _: Response()),
        ]
        return Starlette(routes=routes)

    def __enter__(self) -> Self:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._server = uvicorn.Server(uvicorn.Config(self.app(), log_config=None, timeout_graceful_shutdown=0))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]}, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.005)
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(5)

    async def _answer(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.asked.append((request.url.path, dict(request.headers), body))
        await asyncio.sleep(self.delay)
        if body["model"] not in ["base", *self.adapters]:
            return JSONResponse({"error": {"message": f"no model {body['model']}", "code": 404}}, 404)
        message = {"role": "assistant", "content": f"I am {body['model']}"}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return JSONResponse(
                {"id": "c", "object": "chat.completion", "created": 1, "model": body["model"], "choices": [choice]}
            )

        async def events():
            for word in f"I am {body['model']}".split():
                choice = {"index": 0, "delta": {"content": word}, "finish_reason": None}
                chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
                yield f"data: {json.dumps(chunk)}\n\n"
                while self.hold is not None and not self.hold.is_set():
                    await asyncio.sleep(0.01)
                if self.break_stream:
                    raise ConnectionResetError
            yield "data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def _models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": name} for name in ["base", *self.adapters]]})

    async def _load(self, request: Request) -> Response:
        self.adapters.append(json.loads(await request.body())["lora_name"])
        return Response("added")

    async def _unload(self, request: Request) -> Response:
        self.adapters.remove(json.loads(await request.body())["lora_name"])
        return Response("removed")


if __name__ == "__main__":
    uvicorn.run(ScriptedUpstream().app(), port=int(sys.argv[1]), log_level="warning")
