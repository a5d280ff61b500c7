"""Anthropic's Messages API, read as chat-completions messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trace_sdk._json import JsonDict, as_dict, as_list, as_text, assistant, tool_call, usage, without

_FINISH = {"end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_calls", "max_tokens": "length"}


def request(raw: JsonDict) -> JsonDict:
    messages: list[JsonDict] = []
    system = _text_of(raw.get("system"))
    if system:
        messages.append({"role": "system", "content": system})
    for message in map(as_dict, as_list(raw.get("messages"))):
        messages += _messages_of(message)
    return {
        "model": as_text(raw.get("model")) or None,
        "messages": messages,
        "tools": [_tool(as_dict(tool)) for tool in as_list(raw.get("tools"))],
        "params": without(raw, "model", "system", "messages", "tools"),
    }


def _tool(tool: JsonDict) -> JsonDict:
    if "input_schema" not in tool:  # one of the provider's own tools
        return tool
    function = without(tool, "type", "input_schema", "cache_control")
    return {"type": "function", "function": {**function, "parameters": tool["input_schema"]}}


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(as_text(as_dict(part).get("text")) for part in as_list(content))


def _messages_of(message: JsonDict) -> list[JsonDict]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"role": message.get("role"), "content": content}]
    blocks = [as_dict(block) for block in as_list(content)]
    if message.get("role") == "assistant":
        return [message_of(blocks)]
    messages = [_result(block) for block in blocks if block.get("type") == "tool_result"]
    rest = [block for block in blocks if block.get("type") != "tool_result"]
    if rest:
        plain = all(block.get("type") == "text" for block in rest)
        messages.append({"role": message.get("role"), "content": _text_of(rest) if plain else rest})
    return messages


def _result(block: JsonDict) -> JsonDict:
    content = block.get("content")
    only_text = isinstance(content, list) and all(as_dict(part).get("type") == "text" for part in as_list(content))
    result: JsonDict = {
        "role": "tool",
        "tool_call_id": as_text(block.get("tool_use_id")),
        "content": _text_of(content) if only_text or content is None else content,
    }
    if block.get("is_error"):
        result["is_error"] = True
    return result


def message_of(blocks: list[JsonDict]) -> JsonDict:
    """One assistant message out of its content blocks."""
    calls = [
        tool_call(block.get("id"), block.get("name"), block.get("input"))
        for block in blocks
        if block.get("type") == "tool_use"
    ]
    text = "".join(as_text(block.get("text")) for block in blocks if block.get("type") == "text")
    reasoning = "".join(as_text(block.get("thinking")) for block in blocks if block.get("type") == "thinking")
    return assistant(text, calls, reasoning)


def response(raw: JsonDict) -> JsonDict | None:
    if "content" not in raw:
        return None
    used = as_dict(raw.get("usage"))
    # Cached input is reported beside the rest of the input, but was read all the same.
    read = [used.get(k) for k in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")]
    counted = [n for n in read if isinstance(n, int)]
    stop = raw.get("stop_reason")
    return {
        "id": raw.get("id"),
        "model": raw.get("model"),
        "message": message_of([as_dict(block) for block in as_list(raw.get("content"))]),
        "finish_reason": _FINISH.get(as_text(stop), stop),
        "usage": usage(sum(counted) if counted else None, used.get("output_tokens")),
    }


def stream(events: Iterable[JsonDict]) -> tuple[JsonDict | None, bool]:
    """The message put together from its events, and whether it came to its end. Tool input is kept as sent."""
    head: JsonDict = {}
    blocks: dict[int, JsonDict] = {}
    inputs: dict[int, str] = {}
    done = False
    for event in events:
        kind = event.get("type")
        index = event.get("index")
        place = index if isinstance(index, int) else 0
        if kind == "message_start":
            head = dict(as_dict(event.get("message")))
        elif kind == "content_block_start":
            blocks[place] = dict(as_dict(event.get("content_block")))
        elif kind == "content_block_delta":
            delta = as_dict(event.get("delta"))
            block = blocks.setdefault(place, {"type": "text"})
            for key in ("text", "thinking"):
                if key in delta:
                    block[key] = as_text(block.get(key)) + as_text(delta[key])
            if "partial_json" in delta:
                inputs[place] = inputs.get(place, "") + as_text(delta["partial_json"])
        elif kind == "message_delta":
            head.update({k: v for k, v in as_dict(event.get("delta")).items() if v is not None})
            head["usage"] = {**as_dict(head.get("usage")), **as_dict(event.get("usage"))}
        elif kind == "message_stop":
            done = True
    if not head and not blocks:
        return None, done
    for place, text in inputs.items():
        if text:  # no piece at all means the empty input that the block began with
            blocks[place]["input"] = text
    return response({**head, "content": [blocks[place] for place in sorted(blocks)]}), done
