"""What spans say of a run: model calls, tool runs, the agent, how it ended.

Four vocabularies, each looked up where it is defined:

- GenAI semantic conventions with messages as attributes: ``gen_ai.input.messages``, ``gen_ai.output.messages``,
  ``gen_ai.system_instructions``, ``gen_ai.tool.definitions`` (open-telemetry/semantic-conventions, docs/gen-ai,
  1.37 and later, with their JSON schemas), as text or structured, on spans or on the event
  ``gen_ai.client.inference.operation.details``;
- GenAI up to 1.36: an event for each message, ``gen_ai.system.message``, ``gen_ai.user.message``,
  ``gen_ai.assistant.message``, ``gen_ai.tool.message``, ``gen_ai.choice``, on the span or as log records (their
  bodies as in open-telemetry/opentelemetry-python-contrib's OpenAI instrumentation; ``gen_ai.event.content`` holds
  the body as JSON in Azure's);
- OpenInference (Arize-ai/openinference, spec/semantic_conventions.md, llm_spans.md, tool_calling.md):
  ``llm.input_messages.0.message.role``, ``llm.tools.0.tool.json_schema``, ``openinference.span.kind``;
- OpenLLMetry / Traceloop (package opentelemetry-semantic-conventions-ai 0.4 and 0.5, and what its instrumentation
  writes): ``gen_ai.prompt.0.content``, ``gen_ai.completion.0.tool_calls.0.name``, ``llm.request.functions.0.name``,
  ``traceloop.span.kind``, ``traceloop.entity.input``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from storage import codec
from storage.importers import chat, fields
from storage.importers.otlp.wire import Happened, Span
from storage.importers.threads import Messages, Thread, ToolRun, tool_run
from storage.trajectory import Message

_PREFIXES = ("gen_ai.", "llm.", "openinference.", "traceloop.")
_EVENT_ROLES = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}
_DETAILS = "gen_ai.client.inference.operation.details"
_EVALUATION = "gen_ai.evaluation.result"
_MODEL_OPERATIONS = ("chat", "text_completion", "generate_content")
_AGENT_KINDS = ("invoke_agent", "create_agent", "invoke_workflow", "AGENT", "CHAIN", "agent", "workflow")


def is_about_models(span: Span) -> bool:
    """Whether a span, or an event of it, speaks one of the vocabularies."""
    keys = [*span.attributes, *(event.name for event in span.events), *(k for e in span.events for k in e.attributes)]
    return any(key.startswith(_PREFIXES) for key in keys)


def kind(span: Span) -> str:
    """ "model", "tool", "agent", or "" for what is none of them (retrieval, embeddings, plain code)."""
    told = [
        span.attributes.get(key)
        for key in ("gen_ai.operation.name", "openinference.span.kind", "traceloop.span.kind", "llm.request.type")
    ]
    if any(t in ("execute_tool", "TOOL", "tool") for t in told):
        return "tool"
    if any(t in _AGENT_KINDS for t in told):
        return "agent"
    if any(t in (*_MODEL_OPERATIONS, "LLM", "completion") for t in told):
        return "model"
    if any(t is not None for t in told):
        return ""
    return "model" if is_about_models(span) else ""


def thread(span: Span) -> Thread | None:
    """The messages of a model call, request and answer; None if the span holds none. Raises ValueError."""
    attributes = dict(span.attributes)
    for event in span.events:
        if event.name == _DETAILS:
            attributes.update(event.attributes)
    messages = _from_attributes(attributes) or _from_events(span.events) or _from_numbered(attributes)
    if not messages and kind(span) == "model":
        messages = _from_values(attributes)
    if not messages:
        return None
    return Thread(messages, span.started, model(span), _tools(attributes))


def model(span: Span) -> str | None:
    """The model's name, the answering one before the one that was asked for."""
    keys = (
        "gen_ai.response.model",
        "gen_ai.request.model",
        "llm.model_name",
        "llm.response.model",
        "llm.request.model",
    )
    return next((name for k in keys if (name := fields.label(span.attributes.get(k)))), None)


def usage(span: Span) -> dict[str, int]:
    """Tokens of a model call, where it says them."""
    found: dict[str, int] = {}
    for name, keys in (
        ("prompt_tokens", ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt")),
        (
            "completion_tokens",
            ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion"),
        ),
    ):
        value = next((span.attributes[k] for k in keys if isinstance(span.attributes.get(k), int)), None)
        if value is not None:
            found[name] = value
    return found


def tool(span: Span) -> ToolRun | None:
    """What a tool's span says. None if it names no tool."""
    a = span.attributes
    name = next(
        (n for k in ("gen_ai.tool.name", "tool.name", "traceloop.entity.name") if (n := fields.label(a.get(k)))), None
    )
    if name is None:
        return None
    arguments = _first(a, "gen_ai.tool.call.arguments", "tool.parameters", "input.value", "traceloop.entity.input")
    result = _first(a, "gen_ai.tool.call.result", "output.value", "traceloop.entity.output")
    for event in span.events:
        if event.name == "gen_ai.tool.message" and arguments is None:
            arguments = event.attributes.get("content")
        if event.name == "gen_ai.choice" and result is None:
            result = event.attributes.get("message", event.attributes.get("content"))
    if result is None:
        # Nothing to complete a run with.
        return None
    id = _first(a, "gen_ai.tool.call.id", "tool_call.id", "tool.id")
    return tool_run(span.id, id, name, arguments, result, span.started)


def agent(span: Span) -> str | None:
    """The name of the agent that a span runs."""
    a = span.attributes
    keys = ("gen_ai.agent.name", "agent.name", "traceloop.workflow.name", "gen_ai.workflow.name")
    found = next((name for k in keys if (name := fields.label(a.get(k)))), None)
    if found is None and a.get("traceloop.span.kind") in ("agent", "workflow"):
        found = fields.label(a.get("traceloop.entity.name"))
    return found


def session(span: Span) -> str | None:
    """The conversation."""
    keys = (
        "gen_ai.conversation.id",
        "session.id",
        "traceloop.association.properties.session_id",
        "langfuse.session.id",
    )
    return next((s for k in keys if (s := fields.label(span.attributes.get(k)))), None)


def user(span: Span) -> str | None:
    """For whom it ran."""
    keys = ("user.id", "enduser.id", "traceloop.association.properties.user_id", "langfuse.user.id")
    return next((s for k in keys if (s := fields.label(span.attributes.get(k)))), None)


def evaluations(span: Span) -> list[dict[str, Any]]:
    """Verdicts on the span: evaluation results, and OpenInference's annotations."""
    found: list[dict[str, Any]] = []
    for event in span.events:
        if event.name == _EVALUATION:
            a = event.attributes
            found.append(
                _evaluation(
                    a.get("gen_ai.evaluation.name"),
                    a.get("gen_ai.evaluation.score.value"),
                    a.get("gen_ai.evaluation.score.label"),
                    a.get("gen_ai.evaluation.explanation"),
                )
            )
    for prefix in ("annotations", "trace.annotations", "evaluations", "trace.evaluations"):
        word = prefix.rpartition(".")[2].removesuffix("s")
        for group in _numbered(span.attributes, f"{prefix}."):
            said = {k.removeprefix(f"{word}."): v for k, v in group.items()}
            found.append(_evaluation(said.get("name"), said.get("score"), said.get("label"), said.get("explanation")))
    return [e for e in found if e]


def _evaluation(name: object, score: object, label: object, explanation: object) -> dict[str, Any]:
    given = {"name": name, "score": score, "label": label, "explanation": explanation}
    return {k: v for k, v in given.items() if v is not None} if isinstance(name, str) else {}


def _from_attributes(a: Mapping[str, Any]) -> Messages:
    """GenAI, messages as attributes."""
    asked, said = a.get("gen_ai.input.messages"), a.get("gen_ai.output.messages")
    if asked is None and said is None:
        return ()
    system = a.get("gen_ai.system_instructions")
    messages: list[Message] = []
    if system is not None:
        instructions = _structured(system)
        if isinstance(instructions, list):
            messages += chat.message({"role": "system", "parts": instructions}, "gen_ai.system_instructions")
        else:
            messages.append(Message("system", chat.as_text(instructions)))
    messages += chat.conversation(_structured(asked), "gen_ai.input.messages")
    answers = _structured(said)
    if isinstance(answers, list) and len(answers) > 1 and all(isinstance(m, dict) for m in answers):
        # Each is one of several choices, unless they are items of one answer; the first goes on.
        answers = answers[:1] if all(m.get("role") == "assistant" for m in answers) else answers
    return (*messages, *chat.conversation(answers, "gen_ai.output.messages", "assistant"))


def _from_events(events: Sequence[Happened]) -> Messages:
    """GenAI up to 1.36, an event for each message."""
    asked: list[Message] = []
    answer: list[Message] = []
    ordered = sorted(enumerate(events), key=lambda pair: (pair[1].at, pair[0]))
    for _, event in ordered:
        role = _EVENT_ROLES.get(event.name)
        if role is None and event.name != "gen_ai.choice":
            continue
        body = dict(event.attributes)
        packed = _structured(body.get("gen_ai.event.content", body.get("event_body")))
        if isinstance(packed, dict):
            body |= packed
        if event.name == "gen_ai.choice":
            if body.get("index") in (None, 0, "0") and not answer:
                answer = _choice(body)
            continue
        told = {k: body[k] for k in ("content", "tool_calls", "name") if k in body}
        given = body.get("role") if body.get("role") in ("system", "user", "assistant", "tool", "developer") else role
        answers = body.get("id", body.get("tool_call_id"))
        asked += chat.message({**_content(told), "role": given, "tool_call_id": answers}, event.name)
    return (*asked, *answer)


def _choice(body: Mapping[str, Any]) -> list[Message]:
    said = body.get("message", body.get("content"))
    whole = _structured(said)
    if not (isinstance(whole, dict) and {"role", "content", "tool_calls"} & set(whole)):
        whole = {"content": said}
    whole = {"tool_calls": body.get("tool_calls"), **whole, "role": whole.get("role") or "assistant"}
    return chat.message(_content(whole), "gen_ai.choice")


def _content(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A message whose content is text or blocks; anything else (a JSON object, a number) becomes text."""
    content = _blocks(raw.get("content"))
    kept = content if content is None or isinstance(content, str | list) else codec.dumps(content)
    return {**raw, "content": kept}


def _blocks(value: object) -> Any:
    """Content blocks, also as JSON text; what only looks like them stays what was written."""
    listed = _structured(value)
    if not isinstance(listed, list):
        return value
    known = {"type", "text", "toolUse", "toolResult"}
    if listed and all(isinstance(b, dict) and known & set(b) for b in listed):
        return listed
    return codec.dumps(value) if isinstance(value, list) else value


def _from_numbered(a: Mapping[str, Any]) -> Messages:
    """OpenInference and OpenLLMetry: each field of each message an attribute of its own."""
    messages: list[Message] = []
    for name, fallback in (("llm.input_messages", "user"), ("llm.output_messages", "assistant")):
        listed = _structured(a.get(name))
        groups = listed if isinstance(listed, list) else _numbered(a, f"{name}.")
        for index, group in enumerate(groups):
            messages += chat.message(
                _openinference(fields.mapping(group, f"{name}.{index}"), fallback), f"{name}.{index}"
            )
    if messages:
        return tuple(messages)
    for name, fallback in (
        ("gen_ai.prompt", "user"),
        ("llm.prompts", "user"),
        ("gen_ai.completion", "assistant"),
        ("llm.completions", "assistant"),
    ):
        groups = _numbered(a, f"{name}.")
        if fallback == "assistant":
            groups = groups[:1]
        for index, group in enumerate(groups):
            messages += chat.message(_traceloop(group, fallback), f"{name}.{index}")
    return tuple(messages)


def _openinference(group: Mapping[str, Any], fallback: str) -> dict[str, Any]:
    said = {k.removeprefix("message."): v for k, v in group.items()}
    content: Any = said.get("content")
    if content is None:
        blocks = said["contents"] if isinstance(said.get("contents"), list) else _numbered(said, "contents.")
        content = [_openinference_block(block) for block in blocks if isinstance(block, Mapping)] or None
    listed = said["tool_calls"] if isinstance(said.get("tool_calls"), list) else _numbered(said, "tool_calls.")
    calls = []
    for call in listed:
        told = {k.removeprefix("tool_call."): v for k, v in fields.mapping(call, "tool_calls").items()}
        function = {"name": told.get("function.name"), "arguments": told.get("function.arguments")}
        calls.append({"id": told.get("id"), "function": function})
    if not calls and said.get("function_call_name"):
        function = {"name": said["function_call_name"], "arguments": said.get("function_call_arguments_json")}
        calls.append({"id": None, "function": function})
    found = {"role": said.get("role") or fallback, "content": content, "tool_calls": calls}
    return {**found, **{k: said[k] for k in ("tool_call_id", "name") if said.get(k) is not None}}


def _openinference_block(block: Mapping[str, Any]) -> dict[str, Any]:
    told = {k.removeprefix("message_content."): v for k, v in block.items()}
    if told.get("type") == "image" or "image.image.url" in told:
        return {"type": "image_url", "image_url": {"url": told.get("image.image.url")}}
    return told if "type" in told else {"type": "text", "text": told.get("text")}


def _traceloop(group: Mapping[str, Any], fallback: str) -> dict[str, Any]:
    calls = _structured(group.get("tool_calls"))
    if not isinstance(calls, list):
        calls = _numbered(group, "tool_calls.")
    if not calls and group.get("function_call.name"):
        calls = [{"name": group["function_call.name"], "arguments": group.get("function_call.arguments")}]
    role = group.get("role")
    found = {"role": role if isinstance(role, str) and role else fallback, "tool_calls": calls}
    return {**_content({**found, "content": group.get("content")}), "tool_call_id": group.get("tool_call_id")}


def _from_values(a: Mapping[str, Any]) -> Messages:
    """A model call that holds its input and output as values, as a last resort."""
    asked = a.get("input.value", a.get("traceloop.entity.input", a.get("gen_ai.prompt")))
    said = a.get("output.value", a.get("traceloop.entity.output", a.get("gen_ai.completion")))
    return (*chat.conversation(asked, "input.value"), *chat.conversation(said, "output.value", "assistant"))


def _tools(a: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    listed = a.get("gen_ai.tool.definitions")
    if listed is not None:
        # The conventions' flat form names its type; what doesn't, and is no schema of Anthropic's, stays what it is.
        name = "gen_ai.tool.definitions"
        tools = [
            fields.mapping(_structured(t), f"{name}[{i}]")
            for i, t in enumerate(fields.items(_structured(listed), name))
        ]
        return tuple(chat.tool(t, name) if {"type", "input_schema"} & set(t) else t for t in tools)
    groups = _numbered(a, "llm.tools.")
    if groups:
        schemas = [g.get("tool.json_schema", g.get("json_schema")) for g in groups]
        return tuple(chat.tool(schema, "llm.tools") for schema in schemas if schema is not None)
    return tuple(chat.tool(dict(group), "llm.request.functions") for group in _numbered(a, "llm.request.functions."))


def _numbered(a: Mapping[str, Any], prefix: str) -> list[dict[str, Any]]:
    """Groups of attributes `PREFIX<number>.REST`, in the order of their numbers, by REST."""
    groups: dict[int, dict[str, Any]] = {}
    pattern = re.compile(re.escape(prefix) + r"(\d{1,6})\.(.+)", re.DOTALL | re.ASCII)
    for key, value in a.items():
        if match := pattern.fullmatch(key):
            groups.setdefault(int(match[1]), {})[match[2]] = value
    return [groups[number] for number in sorted(groups)]


def _structured(value: object) -> Any:
    """A structured value, or the one that a text holds as JSON."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return codec.strict_loads(value)
        except ValueError:
            return value
    return value


def _first(a: Mapping[str, Any], *keys: str) -> Any:
    return next((a[k] for k in keys if a.get(k) is not None), None)
