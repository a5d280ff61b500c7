"""OpenAI's Responses API, read as chat-completions messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from trace_sdk._json import JsonDict, as_dict, as_list, as_text, assistant, dumps, tool_call, usage, without


def request(raw: JsonDict) -> JsonDict:
    messages: list[JsonDict] = []
    if as_text(raw.get("instructions")):
        messages.append({"role": "system", "content": raw["instructions"]})
    given = raw.get("input")
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    else:
        messages += messages_of(as_list(given))
    return {
        "model": as_text(raw.get("model")) or None,
        "messages": messages,
        "tools": [_tool(as_dict(tool)) for tool in as_list(raw.get("tools"))],
        "params": without(raw, "model", "input", "instructions", "tools"),
    }


def _tool(tool: JsonDict) -> JsonDict:
    if tool.get("type") != "function" or "function" in tool:
        return tool
    return {"type": "function", "function": without(tool, "type")}


def messages_of(items: list[Any]) -> list[JsonDict]:
    """Items as messages: calls that follow each other, or their text, belong to one assistant message."""
    messages: list[JsonDict] = []
    turn: list[JsonDict] = []
    for item in map(as_dict, items):
        kind = item.get("type", "message")
        if kind in ("function_call", "custom_tool_call", "reasoning") or item.get("role") == "assistant":
            turn.append(item)
            continue
        if turn:
            messages.append(message_of(turn))
            turn = []
        if kind in ("function_call_output", "custom_tool_call_output"):
            output = item.get("output")
            content = cast(Any, output) if isinstance(output, str | list) else dumps(output)
            messages.append({"role": "tool", "tool_call_id": as_text(item.get("call_id")), "content": content})
        elif item.get("role"):
            messages.append({"role": item["role"], "content": item.get("content")})
        else:  # what has no place in a chat (a file search, a reference) is kept as a part, as it came
            messages.append({"role": "assistant", "content": [item]})
    if turn:
        messages.append(message_of(turn))
    return messages


def message_of(items: list[JsonDict]) -> JsonDict:
    """One assistant message out of the items of one turn."""
    text: list[str] = []
    refusal: list[str] = []
    reasoning: list[str] = []
    calls: list[JsonDict] = []
    for item in items:
        kind = item.get("type", "message")
        if kind == "function_call":
            calls.append(tool_call(item.get("call_id") or item.get("id"), item.get("name"), item.get("arguments")))
        elif kind == "custom_tool_call":
            calls.append(tool_call(item.get("call_id") or item.get("id"), item.get("name"), item.get("input")))
        elif kind == "reasoning":
            parts = as_list(item.get("summary")) + as_list(item.get("content"))
            reasoning += [as_text(as_dict(part).get("text")) for part in parts]
        elif isinstance(item.get("content"), str):
            text.append(item["content"])
        else:
            for part in map(as_dict, as_list(item.get("content"))):
                text.append(as_text(part.get("text")))
                refusal.append(as_text(part.get("refusal")))
    return assistant("".join(text), calls, "\n".join(reasoning), "".join(refusal))


def response(raw: JsonDict) -> JsonDict | None:
    items = [as_dict(item) for item in as_list(raw.get("output"))]
    message = message_of(items)
    used = as_dict(raw.get("usage"))
    reason = as_text(as_dict(raw.get("incomplete_details")).get("reason"))
    finish = {"max_output_tokens": "length"}.get(reason, reason) or (
        "tool_calls" if "tool_calls" in message else "stop"
    )
    return {
        "id": raw.get("id"),
        "model": raw.get("model"),
        "message": message,
        "finish_reason": finish if raw.get("status") in (None, "completed", "incomplete") else None,
        "usage": usage(used.get("input_tokens"), used.get("output_tokens")),
    }


def stream(events: Iterable[JsonDict]) -> tuple[JsonDict | None, bool]:
    """The last event carries everything; without it, what the pieces gave."""
    items: dict[int, JsonDict] = {}
    head: JsonDict = {}
    for event in events:
        kind = as_text(event.get("type"))
        if kind in ("response.completed", "response.incomplete", "response.failed"):
            return response(as_dict(event.get("response"))), True
        if kind == "response.created":
            head = as_dict(event.get("response"))
        index = event.get("output_index")
        if not isinstance(index, int):
            continue
        if kind in ("response.output_item.added", "response.output_item.done"):
            items[index] = dict(as_dict(event.get("item")))
        elif kind == "response.output_text.delta":
            item = items.setdefault(index, {"type": "message"})
            # Pieces are gathered as one text; the item's own content list replaces it when it is done.
            item["content"] = as_text(item.get("content")) + as_text(event.get("delta"))
        elif kind == "response.function_call_arguments.delta":
            item = items.setdefault(index, {"type": "function_call"})
            item["arguments"] = as_text(item.get("arguments")) + as_text(event.get("delta"))
    if not items and not head:
        return None, False
    read = response({**head, "output": [items[index] for index in sorted(items)], "status": "in_progress"})
    return read, False
