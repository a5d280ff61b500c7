"""A local server that plays a script: each request takes the next reply. It keeps what it was sent.

A reply says how it goes wrong, if it does: chunks cut anywhere, compression, a delay, a connection that breaks.
"""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Reply:
    """``events`` makes it a stream. ``cut`` splits the body into pieces of so many bytes; ``breaks_after`` sends
    only so many pieces and then drops the connection."""

    body: Any = None
    events: list[Any] | None = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cut: int = 0
    compress: bool = False
    delay: float = 0.0
    pause: float = 0.0
    breaks_after: int | None = None

    def encode(self) -> bytes:
        if self.events is None:
            raw = self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()
        else:
            raw = "".join(_sse(event) for event in self.events).encode()
        return gzip.compress(raw) if self.compress else raw


def _sse(event: Any) -> str:
    if isinstance(event, str):
        return f"data: {event}\n\n"
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event, ensure_ascii=False)}\n\n"


@dataclass
class Seen:
    path: str
    headers: dict[str, str]
    body: Any


class ScriptedServer:
    """``with ScriptedServer(replies) as server``: `server.url`, `server.seen`."""

    def __init__(self, replies: Iterable[Reply] | Callable[[Seen], Reply]) -> None:
        self.seen: list[Seen] = []
        self._answer = replies if callable(replies) else None
        self._replies = iter(()) if callable(replies) else iter(replies)
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers.get("content-length") or 0))
                try:
                    body = json.loads(raw)
                except ValueError:
                    body = raw
                seen = Seen(self.path, {k.lower(): v for k, v in self.headers.items()}, body)
                with outer._lock:
                    outer.seen.append(seen)
                    reply = outer._answer(seen) if outer._answer else next(outer._replies)
                self._send(reply)

            def _send(self, reply: Reply) -> None:
                time.sleep(reply.delay)
                raw = reply.encode()
                self.send_response(reply.status)
                kind = "application/json" if reply.events is None else "text/event-stream; charset=utf-8"
                self.send_header("content-type", kind)
                if reply.compress:
                    self.send_header("content-encoding", "gzip")
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                size = reply.cut or max(len(raw), 1)
                pieces = [raw[i : i + size] for i in range(0, len(raw), size)]
                try:
                    for number, piece in enumerate(pieces):
                        if number == reply.breaks_after:
                            self.close_connection = True
                            return
                        self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                        self.wfile.flush()
                        time.sleep(reply.pause)
                    self.wfile.write(b"0\r\n\r\n")
                except OSError:  # the client went away, which some tests mean it to
                    self.close_connection = True

            def log_message(self, format: str, *args: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def chat(content: str | None = "Done.", calls: list[tuple[str, str, str]] | None = None, **more: Any) -> dict[str, Any]:
    """The body of a chat completion; ``calls`` are (id, name, arguments as text)."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id, name, arguments in calls
        ]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "scripted-1",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
        **more,
    }


def chat_chunks(deltas: list[dict[str, Any]], finish: str = "stop") -> list[Any]:
    """The events of a streamed chat completion, from its deltas to [DONE]."""
    head = {"id": "chatcmpl-2", "object": "chat.completion.chunk", "created": 1, "model": "scripted-1"}
    chunks: list[Any] = [{**head, "choices": [{"index": 0, "delta": d, "finish_reason": None}]} for d in deltas]
    chunks.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    chunks.append({**head, "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}})
    return [*chunks, "[DONE]"]


def response(text: str) -> dict[str, Any]:
    """The body of a Responses API answer."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": content}
    usage = {
        "input_tokens": 4,
        "output_tokens": 3,
        "total_tokens": 7,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "scripted-1",
        "status": "completed",
        "output": [message],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage,
    }
