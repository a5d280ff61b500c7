"""InterCode results: a JSON object of records keyed by index, each with aligned lists of actions and observations.

A run passed when its best reward is 1. Task ids begin at 0 in every data set, so a task is named by both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from storage import codec
from storage.importers import fields
from storage.importers.contract import Format, Raw, Source, json_document
from storage.trajectory import Message, ToolCall

# The benchmark names a file after what made it: `ic_bash_multiturn_gpt-4_10_turns_fs_1.json`.
_FILE = re.compile(r"[a-z_]+?_multiturn_(?P<model>.+?)_\d+_turns.*")


def split(source: Source) -> Iterator[Raw]:
    """Records of the object, in the order they are written."""
    for key, value in fields.mapping(json_document(source), "the file").items():
        yield Raw(f"record {key}", value)


def build(raw: Raw, file: str) -> dict[str, Any]:
    """The fields of one record: each action is a call of the one tool, each observation its result."""
    record = fields.mapping(raw.value, "the record")
    query = fields.text(record.get("query"), "query")
    turns = fields.mapping(record.get("turn_history"), "turn_history")
    summary = fields.mapping(record.get("summary"), "summary")
    actions = fields.items(turns.get("actions"), "turn_history.actions")
    observations = fields.items(turns.get("observations"), "turn_history.observations")
    if len(observations) > len(actions):
        raise ValueError("turn_history has more observations than actions")
    tool = (fields.label(record.get("environment")) or "ic_bash").removeprefix("ic_")
    messages = [Message("user", query)]
    for index, action in enumerate(actions):
        command = fields.text(action, f"turn_history.actions[{index}]")
        arguments = json.dumps({"command": command}, ensure_ascii=False)
        messages.append(Message("assistant", "", (ToolCall.parse(f"call_{index}", tool, arguments),)))
        if index < len(observations):
            seen = observations[index]
            result = seen if isinstance(seen, str) else codec.dumps(seen)
            messages.append(Message("tool", result, tool_call_id=f"call_{index}", name=tool))
    named = _FILE.fullmatch(file)
    data, key = fields.label(record.get("dataset")), fields.label(record.get("task_id"))
    return {
        "messages": tuple(messages),
        "tools": (_tool(tool),),
        "task": f"{PurePosixPath(data).stem}/{key}" if data and key else key,
        "model": named["model"] if named else None,
        "metadata": {
            "rewards": turns.get("rewards"),
            "valid_action": turns.get("valid_action"),
            "turns_max": summary.get("turns_max"),
        },
        **fields.verdict(fields.number(summary.get("max_reward"), "summary.max_reward")),
    }


def _tool(name: str) -> dict[str, Any]:
    command = {"type": "string", "description": "The command."}
    parameters = {"type": "object", "properties": {"command": command}, "required": ["command"]}
    function = {"name": name, "description": f"Run one {name} command.", "parameters": parameters}
    return {"type": "function", "function": function}


FORMAT = Format("intercode", "results of InterCode (a JSON object of records)", split, build)
