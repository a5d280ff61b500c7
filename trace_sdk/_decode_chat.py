"""OpenAI chat completions (and the older text completions), as OpenAI, vLLM, LiteLLM and many others speak them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trace_sdk._json import JsonDict, as_dict, as_list, as_text, assistant, tool_call, usage, without


def request(raw: JsonDict) -> JsonDict:
    messages = as_list(raw.get("messages"))
    prompt = raw.get("prompt")
    if not messages and isinstance(prompt, str):
        messages = [{"role": "user", "content": prompt}]
    return {
        "model": as_text(raw.get("model")) or None,
        "messages": messages,
        "tools": as_list(raw.get("tools")),
        "params": without(raw, "model", "messages", "tools", *(["prompt"] if isinstance(prompt, str) else [])),
    }


def response(raw: JsonDict) -> JsonDict | None:
    choices = [as_dict(choice) for choice in as_list(raw.get("choices"))]
    if not choices:
        return None
    read = _choice(choices[0], as_dict(choices[0].get("message")) or _text_message(choices[0]), raw)
    if len(choices) > 1:
        read["alternatives"] = [as_dict(choice.get("message")) for choice in choices[1:]]
    return read


def _text_message(choice: JsonDict) -> JsonDict:
    return assistant(as_text(choice.get("text")), [])


def _choice(choice: JsonDict, message: JsonDict, raw: JsonDict) -> JsonDict:
    used = as_dict(raw.get("usage"))
    read: JsonDict = {
        "id": raw.get("id"),
        "model": raw.get("model"),
        # What a server spells out as null says as little as what it leaves out; only content keeps its null.
        "message": {"role": "assistant", **{k: v for k, v in message.items() if v is not None or k == "content"}},
        "finish_reason": choice.get("finish_reason"),
        "usage": usage(used.get("prompt_tokens"), used.get("completion_tokens")),
    }
    prompt_ids = as_list(raw.get("prompt_token_ids")) or as_list(choice.get("prompt_token_ids"))
    if prompt_ids:
        read["prompt_token_ids"] = prompt_ids
    if as_list(choice.get("token_ids")):
        read["token_ids"] = choice["token_ids"]
    logprobs = as_dict(choice.get("logprobs"))
    values = [as_dict(token).get("logprob") for token in as_list(logprobs.get("content"))]
    values = values or as_list(logprobs.get("token_logprobs"))
    if values:
        read["logprobs"] = values
    return read


class _Calls:
    """Tool calls of one streamed choice, put together from their pieces."""

    def __init__(self) -> None:
        self._calls: dict[int, JsonDict] = {}
        self._slot: dict[int, int] = {}

    def add(self, piece: JsonDict) -> None:
        index = piece.get("index")
        index = index if isinstance(index, int) else max(self._slot, default=0)
        function = as_dict(piece.get("function"))
        id = as_text(piece.get("id"))
        slot = self._slot.get(index)
        # Some servers give every parallel call the index 0: another id there is another call. The same id
        # again (many repeat it in every piece) is the same call.
        if slot is None or (id and self._calls[slot]["id"] and id != self._calls[slot]["id"]):
            slot = self._slot[index] = len(self._calls)
            self._calls[slot] = tool_call(id, "", "")
        call = self._calls[slot]
        call["id"] = call["id"] or id
        name = as_text(function.get("name"))
        if name and call["function"]["name"] != name:
            call["function"]["name"] += name
        call["function"]["arguments"] += as_text(function.get("arguments"))

    def all(self) -> list[JsonDict]:
        return list(self._calls.values())


class _Choice:
    def __init__(self) -> None:
        self.text: dict[str, list[str]] = {"content": [], "refusal": [], "reasoning": []}
        self.calls = _Calls()
        self.token_ids: list[Any] = []
        self.logprobs: list[Any] = []
        self.finish: Any = None

    def add(self, choice: JsonDict) -> None:
        delta = as_dict(choice.get("delta"))
        self.text["content"].append(as_text(delta.get("content")) or as_text(choice.get("text")))
        self.text["refusal"].append(as_text(delta.get("refusal")))
        self.text["reasoning"].append(as_text(delta.get("reasoning_content")) or as_text(delta.get("reasoning")))
        for piece in as_list(delta.get("tool_calls")):
            self.calls.add(as_dict(piece))
        self.token_ids += as_list(choice.get("token_ids"))
        self.logprobs += as_list(as_dict(choice.get("logprobs")).get("content"))
        self.finish = choice.get("finish_reason") or self.finish

    def message(self) -> JsonDict:
        text = {key: "".join(parts) for key, parts in self.text.items()}
        return assistant(text["content"], self.calls.all(), text["reasoning"], text["refusal"])

    def as_plain(self) -> JsonDict:
        return {
            "finish_reason": self.finish,
            "token_ids": self.token_ids,
            "logprobs": {"content": self.logprobs},
        }


def stream(events: Iterable[JsonDict]) -> tuple[JsonDict | None, bool]:
    """The response put together from its chunks, and whether it came to its end."""
    choices: dict[int, _Choice] = {}
    head: JsonDict = {}
    done = False
    for event in events:
        if event.get("type") == "[DONE]":
            done = True
            continue
        for key in ("id", "model", "usage", "prompt_token_ids"):
            if event.get(key):
                head[key] = event[key]
        for raw in as_list(event.get("choices")):
            choice = as_dict(raw)
            index = choice.get("index")
            choices.setdefault(index if isinstance(index, int) else 0, _Choice()).add(choice)
            if choice.get("prompt_token_ids"):
                head.setdefault("prompt_token_ids", choice["prompt_token_ids"])
    if not choices:
        return None, done
    first, *others = [choices[index] for index in sorted(choices)]
    read = _choice(first.as_plain(), first.message(), head)
    if others:
        read["alternatives"] = [other.message() for other in others]
    return read, done or first.finish is not None
