"""Writes spool segments as a recorder does: whole lines, appended, the file locked while the writer lives."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import Any

from storage.ids import new_id


class Writer:
    """A living writer of one segment, until `die`."""

    def __init__(self, home: Path, name: str | None = None) -> None:
        self.path = home / "spool" / f"{name or new_id()}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("ab", buffering=0)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def write(self, *events: dict[str, Any]) -> None:
        for event in events:
            self.raw(json.dumps(event).encode() + b"\n")

    def raw(self, data: bytes) -> None:
        self._file.write(data)

    def die(self) -> None:
        self._file.close()


def start(id: str, ts: float = 1000.0, **fields: Any) -> dict[str, Any]:
    return {
        "v": 1,
        "type": "start",
        "id": id,
        "ts": ts,
        "agent": "desk",
        "root": id,
        "parent": None,
        "pid": 7,
        **fields,
    }


def call(
    id: str,
    messages: list[dict[str, Any]],
    answer: dict[str, Any] | None,
    *,
    seq: int = 0,
    ts: float = 1001.0,
    tools: list[dict[str, Any]] | None = None,
    policy: str | None = None,
    **fields: Any,
) -> dict[str, Any]:
    response = None
    if answer is not None:
        response = {"message": answer, "finish_reason": "stop", "usage": {"prompt_tokens": 10, "completion_tokens": 2}}
        if policy:
            response["policy"] = policy
    return {
        "v": 1,
        "type": "call",
        "id": id,
        "ts": ts,
        "call_id": new_id(),
        "seq": seq,
        "attempt": 1,
        "started": ts - 0.5,
        "latency": 0.5,
        "provider": "openai.chat",
        "url": "http://127.0.0.1:1/v1/chat/completions",
        "model": "small",
        "thread": "t1",
        "request": {"messages": messages, "tools": tools or [], "params": {"temperature": 0}},
        "response": response,
        "error": None,
        **fields,
    }


def tool(id: str, name: str, result: Any = None, error: Any = None, ts: float = 1002.0) -> dict[str, Any]:
    return {"v": 1, "type": "tool", "id": id, "ts": ts, "name": name, "arguments": {}, "result": result, "error": error}


def outcome(id: str, success: bool | None, ts: float = 1004.0, source: str = "agent", **fields: Any) -> dict[str, Any]:
    return {"v": 1, "type": "outcome", "id": id, "ts": ts, "success": success, "source": source, **fields}


def end(id: str, status: str = "completed", ts: float = 1003.0, **fields: Any) -> dict[str, Any]:
    return {"v": 1, "type": "end", "id": id, "ts": ts, "status": status, "error": None, "output": "done", **fields}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def says(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def asks(name: str, call_id: str = "c1", arguments: str = "{}") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def result(text: str, call_id: str = "c1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}
