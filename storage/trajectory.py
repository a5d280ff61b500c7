"""The trajectory as every room reads it: one run of an agent, from its first message to its outcome.

Importers, ingest and our own episodes *write* trajectories; triage, detectors, synthesizers and exporters
*read* them. They are values (frozen, no session behind them), so pure functions can take them.
Messages keep the chat-completions shape, because that is what all sources can be turned into:
a tool call belongs to an assistant message, its result is a later message of role ``tool``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]
Status = Literal["running", "completed", "raised", "aborted"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call the model asked for. ``arguments`` is None when ``raw_arguments`` is not a JSON object."""

    id: str
    name: str
    raw_arguments: str
    arguments: Mapping[str, Any] | None

    @classmethod
    def parse(cls, id: str, name: str, raw_arguments: str) -> ToolCall:
        """Arguments are kept as they came and parsed beside; nothing is repaired."""
        try:
            value = json.loads(raw_arguments)
        except (ValueError, TypeError, RecursionError):
            value = None
        return cls(id, name, raw_arguments, value if isinstance(value, dict) else None)


@dataclass(frozen=True, slots=True)
class Message:
    """One message. ``content`` is text; parts that are not text are kept in ``parts`` as they came."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    parts: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """A tool call with its result. ``position`` is the index of the assistant message in ``messages``.

    ``result`` is None when the run ended before the tool answered.
    """

    position: int
    call: ToolCall
    result: str | None


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One run of the agent. ``success`` is None while the outcome is unknown: unknown is never failure."""

    id: str
    agent: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    task: str | None = None
    version: str | None = None
    model: str | None = None
    policy: str | None = None
    session: str | None = None
    user: str | None = None
    tags: tuple[str, ...] = ()
    status: Status = "completed"
    success: bool | None = None
    score: float | None = None
    reference: bool = False
    trainable: bool = True
    error: Mapping[str, Any] | None = None
    started_at: float = 0.0
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def steps(self) -> Iterator[Step]:
        """Tool calls in order, each with its result (paired by id, else by order within the turn)."""
        return iter_steps(self.messages)

    def tool_schema(self, name: str) -> Mapping[str, Any] | None:
        """The JSON schema of a tool's parameters, or None when the tool list does not have it."""
        for tool in self.tools:
            function = tool.get("function", tool)
            if function.get("name") == name:
                return function.get("parameters")
        return None


def iter_steps(messages: Sequence[Message]) -> Iterator[Step]:
    """Pair each tool call with its result. Tool messages without a usable id answer calls in order."""
    for position, message in enumerate(messages):
        if not message.tool_calls:
            continue
        results: list[Message] = []
        for later in messages[position + 1 :]:
            if later.role != "tool":
                break
            results.append(later)
        by_id = {m.tool_call_id: m for m in results if m.tool_call_id}
        unused = [m for m in results if m.tool_call_id not in {c.id for c in message.tool_calls}]
        for call in message.tool_calls:
            found = by_id.get(call.id)
            if found is None and unused:
                found = unused.pop(0)
            yield Step(position, call, found.content if found is not None else None)


def message_from_dict(raw: Mapping[str, Any]) -> Message:
    """A chat-completions message as a value. Raises ValueError that names the field when it cannot be one."""
    role = raw.get("role")
    role = {"developer": "system", "function": "tool"}.get(str(role), role)
    if role not in ("system", "user", "assistant", "tool"):
        raise ValueError(f"message role {raw.get('role')!r} is not system, user, assistant or tool")
    content = raw.get("content")
    parts: tuple[Mapping[str, Any], ...] = ()
    if content is None:
        text = ""
    elif isinstance(content, str):
        text = content
    elif isinstance(content, list):
        parts = tuple(p if isinstance(p, dict) else {"type": "text", "text": str(p)} for p in content)
        text = "".join(str(p.get("text", "")) for p in parts if p.get("type") in ("text", "input_text", "output_text"))
    else:
        raise ValueError(f"message content is a {type(content).__name__}, not text or a list of parts")
    calls: list[ToolCall] = []
    raw_calls = raw.get("tool_calls") or []
    if not isinstance(raw_calls, list):
        raise ValueError("message tool_calls is not a list")
    for index, raw_call in enumerate(raw_calls):
        function = raw_call.get("function") if isinstance(raw_call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ValueError(f"tool_calls[{index}] has no function name")
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments if arguments is not None else {}, ensure_ascii=False)
        calls.append(ToolCall.parse(str(raw_call.get("id") or ""), function["name"], arguments))
    tool_call_id = raw.get("tool_call_id")
    name = raw.get("name")
    return Message(
        role=role,  # type: ignore[arg-type]  # narrowed by the membership test above
        content=text,
        tool_calls=tuple(calls),
        tool_call_id=str(tool_call_id) if tool_call_id is not None else None,
        name=str(name) if name is not None else None,
        parts=parts,
    )


def message_to_dict(message: Message) -> dict[str, Any]:
    """The chat-completions form, ready for an OpenAI-compatible server or a chat template."""
    raw: dict[str, Any] = {"role": message.role, "content": list(message.parts) if message.parts else message.content}
    if message.tool_calls:
        raw["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.raw_arguments}}
            for c in message.tool_calls
        ]
    if message.tool_call_id is not None:
        raw["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        raw["name"] = message.name
    return raw
