"""MINT results: JSONL of `{state, task}`. A call is Python in `<execute>`, its result the next `Observation:`.

The first message holds instructions, a worked example and the task. It is taken apart where the task's prompt
begins: what stands before is the same for all runs of a kind and becomes the system prompt. Several `<execute>`
blocks in one turn become several calls; the one observation that follows answers the first.
"""

from __future__ import annotations

import json
import re
from typing import Any

from storage.importers import fields
from storage.importers.contract import Format, Raw, json_lines
from storage.trajectory import Message, ToolCall

_EXECUTE = re.compile(r"<execute>(.*?)</execute>", re.DOTALL)
_OBSERVATION = "Observation:"
# The benchmark writes one file for a model and a set of tasks: `gpt-4-0613.alfworld.jsonl`.
_FILE = re.compile(r"(?P<model>.+)\.(?P<tasks>[A-Za-z0-9_-]+)\.jsonl")

_TOOL = {
    "type": "function",
    "function": {
        "name": "execute",
        "description": "Run Python code and see what it prints.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The code."}},
            "required": ["code"],
        },
    },
}


def build(raw: Raw, file: str) -> dict[str, Any]:
    """The fields of one line."""
    record = fields.mapping(raw.value, "the line")
    state = fields.mapping(record.get("state"), "state")
    task = fields.mapping(record.get("task"), "task")
    success = state.get("success")
    if not isinstance(success, bool):
        raise ValueError("state.success is neither true nor false")
    history = fields.items(state.get("history"), "state.history")
    if not history:
        raise ValueError("state.history is empty")
    turns: list[tuple[str, str]] = []
    for index, turn in enumerate(history):
        turn = fields.mapping(turn, f"state.history[{index}]")
        role = turn.get("role")
        if role not in ("system", "user", "assistant"):
            raise ValueError(f"state.history[{index}].role is {role!r}")
        turns.append((role, fields.text(turn.get("content"), f"state.history[{index}].content")))
    named = _FILE.fullmatch(file)
    name, key = fields.label(task.get("task_name")), fields.label(task.get("task_id"))
    return {
        "messages": tuple(_messages(turns, fields.label(task.get("prompt")) or "")),
        "tools": (_TOOL,),
        "task": f"{name}/{key}" if name and key else key or name,
        "model": named["model"] if named else None,
        "metadata": {
            "reference": task.get("reference"),
            **{k: state[k] for k in ("terminate_reason", "token_counter", "error") if state.get(k) is not None},
        },
        "success": success,
        "score": float(success),
    }


def _messages(turns: list[tuple[str, str]], prompt: str) -> list[Message]:
    messages: list[Message] = []
    waiting: str | None = None
    for index, (role, content) in enumerate(turns):
        if role == "assistant":
            codes = [code.strip() for code in _EXECUTE.findall(content)]
            calls = tuple(
                ToolCall.parse(f"call_{index}_{i}", "execute", json.dumps({"code": code}, ensure_ascii=False))
                for i, code in enumerate(codes)
            )
            waiting = calls[0].id if calls else None
            spoken = _EXECUTE.sub("", content).removeprefix("Assistant:").strip()
            messages.append(Message("assistant", spoken, calls))
        elif role == "user" and waiting is not None and content.startswith(_OBSERVATION):
            result = content.removeprefix(_OBSERVATION).strip()
            messages.append(Message("tool", result, tool_call_id=waiting, name="execute"))
            waiting = None
        elif index == 0 and role == "user" and prompt.strip() and (cut := content.rfind(prompt.strip())) > 0:
            messages.append(Message("system", content[:cut].strip()))
            messages.append(Message("user", content[cut:].strip()))
        else:
            messages.append(Message(role, content.strip()))  # type: ignore[arg-type]  # checked by the caller
    return messages


FORMAT = Format("mint", "results of MINT (JSONL)", json_lines, build)
