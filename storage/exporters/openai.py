"""Chat-completions JSONL, one run a line: what `storage.importers.openai` reads."""

from __future__ import annotations

from typing import Any

from storage import codec
from storage.trajectory import Trajectory, message_to_dict


def line(trajectory: Trajectory) -> str:
    """One run as one line, without the line's end. The outcome is written even if it is unknown (null)."""
    record: dict[str, Any] = {"messages": [message_to_dict(m) for m in trajectory.messages]}
    if trajectory.tools:
        record["tools"] = list(trajectory.tools)
    record["outcome"] = trajectory.success
    optional = {
        "reward": trajectory.score,
        "task_id": trajectory.task,
        "model": trajectory.model,
        "session": trajectory.session,
    }
    record.update((key, value) for key, value in optional.items() if value is not None)
    return codec.dumps(record)
