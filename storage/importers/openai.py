"""Chat-completions JSONL, one run a line.

A line is `{"messages", "tools"?, "outcome" or "reward", "task_id"?, "model"?, "session"?}`.
``outcome`` is true, false or null (unknown). Without it ``reward`` decides: 1 and more is success.
`storage.exporters.openai` writes the same.
"""

from __future__ import annotations

from typing import Any

from storage.importers import fields
from storage.importers.contract import Format, Raw, json_lines


def build(raw: Raw, _file: str) -> dict[str, Any]:
    """The fields of one line."""
    record = fields.mapping(raw.value, "the line")
    reward = fields.optional_number(record.get("reward"), "reward")
    outcome = fields.verdict(reward)
    if "outcome" in record:
        if record["outcome"] is not None and not isinstance(record["outcome"], bool):
            raise ValueError("outcome is not true, false or null")
        outcome["success"] = record["outcome"]
    return {
        "messages": fields.messages(record.get("messages"), "messages"),
        "tools": fields.tools(record.get("tools"), "tools"),
        "task": fields.label(record.get("task_id")),
        "model": fields.label(record.get("model")),
        "session": fields.label(record.get("session")),
        **outcome,
    }


FORMAT = Format("openai", "chat-completions messages, one run a line (JSONL)", json_lines, build)
