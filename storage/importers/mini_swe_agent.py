"""mini-SWE-agent trajectories: one JSON object a file, `{info, messages, trajectory_format}`.

Up to 1.x an action is a ```bash block in the reply and its result the next user message; from 2.0 on models call
the tool `bash`, through chat completions or the responses API. All become calls of a tool. Whether the patch was
right isn't in the file: the outcome is unknown unless a harness added ``resolved``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from storage.importers import fields
from storage.importers.contract import Format, Raw, Source, json_document
from storage.trajectory import Message, ToolCall

_BLOCK = re.compile(r"```(?:bash|mswea_bash_command)\s*\n(.*?)\n?```", re.DOTALL)
# Endings that are the agent's own; any other names an exception.
_ORDINARY = ("Submitted", "LimitsExceeded")

TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command in a shell.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The command."}},
            "required": ["command"],
        },
    },
}


def split(source: Source) -> Iterator[Raw]:
    """The file is the record."""
    yield Raw("the file", fields.mapping(json_document(source), "the file"))


def build(raw: Raw, file: str) -> dict[str, Any]:
    """The fields of one run."""
    record = fields.mapping(raw.value, "the file")
    info = fields.mapping(record.get("info"), "info")
    turns = fields.items(record.get("messages"), "messages")
    messages: list[Message] = []
    for index, turn in enumerate(turns):
        turn = fields.mapping(turn, f"messages[{index}]")
        # The last turn of 2.x repeats how it ended.
        if turn.get("role") != "exit":
            messages.extend(_read(turn, index))
    if not messages:
        raise ValueError("messages is empty")
    ending = fields.label(info.get("exit_status"))
    raised = ending is not None and ending not in _ORDINARY
    resolved = info.get("resolved", record.get("resolved"))
    return {
        "messages": tuple(_with_text_actions(messages)),
        "tools": (TOOL,),
        "task": fields.label(record.get("instance_id")) or file.split(".traj")[0],
        "model": _model(info),
        "version": fields.label(info.get("mini_version")),
        "status": "raised" if raised else "completed",
        "error": {"type": ending, "message": "", "boundary": "unknown"} if raised else None,
        "success": resolved if isinstance(resolved, bool) else None,
        "metadata": {k: info[k] for k in ("exit_status", "submission", "model_stats") if info.get(k) is not None},
    }


def _read(turn: Mapping[str, Any], index: int) -> list[Message]:
    name = f"messages[{index}]"
    if turn.get("type") == "function_call_output":
        output = turn.get("output")
        return [Message("tool", output if isinstance(output, str) else json.dumps(output), (), _id(turn))]
    if turn.get("object") != "response":
        return [fields.message(turn, name)]
    texts: list[str] = []
    calls: list[ToolCall] = []
    for item in fields.items(turn.get("output"), f"{name}.output"):
        item = fields.mapping(item, f"{name}.output[]")
        if item.get("type") == "function_call":
            called = fields.text(item.get("name"), f"{name}.output[].name")
            arguments = item.get("arguments")
            calls.append(
                ToolCall.parse(_id(item), called, arguments if isinstance(arguments, str) else json.dumps(arguments))
            )
        elif item.get("type") == "message" and isinstance(item.get("content"), list):
            parts = [p for p in item["content"] if isinstance(p, dict)]
            texts += [p["text"] for p in parts if isinstance(p.get("text"), str)]
    return [Message("assistant", "".join(texts), tuple(calls))]


def _with_text_actions(messages: list[Message]) -> list[Message]:
    """Turn the one block of a reply, and the user message that answers it, into a call and its result."""
    found: list[Message] = []
    waiting: str | None = None
    for index, message in enumerate(messages):
        blocks = _BLOCK.findall(message.content) if message.role == "assistant" and not message.tool_calls else []
        if len(blocks) == 1:
            waiting = f"call_{index}"
            arguments = json.dumps({"command": blocks[0]}, ensure_ascii=False)
            spoken = _BLOCK.sub("", message.content).strip()
            found.append(Message("assistant", spoken, (ToolCall.parse(waiting, "bash", arguments),)))
        elif waiting is not None and message.role == "user":
            found.append(Message("tool", message.content, (), waiting, "bash"))
            waiting = None
        else:
            waiting = None
            found.append(message)
    return found


def _id(item: Mapping[str, Any]) -> str:
    return fields.label(item.get("call_id")) or fields.label(item.get("id")) or ""


def _model(info: Mapping[str, Any]) -> str | None:
    config = info.get("config")
    model = config.get("model") if isinstance(config, dict) else None
    return fields.label(model.get("model_name")) if isinstance(model, dict) else None


FORMAT = Format("mini-swe-agent", "a trajectory of mini-SWE-agent (.traj.json)", split, build)
