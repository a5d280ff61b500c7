"""ATIF, the Agent Trajectory Interchange Format (Harbor's RFC 0001, v1.0 to v1.7): one JSON object a file.

The format has no outcome of its own; ``extra.outcome`` (true, false, null) or ``extra.reward`` of the root is
read where it is there. Steps marked as copied context repeat what the agent was given, and are left out. What the
format says of a step beside its message (metrics with token ids, reasoning, the model) is kept in the metadata.
`storage.exporters.atif` writes the same, and ``extra.trace_sdk`` for what the format has no field for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from storage import codec
from storage.exporters import atif as exporter
from storage.importers import fields
from storage.importers.contract import Format, Raw, Source, json_document
from storage.trajectory import Message, ToolCall

_DETAILS = ("metrics", "reasoning_content", "model_name", "reasoning_effort", "extra")
_ROLES = {"system": "system", "user": "user", "agent": "assistant"}


def split(source: Source) -> Iterator[Raw]:
    """The file is the record."""
    document = fields.mapping(json_document(source), "the file")
    if not str(document.get("schema_version", "")).startswith("ATIF-"):
        raise ValueError("schema_version does not begin with ATIF-")
    yield Raw("the file", document)


def build(raw: Raw, _file: str) -> dict[str, Any]:
    """The fields of one trajectory."""
    record = fields.mapping(raw.value, "the file")
    agent = fields.mapping(record.get("agent"), "agent")
    extra = fields.mapping(record.get("extra") or {}, "extra")
    ours = extra["trace_sdk"] if isinstance(extra.get("trace_sdk"), dict) else {}
    messages: list[Message] = []
    details: dict[str, dict[str, Any]] = {}
    steps = fields.items(record.get("steps"), "steps")
    for index, step in enumerate(steps):
        step = fields.mapping(step, f"steps[{index}]")
        if step.get("is_copied_context") is not True:
            if known := {k: step[k] for k in _DETAILS if step.get(k) is not None}:
                details[str(len(messages))] = known
            messages.extend(_step(step, f"steps[{index}]"))
    if not messages:
        raise ValueError("steps is empty")
    outcome = fields.verdict(fields.optional_number(extra.get("reward"), "extra.reward"))
    # An outcome that is null is unknown, whatever the reward.
    if "outcome" in extra and (extra["outcome"] is None or isinstance(extra["outcome"], bool)):
        outcome["success"] = extra["outcome"]
    first = steps[0] if isinstance(steps[0], dict) else {}
    return {
        "messages": tuple(messages),
        "agent": fields.label(agent.get("name")),
        # The format wants one; that is what is written where there is none.
        "version": version if (version := fields.label(agent.get("version"))) != "unknown" else None,
        "model": fields.label(agent.get("model_name")),
        "tools": fields.tools(agent.get("tool_definitions"), "agent.tool_definitions"),
        "session": fields.label(ours["session"] if "session" in ours else record.get("session_id")),
        "task": fields.label(extra.get("task_id")),
        "started_at": fields.epoch(first.get("timestamp")),
        "metadata": {
            **(ours["metadata"] if isinstance(ours.get("metadata"), dict) else {}),
            **{k: record[k] for k in exporter.OWN if record.get(k) is not None},
            **({exporter.STEPS: details} if details else {}),
        },
        **_own(ours),
        **outcome,
    }


def _own(ours: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a run that the format has none for, as our exporter writes them."""
    found = {k: ours[k] for k in ("user", "policy") if isinstance(ours.get(k), str)}
    if isinstance(ours.get("tags"), list):
        found["tags"] = tuple(tag for tag in ours["tags"] if isinstance(tag, str))
    if ours.get("status") in ("running", "completed", "raised", "aborted"):
        found["status"] = ours["status"]
    if isinstance(ours.get("error"), dict):
        found["error"] = ours["error"]
    return {**found, "trainable": ours.get("trainable") is not False}


def _step(step: Mapping[str, Any], name: str) -> Iterator[Message]:
    role = _ROLES.get(str(step.get("source")))
    if role is None:
        raise ValueError(f"{name}.source is {step.get('source')!r}, not system, user or agent")
    calls: list[ToolCall] = []
    for index, call in enumerate(fields.items(step.get("tool_calls") or [], f"{name}.tool_calls")):
        call = fields.mapping(call, f"{name}.tool_calls[{index}]")
        called = fields.text(call.get("function_name"), f"{name}.tool_calls[{index}].function_name")
        arguments = call.get("arguments")
        written = arguments if isinstance(arguments, str) else codec.dumps(arguments if arguments is not None else {})
        calls.append(ToolCall.parse(fields.label(call.get("tool_call_id")) or "", called, written))
    said = fields.message({"role": role, "content": step.get("message")}, f"{name}.message")
    yield Message(said.role, said.content, tuple(calls), parts=said.parts)
    observation = step.get("observation")
    if observation is None:
        return
    results = fields.items(
        fields.mapping(observation, f"{name}.observation").get("results"), f"{name}.observation.results"
    )
    for index, result in enumerate(results):
        result = fields.mapping(result, f"{name}.observation.results[{index}]")
        seen = fields.message(
            {"role": "tool", "content": result.get("content")}, f"{name}.observation.results[{index}]"
        )
        answers = fields.label(result.get("source_call_id"))
        if answers is None and len(calls) == 1:
            answers = calls[0].id
        # What the world shows without having been asked is told to the agent as a user would.
        yield Message("tool" if calls else "user", seen.content, (), answers if calls else None, parts=seen.parts)


FORMAT = Format("atif", "the Agent Trajectory Interchange Format (one JSON object)", split, build)
