"""OTLP as JSON: one `ExportTraceServiceRequest` a line, what `storage.importers.otlp` and collectors read.

A run is a trace of two spans after the GenAI semantic conventions (1.37 and later): ``invoke_agent``, and the last
model call of the run with all its messages as attributes. Spans of single steps are not made up: a run doesn't hold
when they began and ended. The conventions have no names for a task, a verdict that a person gave, tags and the like;
these stand in attributes of our own, `trace_sdk.…`, the verdict also as the event ``gen_ai.evaluation.result``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from storage import codec
from storage.importers.otlp.parts import OURS
from storage.trajectory import Message, ToolCall, Trajectory

_ERROR = 2


def line(trajectory: Trajectory) -> str:
    """One run as one line, without the line's end."""
    return codec.dumps(document(trajectory))


def document(trajectory: Trajectory) -> dict[str, Any]:
    """One run as the body of one request. Ids follow from the run's id, so that the same run is the same trace."""
    digest = hashlib.sha256(trajectory.id.encode("utf-8", "surrogatepass")).hexdigest()
    trace, root, call = digest[:32], digest[32:48], digest[48:64]
    at = {
        "startTimeUnixNano": _nanoseconds(trajectory.started_at),
        "endTimeUnixNano": _nanoseconds(trajectory.started_at),
    }
    spans = [
        {
            "traceId": trace,
            "spanId": root,
            "name": f"invoke_agent {trajectory.agent}",
            "kind": 1,
            **at,
            "attributes": _attributes(_about_run(trajectory)),
            "events": _events(trajectory, at["startTimeUnixNano"]),
            "status": _status(trajectory),
        }
    ]
    if trajectory.messages or trajectory.tools:
        name = f"chat {trajectory.model}" if trajectory.model else "chat"
        about = _attributes(_about_call(trajectory))
        spans.append(
            {"traceId": trace, "spanId": call, "parentSpanId": root, "name": name, "kind": 3, **at, "attributes": about}
        )
    resource = {"attributes": _attributes({"service.name": trajectory.agent})}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": "trace-sdk"}, "spans": spans}]}]}


def _about_run(t: Trajectory) -> dict[str, Any]:
    ours = {
        "id": t.id,
        "task": t.task,
        "policy": t.policy,
        "status": t.status,
        "outcome": t.success,
        "score": t.score,
        "tags": list(t.tags) or None,
        "trainable": None if t.trainable else False,
        "error": codec.dumps(t.error) if t.error is not None else None,
        "metadata": codec.dumps(t.metadata) if t.metadata else None,
    }
    return {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": t.agent,
        "gen_ai.agent.version": t.version,
        "gen_ai.conversation.id": t.session,
        "user.id": t.user,
        "error.type": str(t.error.get("type")) if t.error else None,
        **{f"{OURS}{name}": value for name, value in ours.items()},
    }


def _about_call(t: Trajectory) -> dict[str, Any]:
    answered = bool(t.messages) and t.messages[-1].role == "assistant"
    asked = t.messages[:-1] if answered else t.messages
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": t.model,
        "gen_ai.input.messages": codec.dumps([_message(m) for m in asked]),
        "gen_ai.output.messages": codec.dumps([_message(t.messages[-1])]) if answered else None,
        "gen_ai.tool.definitions": codec.dumps([_tool(tool) for tool in t.tools]) if t.tools else None,
    }


def _tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """The flat form of the conventions, where it says the same."""
    function = tool.get("function")
    if set(tool) != {"type", "function"} or tool["type"] != "function" or not isinstance(function, dict):
        return tool
    if not isinstance(function.get("name"), str) or {"type", "input_schema", "inputSchema"} & set(function):
        return tool
    return tool if isinstance(function.get("parameters"), str) else {"type": "function", **function}


def _message(message: Message) -> dict[str, Any]:
    """A message with its parts, after the conventions' JSON schema; parts of other kinds stay what they are."""
    if message.role == "tool":
        response: Any = [dict(p) for p in message.parts] if message.parts else message.content
        parts: list[dict[str, Any]] = [{"type": "tool_call_response", "id": message.tool_call_id, "response": response}]
    elif message.parts:
        parts = [_part(p) for p in message.parts]
    else:
        parts = [{"type": "text", "content": message.content}] if message.content else []
    parts += [_call(call) for call in message.tool_calls]
    found: dict[str, Any] = {"role": message.role, "parts": parts}
    if message.name is not None:
        found["name"] = message.name
        if message.role == "tool":
            parts[0]["name"] = message.name
    return found


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    if part.get("type") == "text" and "content" not in part:
        return {**{k: v for k, v in part.items() if k != "text"}, "content": part.get("text")}
    return dict(part)


def _call(call: ToolCall) -> dict[str, Any]:
    # An object where that loses nothing of the text that was written.
    exact = call.arguments is not None and codec.dumps(call.arguments) == call.raw_arguments
    return {
        "type": "tool_call",
        "id": call.id,
        "name": call.name,
        "arguments": dict(call.arguments or {}) if exact else call.raw_arguments,
    }


def _events(t: Trajectory, at: str) -> list[dict[str, Any]]:
    if t.success is None and t.score is None:
        return []
    verdict = {
        "gen_ai.evaluation.name": "outcome",
        "gen_ai.evaluation.score.value": t.score,
        "gen_ai.evaluation.score.label": {True: "pass", False: "fail", None: None}[t.success],
    }
    return [{"name": "gen_ai.evaluation.result", "timeUnixNano": at, "attributes": _attributes(verdict)}]


def _status(t: Trajectory) -> dict[str, Any]:
    if t.status != "raised":
        return {}
    message = str((t.error or {}).get("message") or "")
    return {"code": _ERROR, **({"message": message} if message else {})}


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    given = {k: v for k, v in values.items() if v is not None and not (isinstance(v, float) and not math.isfinite(v))}
    return [{"key": key, "value": _value(value)} for key, value in given.items()]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(v) for v in value]}}
    return {"stringValue": str(value)}


def _nanoseconds(seconds: float) -> str:
    # Exact: a product of floats would be a hundred nanoseconds off, and another time when it is read again.
    return str(max(0, round(Fraction(seconds) * 10**9)))
