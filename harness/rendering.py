"""Messages and tools become tokens here, and nowhere else.

The text comes from the model's own chat template, as in vLLM, and a reply is read as vLLM's `hermes` tool parser
reads it; `/tokenize` equality is a test. Training needs more: what a model sampled is never tokenized again, so
`extend` returns only what the environment appended, and refuses when the ids so far are not the beginning of the
conversation it is given.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from storage.errors import TraceError

Message = Mapping[str, Any]
Tools = Sequence[Mapping[str, Any]]

TOOL_TEMPLATE = Path(__file__).parent / "chat_templates" / "tools.jinja"
"""The tool-capable template for models without one; needs the ChatML tokens ``<|im_start|>``, ``<|im_end|>``."""

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>|<tool_call>(.*)", re.DOTALL)


class RenderingMismatch(Exception):
    """Ids that cannot be extended by the conversation given. ``kind`` is what a trainer counts them by:

    ``template``: the template is not append-only for these messages; ``prompt``: the ids begin with another
    prompt; ``reply``: the last sampled turn reads as another message; ``turn``: no reply to extend.
    """

    def __init__(self, kind: Literal["template", "prompt", "reply", "turn"], detail: str) -> None:
        self.kind = kind
        super().__init__(f"{kind}: {detail}")


@dataclass(frozen=True, slots=True)
class Marked:
    """A conversation as token ids; ``mask`` is 1 on what the assistant writes, its end-of-turn token included."""

    ids: tuple[int, ...]
    mask: tuple[int, ...]


class Renderer:
    """Tokens for one model folder.

    Raises TraceError when the folder is missing, has no tokenizer, or a tokenizer without a chat template.
    """

    def __init__(self, model_dir: Path | str) -> None:
        folder = Path(model_dir)
        if not (folder / "tokenizer_config.json").is_file():
            raise TraceError(
                "no tokenizer in the model folder",
                where=str(folder),
                fix="Give the folder of a model in Hugging Face form.",
            )
        from transformers import AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(str(folder))
        if not self.tokenizer.chat_template:
            raise TraceError(
                "the model has no chat template",
                where=str(folder),
                fix=f"Copy {TOOL_TEMPLATE.name} of harness/chat_templates into the folder as chat_template.jinja.",
            )
        self.end_id: int = self.tokenizer.eos_token_id
        self._end: str = self.tokenizer.eos_token

    def text(self, messages: Sequence[Message], tools: Tools | None = None, *, generation: bool = True) -> str:
        """The conversation as the template writes it; with ``generation`` up to where the model goes on."""
        return self.tokenizer.apply_chat_template(
            [_for_template(m) for m in messages],
            tools=[dict(t) for t in tools] if tools else None,
            tokenize=False,
            add_generation_prompt=generation,
        )

    def prompt_ids(self, messages: Sequence[Message], tools: Tools | None = None) -> list[int]:
        """The prompt that a chat-completions request with these messages and tools is turned into."""
        return self._encode(self.text(messages, tools))

    def decode(self, ids: Sequence[int]) -> str:
        """Text with special tokens written out."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def parse(self, text: str) -> dict[str, Any]:
        """What the model wrote in its turn, as a chat-completions message.

        Anything that is not well-formed calls leaves the whole text as content, as in vLLM.
        """
        text = text.split(self._end, 1)[0]
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if "<tool_call>" not in text:
            return message
        try:
            calls = [_call(json.loads(closed or unclosed)) for closed, unclosed in _CALL.findall(text)]
        except (ValueError, KeyError, TypeError, RecursionError):
            return message
        message["content"] = text[: text.find("<tool_call>")] or None
        message["tool_calls"] = calls
        return message

    def extend(self, ids: Sequence[int], messages: Sequence[Message], tools: Tools | None = None) -> list[int]:
        """The ids that follow ``ids`` when the conversation has gone on to ``messages``, up to the next reply.

        ``ids`` is the prompt with all turns so far as they were sampled, the last one being the last assistant
        message of ``messages``. A last turn that was cut off gets its end-of-turn token first. Raises
        RenderingMismatch where the ids are not the beginning of this conversation.
        """
        replies = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
        if not replies:
            raise RenderingMismatch("turn", "no assistant message")
        last = replies[-1]
        whole = self.text(messages, tools)
        head = self.text(messages[: last + 1], tools, generation=False)
        if not whole.startswith(head) or self._end not in head:
            raise RenderingMismatch("template", "the longer conversation does not start with the shorter one")
        sampled = self._reply(ids, messages, tools)
        if _meaning(self.parse(sampled)) != _meaning(messages[last]):
            raise RenderingMismatch("reply", f"{sampled[:200]!r} is not the last assistant message")
        after = head.rsplit(self._end, 1)[1] + whole[len(head) :]
        missing = [] if ids[-1] == self.end_id else [self.end_id]
        return missing + self._encode(after)

    def marked(self, messages: Sequence[Message], tools: Tools | None = None) -> Marked:
        """The conversation for supervised training: the assistant's turns as they would be sampled, marked."""
        ids: list[int] = []
        mask: list[int] = []
        done = ""
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self._before(messages, index, tools)
            through = self.text(messages[: index + 1], tools, generation=False)
            if not (before.startswith(done) and through.startswith(before)):
                raise RenderingMismatch("template", f"not append-only at message {index}")
            reply, _, rest = through[len(before) :].rpartition(self._end)
            given, taken = self._encode(before[len(done) :]), [*self._encode(reply), self.end_id]
            ids += given + taken
            mask += [0] * len(given) + [1] * len(taken)
            done = through[: len(through) - len(rest)]
        if not ids:
            raise RenderingMismatch("turn", "no assistant message")
        return Marked(tuple(ids), tuple(mask))

    def _before(self, messages: Sequence[Message], index: int, tools: Tools | None) -> str:
        """What the model went on from when it wrote message ``index``."""
        if index > 0:
            return self.text(messages[:index], tools)
        # An agent that speaks first: templates take no empty conversation, so the reply is cut off instead.
        before, opening, _ = self.text(messages[:1], tools, generation=False).partition(self._opening())
        return before + opening

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def _reply(self, ids: Sequence[int], messages: Sequence[Message], tools: Tools | None) -> str:
        """The text of the last sampled turn; checks that ``ids`` start with the prompt of the first one."""
        first = next(i for i, m in enumerate(messages) if m["role"] == "assistant")
        prompt = self._encode(self._before(messages, first, tools))
        if list(ids[: len(prompt)]) != prompt or len(ids) == len(prompt):
            raise RenderingMismatch("prompt", "the ids do not start with the prompt of these messages")
        opening = self._encode(self._opening())
        starts = [i for i in range(len(ids) - len(opening) + 1) if list(ids[i : i + len(opening)]) == opening]
        wanted = sum(m["role"] == "assistant" for m in messages)
        if len(starts) < wanted:
            raise RenderingMismatch("turn", f"{len(starts)} replies in the ids, {wanted} in the messages")
        return self.decode(ids[starts[-1] + len(opening) :])

    def _opening(self) -> str:
        """What the template writes to begin a reply."""
        probe: list[Message] = [{"role": "user", "content": "x"}]
        return self.text(probe)[len(self.text(probe, generation=False)) :]


def _call(raw: Any) -> dict[str, Any]:
    """One call in chat-completions form; raises KeyError or TypeError where vLLM's parser gives up."""
    name, arguments = raw["name"], raw["arguments"]
    if not isinstance(name, str):
        raise TypeError("the name of a call is text")
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": f"call_{uuid.uuid4().hex[:16]}", "type": "function", "function": function}


def _for_template(message: Message) -> dict[str, Any]:
    """A message as vLLM hands it to the template: content as text, arguments as an object."""
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(str(p.get("text", "")) if isinstance(p, Mapping) else str(p) for p in content)
    plain: dict[str, Any] = {"role": message["role"], "content": content or ""}
    calls = message.get("tool_calls")
    if calls:
        plain["tool_calls"] = [
            {"type": "function", "function": {"name": name, "arguments": arguments}}
            for name, arguments in _calls(message)
        ]
    for key in ("tool_call_id", "name"):
        if message.get(key) is not None:
            plain[key] = message[key]
    return plain


def _calls(message: Message) -> list[tuple[str, dict[str, Any]]]:
    """Names and arguments; arguments that are not a JSON object become an empty one, as in vLLM."""
    found: list[tuple[str, dict[str, Any]]] = []
    for item in message.get("tool_calls") or []:
        function = item.get("function", item)
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except ValueError:
                arguments = None
        found.append((function["name"], dict(arguments) if isinstance(arguments, Mapping) else {}))
    return found


def _meaning(message: Message) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    """What two writings of the same message agree in: spaces around JSON and ids of calls are not meaning."""
    plain = _for_template(message)
    return str(plain["content"]).strip(), _calls(message)
