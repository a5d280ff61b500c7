"""ATIF (Harbor's RFC 0001, v1.5): one JSON object a run, what `storage.importers.atif` reads.

The format has no outcome of its own: it stands in ``extra.outcome`` and ``extra.reward``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from storage import codec
from storage.trajectory import Message, Trajectory, message_to_dict

_SOURCES = {"system": "system", "user": "user", "assistant": "agent"}


def document(trajectory: Trajectory) -> str:
    """One run as the text of one file. Results of tools stand with the step that called them."""
    steps: list[dict[str, Any]] = []
    for message in trajectory.messages:
        if message.role == "tool" and steps and steps[-1]["source"] == "agent":
            results = steps[-1].setdefault("observation", {"results": []})["results"]
            results.append({**_given("source_call_id", message.tool_call_id), "content": _content(message)})
            continue
        # A result that answers no step is something the agent was told.
        steps.append(_step(len(steps) + 1, message, _SOURCES.get(message.role, "user")))
    if steps and trajectory.started_at:
        steps[0]["timestamp"] = datetime.fromtimestamp(trajectory.started_at, UTC).isoformat()
    agent = {
        "name": trajectory.agent,
        "version": trajectory.version or "unknown",
        **_given("model_name", trajectory.model),
        **_given("tool_definitions", list(trajectory.tools) or None),
    }
    extra = {
        "outcome": trajectory.success,
        **_given("reward", trajectory.score),
        **_given("task_id", trajectory.task),
    }
    return codec.dumps(
        {
            "schema_version": "ATIF-v1.5",
            "session_id": trajectory.session or trajectory.id,
            "agent": agent,
            "steps": steps,
            "extra": extra,
        }
    )


def _step(number: int, message: Message, source: str) -> dict[str, Any]:
    step: dict[str, Any] = {"step_id": number, "source": source, "message": _content(message)}
    if message.tool_calls:
        step["tool_calls"] = [
            {
                "tool_call_id": call.id,
                "function_name": call.name,
                # Arguments that are no object stay the text that was written.
                "arguments": dict(call.arguments) if call.arguments is not None else call.raw_arguments,
            }
            for call in message.tool_calls
        ]
    return step


def _content(message: Message) -> Any:
    return message_to_dict(message).get("content") or ""


def _given(name: str, value: Any) -> dict[str, Any]:
    return {} if value is None else {name: value}
