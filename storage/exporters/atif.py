"""ATIF (Harbor's RFC 0001, v1.5): one JSON object a run, what `storage.importers.atif` reads.

The format has no outcome of its own: it stands in ``extra.outcome`` and ``extra.reward``. What else it has no field
for (user, tags, policy, how a run ended, …) stands in ``extra.trace_sdk``. Where the model calls are known, each
agent step carries their ``metrics``: token counts, and the token ids and log-probabilities that a server returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from storage import codec
from storage.trajectory import Message, Trajectory, message_to_dict

_SOURCES = {"system": "system", "user": "user", "assistant": "agent"}
STEPS = "atif_steps"
"""Under this name a run's metadata holds what a file said of its steps, by the position of their message."""
OWN = ("final_metrics", "notes", "trajectory_id")
"""Fields of the format that a run keeps in its metadata."""


def document(trajectory: Trajectory, calls: Iterable[Mapping[str, Any]] = ()) -> str:
    """One run as the text of one file. Results of tools stand with the step that called them.

    ``calls`` are the run's model calls, as `storage.overview.whole` gives them.
    """
    details = _known_steps(trajectory)
    for position, metrics in _metrics(trajectory, calls):
        details[position] = {**details.get(position, {}), "metrics": metrics}
    steps: list[dict[str, Any]] = []
    for position, message in enumerate(trajectory.messages):
        if message.role == "tool" and steps and steps[-1]["source"] == "agent":
            results = steps[-1].setdefault("observation", {"results": []})["results"]
            results.append({**_given("source_call_id", message.tool_call_id), "content": _content(message)})
            continue
        # A result that answers no step is something the agent was told.
        step = _step(len(steps) + 1, message, _SOURCES.get(message.role, "user"))
        steps.append({**step, **details.get(position, {})})
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
        "trace_sdk": _ours(trajectory),
    }
    return codec.dumps(
        {
            "schema_version": "ATIF-v1.5",
            "session_id": trajectory.session or trajectory.id,
            "agent": agent,
            "steps": steps,
            **{k: trajectory.metadata[k] for k in OWN if k in trajectory.metadata},
            "extra": extra,
        }
    )


def _ours(t: Trajectory) -> dict[str, Any]:
    metadata = {k: v for k, v in t.metadata.items() if k not in (*OWN, STEPS)}
    return {
        "id": t.id,
        "session": t.session,
        "status": t.status,
        **_given("user", t.user),
        **_given("policy", t.policy),
        **_given("tags", list(t.tags) or None),
        **_given("trainable", None if t.trainable else False),
        **_given("error", dict(t.error) if t.error is not None else None),
        **_given("metadata", metadata or None),
    }


def _known_steps(t: Trajectory) -> dict[int, dict[str, Any]]:
    known = t.metadata.get(STEPS)
    found: dict[int, dict[str, Any]] = {}
    for position, details in known.items() if isinstance(known, dict) else ():
        if str(position).isdecimal() and isinstance(details, dict):
            found[int(position)] = details
    return found


def _metrics(t: Trajectory, calls: Iterable[Mapping[str, Any]]) -> Iterable[tuple[int, dict[str, Any]]]:
    """What the calls that made the run's messages cost, by the position of their answer."""
    said = [message_to_dict(m) for m in t.messages]
    for call in calls:
        request, response = call.get("request") or {}, call.get("response") or {}
        asked = request.get("messages") or []
        position = len(asked)
        # Another thread's answer is at the same place of other messages.
        if position >= len(said) or t.messages[position].role != "assistant" or asked != said[:position]:
            continue
        yield (
            position,
            {
                **_given("prompt_tokens", call.get("prompt_tokens")),
                **_given("completion_tokens", call.get("completion_tokens")),
                **_given("prompt_token_ids", response.get("prompt_token_ids")),
                **_given("completion_token_ids", response.get("token_ids")),
                **_given("logprobs", response.get("logprobs")),
            },
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
