"""Chat messages in the forms that tracing tools keep them in, as the one form of `storage.trajectory`.

Read are, wherever they stand: chat-completions messages (OpenAI), items of the responses API, content blocks of
Anthropic's and Bedrock's messages, ``parts`` of OpenTelemetry's GenAI conventions, and LangChain's messages
(`{"type": "human", "content"}`, `{"type", "data"}`, and the serialized `{"lc": 1, "id", "kwargs"}`).
Looked up in the JSON schemas of open-telemetry/semantic-conventions (docs/gen-ai), in LangChain's and LangSmith's
documentation of traces of models, and in what langfuse/langfuse tests its own reading of spans with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from storage import codec
from storage.importers import fields
from storage.trajectory import Message, ToolCall, message_from_dict

_ROLES = {
    "human": "user",
    "humanmessage": "user",
    "humanmessagechunk": "user",
    "ai": "assistant",
    "aimessage": "assistant",
    "aimessagechunk": "assistant",
    "model": "assistant",
    "systemmessage": "system",
    "systemmessagechunk": "system",
    "developer": "system",
    "toolmessage": "tool",
    "toolmessagechunk": "tool",
    "function": "tool",
    "functionmessage": "tool",
}
_KNOWN = {"system", "user", "assistant", "tool", *_ROLES}
_TEXTS = ("text", "input_text", "output_text")


def conversation(value: object, name: str, role: str = "user") -> list[Message]:
    """The messages that an input or an output of a model holds, in whatever wrapping.

    What is no message (a prompt's text, a form of the team's own) becomes one message of ``role`` with its text.
    Raises ValueError that names the field if something is a message, and broken.
    """
    if value is None:
        return []
    if isinstance(value, str):
        parsed = _embedded(value)
        # JSON that is no message is what was said, to the letter.
        return conversation(parsed, name, role) if _holds_messages(parsed) else [_said(role, value)]
    if isinstance(value, Mapping):
        return _unwrapped(value, name, role)
    if isinstance(value, list):
        # LangChain gives a list of prompts, each a list of messages; a traced call has one.
        nested = bool(value) and all(isinstance(item, list) for item in value)
        listed: list[Any] = list(value[0] if nested else value)
        if listed and all(_is_message(item) for item in listed):
            return [m for i, item in enumerate(listed) for m in message(item, f"{name}[{i}]")]
        if not listed:
            return []
        if any(isinstance(item, Mapping) and "role" in item for item in listed):
            # Most of it are messages, so that the rest is not a form of its own: it is broken, and said so.
            return [m for i, item in enumerate(listed) for m in message(item, f"{name}[{i}]")]
    return [_said(role, codec.dumps(value))]


def message(value: object, name: str) -> list[Message]:
    """One message; several where it holds results of several tools. Raises ValueError that names the field."""
    raw = _flat(fields.mapping(value, name))
    if raw.get("type") == "function_call":
        return [Message("assistant", "", (_call(raw, name),))]
    if raw.get("type") == "function_call_output":
        return [_result(raw.get("call_id"), raw.get("output"), None)]
    role = _role(raw)
    blocks = raw.get("parts") if isinstance(raw.get("parts"), list) else raw.get("content")
    if isinstance(blocks, Mapping):
        blocks = [blocks]
    calls = [*_tool_calls(raw, name)]
    if not isinstance(blocks, list):
        head = _head(raw, role, name)
        return [
            Message(head.role, fields.text(blocks or "", f"{name}.content"), tuple(calls), head.tool_call_id, head.name)
        ]
    results: list[Message] = []
    kept: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        _block(block, f"{name}[{index}]", calls, results, kept)
    if results and not kept and not calls:
        return results
    text = "".join(str(b["text"]) for b in kept if b.get("type") in _TEXTS)
    plain_text = len(kept) < 2 and all(b.get("type") in _TEXTS and set(b) == {"type", "text"} for b in kept)
    head = _head(raw, role, name)
    said = Message(head.role, text, tuple(calls), head.tool_call_id, head.name, () if plain_text else tuple(kept))
    return [*results, said]


def tools(value: object, name: str) -> tuple[Mapping[str, Any], ...]:
    """Tool schemas in chat-completions form, from that form, the flat one of GenAI and Anthropic's."""
    if isinstance(value, str):
        value = _embedded(value)
    if value is None:
        return ()
    return tuple(tool(item, f"{name}[{i}]") for i, item in enumerate(fields.items(value, name)))


def tool(value: object, name: str) -> Mapping[str, Any]:
    """One tool schema in chat-completions form."""
    if isinstance(value, str):
        value = _embedded(value)
    raw = fields.mapping(value, name)
    if isinstance(raw.get("function"), dict) or not isinstance(raw.get("name"), str):
        return raw
    function = {k: v for k, v in raw.items() if k not in ("type", "input_schema", "inputSchema")}
    schema = raw.get("input_schema", raw.get("inputSchema"))
    if schema is not None:
        function["parameters"] = _embedded(schema) if isinstance(schema, str) else schema
    if isinstance(function.get("parameters"), str):
        function["parameters"] = _embedded(function["parameters"])
    return {"type": "function", "function": function}


def as_text(value: object) -> str:
    """A tool's result, or a model's input that is no message, as the text that a model would see."""
    return value if isinstance(value, str) else "" if value is None else codec.dumps(value)


def _unwrapped(value: Mapping[str, Any], name: str, role: str) -> list[Message]:
    if _is_message(value):
        return message(value, name)
    messages = value.get("messages")
    if isinstance(messages, list):
        system = value.get("system")
        first = [_said("system", as_text(system))] if isinstance(system, str) and system else []
        return first + conversation(messages, f"{name}.messages", role)
    choices = value.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict) and "message" in choices[0]:
        return message(choices[0]["message"], f"{name}.choices[0].message")
    generations = value.get("generations")
    if isinstance(generations, list) and generations:
        first_one = generations[0][0] if isinstance(generations[0], list) and generations[0] else generations[0]
        if isinstance(first_one, dict):
            said = first_one.get("message")
            return message(said, f"{name}.generations") if said else [_said(role, as_text(first_one.get("text")))]
    if isinstance(value.get("output"), Mapping | list) and set(value) <= {"output", "input", "id", "object"}:
        return conversation(value["output"], f"{name}.output", role)
    return [_said(role, codec.dumps(value))]


def _flat(raw: dict[str, Any]) -> dict[str, Any]:
    """LangChain's wrappings taken off."""
    kwargs, named = raw.get("kwargs"), raw.get("id")
    if isinstance(kwargs, dict) and isinstance(named, list) and named:
        return {**kwargs, "type": str(named[-1])}
    data = raw.get("data")
    if isinstance(data, dict) and str(raw.get("type")).lower() in _KNOWN:
        return {**data, "type": raw["type"]}
    return raw


def _is_message(value: object) -> bool:
    if not isinstance(value, Mapping):
        return False
    if isinstance(value.get("role"), str) or (isinstance(value.get("kwargs"), dict) and "lc" in value):
        return True
    kind = value.get("type")
    if kind in ("function_call", "function_call_output"):
        return True
    return isinstance(kind, str) and kind.lower() in _KNOWN and ("content" in value or "data" in value)


def _holds_messages(value: object) -> bool:
    if isinstance(value, list):
        return bool(value) and all(
            _is_message(item) or (isinstance(item, list) and _holds_messages(item)) for item in value
        )
    if not isinstance(value, Mapping):
        return False
    nested = (value.get("messages"), value.get("choices"), value.get("generations"))
    return _is_message(value) or any(isinstance(held, list) and held for held in nested)


def _head(raw: Mapping[str, Any], role: str, name: str) -> Message:
    """Role, name and what it answers, checked as of a message without content."""
    try:
        return message_from_dict({"role": role, "tool_call_id": _answers(raw, role), "name": raw.get("name")})
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _role(raw: Mapping[str, Any]) -> str:
    role = raw.get("role")
    if role is None:
        role = raw.get("type")
    return _ROLES.get(str(role).lower(), str(role))


def _answers(raw: Mapping[str, Any], role: str) -> object:
    if role != "tool":
        return None
    return next((raw[k] for k in ("tool_call_id", "id") if isinstance(raw.get(k), str | int)), None)


def _block(block: object, name: str, calls: list[ToolCall], results: list[Message], kept: list[dict[str, Any]]) -> None:
    """Sort one content block into calls, results and what is said."""
    if isinstance(block, str):
        kept.append({"type": "text", "text": block})
        return
    block = fields.mapping(block, name)
    kind = block.get("type")
    bedrock_call, bedrock_result = block.get("toolUse"), block.get("toolResult")
    if isinstance(bedrock_call, dict):
        calls.append(_call({**bedrock_call, "id": bedrock_call.get("toolUseId")}, name))
    elif isinstance(bedrock_result, dict):
        results.append(_result(bedrock_result.get("toolUseId"), bedrock_result.get("content"), None))
    elif kind in ("tool_call", "tool_use", "tool-call"):
        calls.append(_call(block, name))
    elif kind in ("tool_call_response", "tool_result", "tool-result"):
        id = next((block[k] for k in ("id", "tool_use_id", "toolCallId") if block.get(k) is not None), None)
        found = next((block[k] for k in ("response", "result", "output", "content") if k in block), None)
        results.append(_result(id, found, block.get("name")))
    elif kind in _TEXTS or (kind is None and isinstance(block.get("text"), str)):
        text = block.get("text", block.get("content"))
        kept.append(
            {**{k: v for k, v in block.items() if k != "content"}, "type": kind or "text", "text": as_text(text)}
        )
    else:
        kept.append(dict(block))


def _call(raw: Mapping[str, Any], name: str) -> ToolCall:
    function = raw.get("function")
    source = function if isinstance(function, dict) else raw
    called = source.get("name", raw.get("toolName"))
    if not isinstance(called, str):
        raise ValueError(f"{name} has no function name")
    arguments = next((source[k] for k in ("arguments", "args", "input", "parameters") if k in source), None)
    id = next((raw[k] for k in ("call_id", "id", "toolCallId") if isinstance(raw.get(k), str | int)), "")
    written = arguments if isinstance(arguments, str) else codec.dumps({} if arguments is None else arguments)
    return ToolCall.parse(str(id), called, written)


def _tool_calls(raw: Mapping[str, Any], name: str) -> Iterable[ToolCall]:
    extra = raw.get("additional_kwargs")
    found = raw.get("tool_calls") or (extra.get("tool_calls") if isinstance(extra, dict) else None)
    for key, listed in (("tool_calls", found), ("invalid_tool_calls", raw.get("invalid_tool_calls"))):
        if isinstance(listed, str):
            listed = _embedded(listed)
        for index, call in enumerate(fields.items(listed or [], f"{name}.{key}")):
            yield _call(fields.mapping(call, f"{name}.{key}[{index}]"), f"{name}.{key}[{index}]")


def _result(id: object, value: object, called: object) -> Message:
    answers = str(id) if isinstance(id, str | int) and not isinstance(id, bool) else None
    named = called if isinstance(called, str) else None
    if isinstance(value, list) and value and all(isinstance(v, dict) and "type" in v for v in value):
        try:
            read = message_from_dict({"role": "tool", "content": value})
        except ValueError:
            read = Message("tool", codec.dumps(value))
        plain = len(value) == 1 and value[0]["type"] in _TEXTS and set(value[0]) <= {"type", "text"}
        return Message("tool", read.content, (), answers, named, () if plain else read.parts)
    if isinstance(value, list) and value and all(isinstance(v, dict) and isinstance(v.get("text"), str) for v in value):
        value = "".join(v["text"] for v in value)
    return Message("tool", as_text(value), (), answers, named)


def _said(role: str, text: str) -> Message:
    return Message(role, text)  # type: ignore[arg-type]  # the callers name roles


def _embedded(text: str) -> Any:
    """The object or list that a text holds as JSON; None if it is no such text."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return codec.strict_loads(text)
    except ValueError:
        return None
