"""One place builds tokens: append-only, equal to vLLM's, and exact about what the assistant wrote."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.rendering import TOOL_TEMPLATE, Renderer, RenderingMismatch
from storage.errors import TraceError
from tests.conftest import TinyServer
from tests.tiny import build_model

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Do “it”.",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
        },
    }
    for name in ("go", "stay")
]
TEXTS = [
    "Hello.",
    '<tool_call>{"name": "go", "arguments": {"place": "Zürich", "n": 2}}</tool_call>',
    'I will go.\n<tool_call>\n{"name":"go","arguments":{}}\n</tool_call>',
    '<tool_call>{"name": "go", "arguments": {}}</tool_call>\n<tool_call>{"name": "stay", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "go", "arguments": {"place": "x"}}',
    '<tool_call>{"name": "go", "arguments": {"place": "x"}}</tool_call> and more text',
    '<tool_call>{"name": "go", "arguments": "{}"}</tool_call>',
    '<tool_call>{"name": "go", "arguments": null}</tool_call>',
    '<tool_call>{"name": "go"}</tool_call>',
    '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
    '<tool_call>{"name": "go", "arguments": {"place": "x"}</tool_call>',
    "<tool_call>go</tool_call>",
    "<tool_call>[]</tool_call>",
    "<tool_call></tool_call>",
    '<tool_call>{"name": "go", "arguments": {}}</tool_call><tool_call>{broken</tool_call>',
    "</tool_call>",
    "",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with the project's own template."""
    model = build_model(tmp_path_factory.mktemp("rendering") / "model")
    shutil.copyfile(TOOL_TEMPLATE, model / "chat_template.jinja")
    return model


@pytest.fixture(scope="module")
def renderer(folder: Path) -> Renderer:
    return Renderer(folder)


def call(name: str, arguments: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}


words = st.text(st.characters(blacklist_categories=("Cs",)), max_size=30).filter(lambda t: "<|" not in t)
calls = st.builds(
    lambda name, arguments, as_text: call(name, json.dumps(arguments) if as_text else arguments),
    st.sampled_from(["go", "stay"]),
    st.dictionaries(words, st.one_of(words, st.integers(), st.none(), st.lists(st.booleans())), max_size=3),
    st.booleans(),
)
messages_after_system = st.lists(
    st.one_of(
        st.builds(lambda t: {"role": "user", "content": t}, words),
        st.builds(lambda t: {"role": "assistant", "content": t}, words),
        st.builds(
            lambda t, c: {"role": "assistant", "content": t, "tool_calls": c},
            st.one_of(st.none(), words),
            st.lists(calls, min_size=1, max_size=3),
        ),
        st.builds(lambda t: {"role": "tool", "tool_call_id": "c1", "content": t}, words),
    ),
    min_size=1,
    max_size=6,
)
conversations = st.builds(
    lambda system, rest: [*([{"role": "system", "content": system}] if system is not None else []), *rest],
    st.one_of(st.none(), words),
    messages_after_system,
)


@settings(max_examples=150, deadline=None)
@given(messages=conversations, tools=st.sampled_from([[], TOOLS]))
def test_a_longer_conversation_starts_with_the_tokens_of_the_shorter(
    renderer: Renderer, messages: list[dict[str, Any]], tools: list[dict[str, Any]]
) -> None:
    whole = renderer.prompt_ids(messages, tools)
    start = 2 if messages[0]["role"] == "system" else 1
    for end in range(start, len(messages)):
        # Where the assistant spoke next, it went on from the prompt; else the conversation went on without it.
        spoke = messages[end]["role"] == "assistant"
        text = renderer.text(messages[:end], tools, generation=spoke)
        shorter = renderer.tokenizer(text, add_special_tokens=False)["input_ids"]
        assert whole[: len(shorter)] == shorter


@settings(max_examples=100, deadline=None)
@given(messages=conversations, tools=st.sampled_from([[], TOOLS]))
def test_marked_tokens_are_what_the_assistant_wrote(
    renderer: Renderer, messages: list[dict[str, Any]], tools: list[dict[str, Any]]
) -> None:
    spoken = [m for m in messages if m["role"] == "assistant"]
    if not spoken:
        with pytest.raises(RenderingMismatch):
            renderer.marked(messages, tools)
        return
    marked = renderer.marked(messages, tools)
    whole = renderer.text(messages, tools, generation=False)
    assert whole.startswith(renderer.decode(marked.ids))
    turns = renderer.decode([i for i, m in zip(marked.ids, marked.mask, strict=True) if m]).split("<|im_end|>")
    assert len(turns) == len(spoken) + 1
    for turn, message in zip(turns, spoken, strict=False):
        parsed = renderer.parse(turn)
        names = [c["function"]["name"] for c in message.get("tool_calls", [])]
        if "<tool_call>" not in (message["content"] or ""):
            assert [c["function"]["name"] for c in parsed.get("tool_calls", [])] == names


def test_tools_are_listed_as_signatures_and_nothing_of_a_schema_is_lost(renderer: Renderer) -> None:
    properties = {
        "place": {"type": "string"},
        "seats": {"type": "integer"},
        "why": {"type": "string", "description": "The reason, in words."},
        "when": {"type": "string", "enum": ["now", "later"], "description": "How soon."},
        "who": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}},
        "else": {},
        "any": True,
        "maybe": {"type": ["string", "null"]},
        "desk": {"$ref": "#/$defs/Desk"},
    }
    parameters = {"type": "object", "properties": properties, "required": ["place", "who"], "$defs": {"Desk": {}}}
    rich = {"name": "book", "parameters": parameters}
    tools = [*TOOLS, {"type": "function", "function": rich}, {"type": "function", "function": {"name": "stop"}}]
    text = renderer.text([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}], tools)
    listed = text.split("Tools:\n")[1].split("To use a tool")[0].splitlines()
    assert listed == [
        "go(place) Do “it”.",
        "stay(place) Do “it”.",
        "book(place, seats?: integer, why?, when?, who: array, else?, any?, maybe?, desk?)",
        "  why: The reason, in words.",
        f"  when: {json.dumps(properties['when'], separators=(',', ':'))}",
        f"  who: {json.dumps(properties['who'], separators=(',', ':'))}",
        "  else: {}",
        "  any: true",
        '  maybe: {"type":["string","null"]}',
        '  desk: {"$ref":"#/$defs/Desk"}',
        '  $defs: {"Desk":{}}',
        "stop()",
    ]
    assert text.startswith("<|im_start|>system\nBe kind.\n")
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_a_written_call_reads_as_the_same_call(renderer: Renderer) -> None:
    wanted = [call("go", '{"place": "Zürich \\"x\\""}'), call("stay", {"n": [1, None]})]
    message = {"role": "assistant", "content": None, "tool_calls": wanted}
    marked = renderer.marked([{"role": "user", "content": "Hi"}, message], TOOLS)
    parsed = renderer.parse(renderer.decode([i for i, m in zip(marked.ids, marked.mask, strict=True) if m]))
    assert parsed["content"] is None
    assert [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in parsed["tool_calls"]] == [
        ("go", {"place": 'Zürich "x"'}),
        ("stay", {"n": [1, None]}),
    ]


@pytest.mark.parametrize("text", TEXTS)
def test_text_without_well_formed_calls_stays_content(renderer: Renderer, text: str) -> None:
    parsed = renderer.parse(text)
    if "tool_calls" not in parsed:
        assert parsed["content"] == text


@pytest.mark.heavy
@pytest.mark.parametrize("text", TEXTS)
def test_replies_are_read_as_vllms_parser_reads_them(renderer: Renderer, text: str) -> None:
    from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser

    theirs = Hermes2ProToolParser(renderer.tokenizer).extract_tool_calls(text, None)  # type: ignore[arg-type]
    ours = renderer.parse(text)
    assert ours["content"] == theirs.content
    assert [(c["function"]["name"], c["function"]["arguments"]) for c in ours.get("tool_calls", [])] == [
        (c.function.name, c.function.arguments) for c in theirs.tool_calls
    ]


SYSTEM = {"role": "system", "content": "Be kind."}
USER = {"role": "user", "content": "Take me to Lima."}
CALL = {"role": "assistant", "content": None, "tool_calls": [call("go", '{"place": "Lima"}')]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": '{"at": "Lima"}'}


def ids_of(renderer: Renderer, sampled: str, *, end: bool = True) -> list[int]:
    written = renderer.tokenizer(sampled, add_special_tokens=False)["input_ids"]
    return renderer.prompt_ids([SYSTEM, USER], TOOLS) + written + ([renderer.end_id] if end else [])


def test_extending_adds_what_the_environment_said_and_keeps_what_was_sampled(renderer: Renderer) -> None:
    # Other spaces than the template writes: the sampled tokens stay as they are.
    ids = ids_of(renderer, '<tool_call>{"name":"go","arguments":{"place":"Lima"}}</tool_call>')
    added = renderer.extend(ids, [SYSTEM, USER, CALL, RESULT], TOOLS)
    said = '\n<|im_start|>user\n<tool_response>{"at": "Lima"}</tool_response><|im_end|>\n<|im_start|>assistant\n'
    assert renderer.decode(added) == said


def test_extending_what_the_template_would_write_gives_the_prompt(renderer: Renderer) -> None:
    ids = list(renderer.marked([SYSTEM, USER, CALL], TOOLS).ids)
    messages = [SYSTEM, USER, CALL, RESULT]
    ids += renderer.extend(ids, messages, TOOLS)
    assert ids == renderer.prompt_ids(messages, TOOLS)
    reply = {"role": "assistant", "content": "We are in Lima."}
    ids += renderer.tokenizer("We are in Lima.", add_special_tokens=False)["input_ids"]
    messages += [reply, {"role": "user", "content": "And now?"}]
    ids += renderer.extend(ids, messages, TOOLS)  # the reply was cut off before its end-of-turn token
    assert ids == renderer.prompt_ids(messages, TOOLS)


@pytest.mark.parametrize(
    ("kind", "sampled", "messages"),
    [
        ("reply", "Something else.", [SYSTEM, USER, CALL, RESULT]),
        (
            "reply",
            '<tool_call>{"name": "stay", "arguments": {"place": "Lima"}}</tool_call>',
            [SYSTEM, USER, CALL, RESULT],
        ),
        ("prompt", "Hello.", [USER, {"role": "assistant", "content": "Hello."}, USER]),
        ("turn", "Hello.", [SYSTEM, USER, {"role": "assistant", "content": "Hello."}, USER, CALL, RESULT]),
        ("turn", "Hello.", [SYSTEM, USER]),
    ],
)
def test_ids_of_another_conversation_are_refused(
    renderer: Renderer, kind: str, sampled: str, messages: list[dict[str, Any]]
) -> None:
    with pytest.raises(RenderingMismatch) as refused:
        renderer.extend(ids_of(renderer, sampled), messages, TOOLS)
    assert refused.value.kind == kind


def test_a_template_that_rewrites_earlier_turns_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "model")
    # Like models that drop reasoning from all turns but the last: the number of messages changes the first turn.
    template = tmp_path / "model" / "chat_template.jinja"
    template.write_text("<|im_start|>{{ messages | length }}<|im_end|>" + template.read_text())
    rewriting = Renderer(tmp_path / "model")
    with pytest.raises(RenderingMismatch) as refused:
        rewriting.marked([USER, CALL, RESULT, CALL], TOOLS)
    assert refused.value.kind == "template"


def test_a_folder_without_a_tokenizer_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no tokenizer"):
        Renderer(tmp_path)


@pytest.mark.heavy
def test_prompts_are_the_servers_own(vllm_tiny: TinyServer) -> None:
    """`/tokenize` renders a chat request as `/v1/chat/completions` does, tools and calls included."""
    ours = Renderer(vllm_tiny.model)
    parts = {"role": "user", "content": [{"type": "text", "text": "Take me"}, {"type": "text", "text": "to Lima."}]}
    broken = {"role": "assistant", "content": "Wait.", "tool_calls": [call("go", '{"place": ')]}
    spoken = {"role": "assistant", "content": "There."}
    for messages in ([USER], [SYSTEM, parts], [SYSTEM, USER, CALL, RESULT], [USER, broken, RESULT, spoken, USER]):
        for tools in ([], TOOLS):
            body = {"model": "base", "messages": messages, "add_generation_prompt": True, "add_special_tokens": False}
            if tools:
                body["tools"] = tools
            answer = httpx.post(vllm_tiny.server.base_url.removesuffix("/v1") + "/tokenize", json=body, timeout=60)
            assert answer.status_code == 200, answer.text
            assert answer.json()["tokens"] == ours.prompt_ids(messages, tools)
