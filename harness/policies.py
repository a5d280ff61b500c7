"""Policies: one that asks a model, and scripted ones that need none, which admission plays against environments.

Scripted policies derive their next act from the messages so far, so one instance serves any number of episodes.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness import tool_kinds
from harness.arguments import function_of
from harness.environment import Act, Environment, Task
from harness.episodes import Message

Json = Any
Messages = Sequence[Mapping[str, Json]]
Tools = Sequence[Mapping[str, Json]]


@dataclass(frozen=True)
class ChatPolicy:
    """A model behind an OpenAI-compatible server. ``base_url`` as an OpenAI client takes it ("http://host:port/v1").

    ``client`` is an ``httpx.AsyncClient`` to share among episodes; without one, each call opens its own.
    ``extra`` goes into every request. Raises httpx.HTTPError when the server fails; the episode records it.
    """

    base_url: str
    model: str
    temperature: float = 0.7
    max_tokens: int = 256
    extra: Mapping[str, Json] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    client: Any = None
    timeout: float = 300.0

    async def act(self, messages: Messages, tools: Tools) -> Message:
        import httpx

        body: dict[str, Json] = {
            "model": self.model,
            "messages": list(messages),
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            **({"tools": list(tools)} if tools else {}),
            **self.extra,
        }
        url = f"{self.base_url.rstrip('/')}/chat/completions"
        if self.client is not None:
            response = await self.client.post(url, json=body, headers=dict(self.headers))
        else:
            async with httpx.AsyncClient(timeout=self.timeout, trust_env=False) as client:
                response = await client.post(url, json=body, headers=dict(self.headers))
        response.raise_for_status()
        reply = response.json()["choices"][0]["message"]
        message: Message = {"role": "assistant", "content": reply.get("content") or ""}
        if reply.get("tool_calls"):
            message["tool_calls"] = reply["tool_calls"]
        return message


@dataclass(frozen=True)
class ScriptedPolicy:
    """Plays given acts in order, then says ``last`` for ever. ``start``: how many messages the task itself has."""

    acts: Sequence[Act]
    start: int
    last: str = ""

    async def act(self, messages: Messages, tools: Tools) -> Message:
        index = sum(m.get("role") == "assistant" for m in messages[self.start :])
        return act_message(self.acts[index], index) if index < len(self.acts) else _say(self.last)


def act_message(act: Act, index: int) -> Message:
    """An act as the assistant message that performs it."""
    if act.tool is None:
        return _say(act.text)
    return {"role": "assistant", "content": act.text, "tool_calls": [_call(act.tool, act.arguments, index)]}


class ReferencePolicy:
    """Plays the environment's own reference solution."""

    def begin(self, env: Environment, task: Task) -> ScriptedPolicy:
        return ScriptedPolicy(tuple(env.reference()), len(task.messages))

    async def act(self, messages: Messages, tools: Tools) -> Message:
        raise NotImplementedError("a reference belongs to one episode: see begin")


@dataclass(frozen=True)
class LapsePolicy(ReferencePolicy):
    """Plays the reference with a mutation; ``mutate`` returns None where it does not apply, then nothing is done."""

    mutate: Callable[[Sequence[Act], Task], Sequence[Act] | None]

    def begin(self, env: Environment, task: Task) -> ScriptedPolicy:
        return ScriptedPolicy(tuple(self.mutate(tuple(env.reference()), task) or ()), len(task.messages))


class NullPolicy:
    """Does nothing and says nothing."""

    async def act(self, messages: Messages, tools: Tools) -> Message:
        return _say("")


class EchoPolicy:
    """Says the user's last words."""

    async def act(self, messages: Messages, tools: Tools) -> Message:
        return _say(next((str(m.get("content") or "") for m in reversed(messages) if m.get("role") == "user"), ""))


@dataclass(frozen=True)
class RandomValidCall:
    """Up to ``calls`` random calls that fit their schemas, with values taken from the conversation half the time."""

    seed: int = 0
    calls: int = 6

    def begin(self, env: Environment, task: Task) -> RandomValidCall:
        return RandomValidCall(hash((self.seed, task.seed)), self.calls)

    async def act(self, messages: Messages, tools: Tools) -> Message:
        index = sum(m.get("role") == "assistant" for m in messages)
        if index >= self.calls or not tools:
            return _say("Done.")
        draw = random.Random(self.seed * 1000 + index)
        function = function_of(draw.choice(list(tools)))
        arguments = random_arguments(function.get("parameters") or {}, draw, mentioned(messages))
        return _message_of([_call(str(function["name"]), arguments, index)])


class CallEverything:
    """Calls every tool with every value of the conversation that fits, turn after turn, and then says all it saw."""

    limit = 64
    """Calls a turn: enough to be a nuisance, few enough for admission to stay quick."""

    async def act(self, messages: Messages, tools: Tools) -> Message:
        index = sum(m.get("role") == "assistant" for m in messages)
        values = mentioned(messages)
        if index >= 3:
            return _say(" ".join(values))
        calls: list[Json] = []
        for tool in tools:
            function = function_of(tool)
            for value in values[-16:] or [""]:
                draw = random.Random(f"{function.get('name')} {value} {index}")
                arguments = random_arguments(function.get("parameters") or {}, draw, [value])
                calls.append(_call(str(function.get("name")), arguments, len(calls)))
        return _message_of(random.Random(index).sample(calls, min(self.limit, len(calls))))


class OddCalls:
    """Calls as no schema allows them: tools that do not exist, arguments that are missing, unknown, or of any type."""

    async def act(self, messages: Messages, tools: Tools) -> Message:
        if any(m.get("role") == "assistant" for m in messages):
            return _say("")
        calls = [("no_such_tool", {}), ("", {"": ""})]
        for tool in tools:
            function = function_of(tool)
            names = list((function.get("parameters") or {}).get("properties") or ())
            calls += [(str(function.get("name")), odd) for odd in ({}, {"nonsense": [None, {"a": "\ud800"}]})]
            calls += [(str(function.get("name")), dict.fromkeys(names, odd)) for odd in _ODD]
        return _message_of([_call(name, arguments, index) for index, (name, arguments) in enumerate(calls)])


_ODD: tuple[Json, ...] = (None, -1, 1e300, True, "", "x" * 2000, [], ["\x00"], {}, {"a": {"b": []}})


@dataclass(frozen=True)
class CopyTheExample:
    """Plays the solution of one example task, whatever the task is. Build it with `from_seed`."""

    acts: Sequence[Act]
    key: str

    @classmethod
    def from_seed(cls, env: Environment, seed: int) -> CopyTheExample:
        """Learn the example by heart from ``env``; it should not be one of the seeds played later."""
        task = env.reset(seed)
        return cls(tuple(env.reference()), task.key)

    def begin(self, env: Environment, task: Task) -> ScriptedPolicy:
        # The example itself would be solved, and rightly so: there the copy does nothing.
        return ScriptedPolicy(() if task.key == self.key else self.acts, len(task.messages))

    async def act(self, messages: Messages, tools: Tools) -> Message:
        raise NotImplementedError("a copy belongs to one episode: see begin")


class OneArgumentWrong(ReferencePolicy):
    """The reference, with one argument of its last change replaced by a wrong value of the same type."""

    def begin(self, env: Environment, task: Task) -> ScriptedPolicy:
        said = "\n".join(str(m.get("content") or "") for m in task.messages)
        return ScriptedPolicy(one_argument_wrong(env.reference(), task.seed, said), len(task.messages))


def one_argument_wrong(acts: Sequence[Act], seed: int, said: str = "") -> tuple[Act, ...]:
    """Acts with one argument of the last change made wrong; of the last call with arguments where nothing is changed.

    A wrong last look-up after the change would do no harm, and show nothing; nor would other words where the agent
    chooses its own (a note, a summary), so arguments of several words that nobody ``said`` are the last resort.
    """
    changed = list(acts)
    calls = [(i, name) for i, act in enumerate(acts) if act.tool for name in sorted(act.arguments)]
    writes = [(i, name) for i, name in calls if tool_kinds.is_write(acts[i].tool or "")]
    exact = [(i, name) for i, name in writes if not _own_words(acts[i].arguments[name], said)]
    places = exact or writes or calls
    places = [(i, name) for i, name in places if i == places[-1][0]]
    if places:
        index, name = places[seed % len(places)]
        act = acts[index]
        changed[index] = Act(act.tool, {**act.arguments, name: _spoil(act.arguments[name])}, act.text)
    return tuple(changed)


def _own_words(value: Json, said: str) -> bool:
    return isinstance(value, str) and len(value.split()) >= 3 and value.casefold() not in said.casefold()


def _spoil(value: Json) -> Json:
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, list):
        return [_spoil(v) for v in value] or ["other"]
    if isinstance(value, Mapping):
        return {k: _spoil(v) for k, v in value.items()} or {"other": 1}
    return f"{value}x" if value else "other"


def random_arguments(schema: Mapping[str, Json], draw: random.Random, pool: Sequence[str]) -> dict[str, Json]:
    """Arguments that fit ``schema``; strings come from ``pool`` half the time. Optional ones appear at times."""
    required = set(schema.get("required") or ())
    properties: Mapping[str, Json] = schema.get("properties") or {}
    return {
        name: _random_value(inner, draw, pool)
        for name, inner in properties.items()
        if name in required or draw.random() < 0.3
    }


def _random_value(schema: Mapping[str, Json], draw: random.Random, pool: Sequence[str]) -> Json:
    if schema.get("enum"):
        return draw.choice(list(schema["enum"]))
    branches = schema.get("anyOf") or schema.get("oneOf")
    if branches:
        return _random_value(branches[0], draw, pool)
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if kind == "object":
        return random_arguments(schema, draw, pool)
    if kind == "array":
        return [_random_value(schema.get("items") or {}, draw, pool)]
    if kind in ("integer", "number"):
        return draw.randint(1, 50)
    if kind == "boolean":
        return draw.random() < 0.5
    if kind == "null":
        return None
    if pool and (len(pool) == 1 or draw.random() < 0.5):
        return draw.choice(list(pool))
    return "".join(draw.choice("abcdefghijklmnopqrstuvwxyz0123456789") for _ in range(6))


_TOKEN = re.compile(r"[\w@#+][\w@.#+-]*[\w]|\w")


def mentioned(messages: Messages) -> list[str]:
    """Words of user and tool messages that look like values (with a digit, an @ or a capital), in order, once each."""
    found: dict[str, None] = {}
    for message in messages:
        if message.get("role") in ("user", "tool"):
            for word in _words(str(message.get("content") or "")):
                found.setdefault(word)
    return list(found)


def _words(text: str) -> Iterator[str]:
    for match in _TOKEN.finditer(text):
        word = match.group()
        if any(c.isdigit() or c == "@" for c in word) or word[0].isupper():
            yield word


def _call(name: str, arguments: Mapping[str, Json], index: int) -> dict[str, Json]:
    function = {"name": name, "arguments": json.dumps(dict(arguments), ensure_ascii=False)}
    return {"id": f"call_{index}", "type": "function", "function": function}


def _message_of(calls: list[Json]) -> Message:
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _say(text: str) -> Message:
    return {"role": "assistant", "content": text}
