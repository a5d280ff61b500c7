"""Small typed readers for JSON that somebody else wrote."""

from __future__ import annotations

import json
from typing import Any, cast

JsonDict = dict[str, Any]


def loads(raw: bytes | str) -> Any:
    """The value, or None when it is not JSON."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def as_dict(value: Any) -> JsonDict:
    return cast(JsonDict, value) if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    return cast(list[Any], value) if isinstance(value, list) else []


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def without(value: JsonDict, *keys: str) -> JsonDict:
    return {k: v for k, v in value.items() if k not in keys}


def tool_call(id: Any, name: Any, arguments: Any) -> JsonDict:
    """A tool call in chat-completions form. Text arguments are kept as they came, parsed or not."""
    text = arguments if isinstance(arguments, str) else dumps(arguments if arguments is not None else {})
    return {"id": as_text(id), "type": "function", "function": {"name": as_text(name), "arguments": text}}


def assistant(content: str | None, calls: list[JsonDict], reasoning: str = "", refusal: str = "") -> JsonDict:
    """An assistant message; keys that would be empty are left out, except content."""
    message: JsonDict = {"role": "assistant", "content": content if content or not calls else None}
    if calls:
        message["tool_calls"] = calls
    if reasoning:
        message["reasoning_content"] = reasoning
    if refusal:
        message["refusal"] = refusal
    return message


def usage(prompt: Any, completion: Any) -> JsonDict:
    return {
        "prompt_tokens": prompt if isinstance(prompt, int) else None,
        "completion_tokens": completion if isinstance(completion, int) else None,
    }
