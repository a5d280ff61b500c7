"""tau-bench results: a JSON list of `{task_id, trial, reward, traj, info}`; `traj` holds OpenAI chat messages.

``trial`` is kept but never part of a run's identity: some published files repeat the task's index there. Only
the first tool call of a turn was executed, so the others have no result.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from storage.importers import fields
from storage.importers.contract import Format, Raw, Source, json_document

# tau-bench gives every agent this tool and leaves it out of the domains' tool lists.
_THINK = {
    "type": "function",
    "function": {
        "name": "think",
        "description": "Write down a thought. Nothing is looked up or changed; the thought is only remembered.",
        "parameters": {
            "type": "object",
            "properties": {"thought": {"type": "string", "description": "The thought."}},
            "required": ["thought"],
        },
    },
}


def split(source: Source) -> Iterator[Raw]:
    """Records of the list."""
    for index, value in enumerate(fields.items(json_document(source), "the file")):
        yield Raw(f"record {index}", value)


def build(raw: Raw, _file: str) -> dict[str, Any]:
    """The fields of one record. A run whose agent crashed has no messages and says so in ``info``."""
    record = fields.mapping(raw.value, "the record")
    info = record.get("info")
    crash = info.get("error") if isinstance(info, dict) else None
    found: dict[str, Any] = {
        "task": fields.label(record.get("task_id")),
        "metadata": {k: record[k] for k in ("trial", "info") if record.get(k) is not None},
        **fields.verdict(fields.number(record.get("reward"), "reward")),
    }
    if crash is not None:
        found["status"] = "raised"
        found["error"] = {"type": "Error", "message": str(crash), "boundary": "unknown"}
    if crash is not None and not record.get("traj"):
        found["messages"] = ()
    else:
        found["messages"] = fields.messages(record.get("traj"), "traj")
    return found


FORMAT = Format("tau-bench", "results of tau-bench (a JSON list)", split, build, extra_tools=(_THINK,))
