"""Other clients and other wire forms: each call is recorded once, whatever layers it passed."""

from __future__ import annotations

import asyncio
import json
import operator
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import anthropic
import httpx
import openai
import pytest

import trace_sdk as trace
from tests.trace_sdk.scripted import Reply, ScriptedServer, chat, chat_chunks
from tests.trace_sdk.spool import Stored, only_run, runs

QUESTION: list[Any] = [{"role": "user", "content": "Where is it?"}]
SCHEMA = {"type": "object", "properties": {"id": {"type": "string"}}}
FUNCTION = {"type": "function", "function": {"name": "find", "description": "Find it", "parameters": SCHEMA}}


def eventually(home: Path, holds: Callable[[Stored], bool]) -> Stored:
    """Some frameworks report from a thread of theirs, after the call has returned."""
    for _ in range(100):
        trace.flush()
        if holds(only_run(home)):
            break
        time.sleep(0.05)
    return only_run(home)


ANTHROPIC = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-x",
    "content": [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "Looking."},
        {"type": "tool_use", "id": "tu_1", "name": "find", "input": {"id": "7"}},
        {"type": "tool_use", "id": "tu_2", "name": "find", "input": {}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 9, "cache_read_input_tokens": 100, "output_tokens": 5},
}
ANTHROPIC_EVENTS: list[Any] = [
    {"type": "message_start", "message": {**ANTHROPIC, "content": [], "stop_reason": None}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "ping"},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Look"}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "ing."}},
    {"type": "content_block_stop", "index": 1},
    {
        "type": "content_block_start",
        "index": 2,
        "content_block": {"type": "tool_use", "id": "tu_1", "name": "find", "input": {}},
    },
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"id":'}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": ' "7"}'}},
    {"type": "content_block_stop", "index": 2},
    {
        "type": "content_block_start",
        "index": 3,
        "content_block": {"type": "tool_use", "id": "tu_2", "name": "find", "input": {}},
    },
    {"type": "content_block_stop", "index": 3},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use", "stop_sequence": None},
        "usage": {"output_tokens": 5},
    },
    {"type": "message_stop"},
]
ANTHROPIC_REPLY = {
    "role": "assistant",
    "content": "Looking.",
    "tool_calls": [
        {"id": "tu_1", "type": "function", "function": {"name": "find", "arguments": '{"id": "7"}'}},
        {"id": "tu_2", "type": "function", "function": {"name": "find", "arguments": "{}"}},
    ],
    "reasoning_content": "hm",
}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
def test_anthropic_messages_read_as_chat_messages(home: Path, streamed: bool, is_async: bool) -> None:
    reply = Reply(events=ANTHROPIC_EVENTS, cut=7) if streamed else Reply(ANTHROPIC)
    request: dict[str, Any] = {
        "model": "claude-x",
        "max_tokens": 50,
        "system": [{"type": "text", "text": "Be brief."}],
        "tools": [{"name": "find", "description": "Find it", "input_schema": SCHEMA}],
        "messages": [
            *QUESTION,
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "tu_0", "name": "find", "input": {"id": "1"}}],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "tu_0", "is_error": True, "content": "not there"},
                    {"type": "text", "text": "Try again."},
                ],
            },
        ],
    }
    with ScriptedServer([reply]) as server:

        @trace.agent
        def plain() -> None:
            client = anthropic.Anthropic(base_url=server.url, api_key="k", max_retries=0)
            if streamed:
                with client.messages.stream(**request) as stream:
                    stream.until_done()
            else:
                client.messages.create(**request)

        @trace.agent
        async def from_async() -> None:
            client = anthropic.AsyncAnthropic(base_url=server.url, api_key="k", max_retries=0)
            if streamed:
                async with client.messages.stream(**request) as stream:
                    await stream.until_done()
            else:
                await client.messages.create(**request)

        asyncio.run(from_async()) if is_async else plain()
    trace.flush()
    call = only_run(home).calls[0]
    assert call["provider"] == "anthropic.messages"
    assert call["model"] == "claude-x"
    assert call["request"]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Where is it?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "tu_0", "type": "function", "function": {"name": "find", "arguments": '{"id": "1"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "tu_0", "content": "not there", "is_error": True},
        {"role": "user", "content": "Try again."},
    ]
    assert call["request"]["tools"] == [FUNCTION]
    assert call["request"]["params"]["max_tokens"] == 50
    assert call["response"]["message"] == ANTHROPIC_REPLY
    assert call["response"]["finish_reason"] == "tool_calls"
    assert call["response"]["usage"] == {"prompt_tokens": 109, "completion_tokens": 5}
    assert "incomplete" not in call["response"]


OUTPUT: list[Any] = [
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
    {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Looking.", "annotations": []}],
    },
    {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "find",
        "arguments": '{"id":"7"}',
        "status": "completed",
    },
]
RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "gpt-x",
    "status": "completed",
    "output": OUTPUT,
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "metadata": {},
    "usage": {
        "input_tokens": 9,
        "output_tokens": 5,
        "total_tokens": 14,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    },
}


def _response_events(complete: bool) -> list[Any]:
    events: list[Any] = [
        {"type": "response.created", "response": {**RESPONSE, "status": "in_progress", "output": []}},
        {"type": "response.output_item.done", "output_index": 0, "item": OUTPUT[0]},
        {"type": "response.output_text.delta", "output_index": 1, "content_index": 0, "item_id": "m", "delta": "Look"},
        {"type": "response.output_text.delta", "output_index": 1, "content_index": 0, "item_id": "m", "delta": "ing."},
        {"type": "response.output_item.added", "output_index": 2, "item": {**OUTPUT[2], "arguments": ""}},
        {"type": "response.function_call_arguments.delta", "output_index": 2, "item_id": "f", "delta": '{"id"'},
        {"type": "response.function_call_arguments.delta", "output_index": 2, "item_id": "f", "delta": ':"7"}'},
    ]
    events = [{**event, "sequence_number": n} for n, event in enumerate(events)]
    return [*events, {"type": "response.completed", "response": RESPONSE, "sequence_number": 9}] if complete else events


@pytest.mark.parametrize("how", ["plain", "streamed", "cut off"])
def test_responses_read_as_chat_messages(home: Path, how: str) -> None:
    reply = Reply(RESPONSE) if how == "plain" else Reply(events=_response_events(how == "streamed"), cut=11)
    request: dict[str, Any] = {
        "model": "gpt-x",
        "instructions": "Be brief.",
        "temperature": 0.1,
        "tools": [{"type": "function", "name": "find", "description": "Find it", "parameters": SCHEMA}],
        "input": [
            {"role": "user", "content": "Where is it?"},
            {"type": "function_call", "call_id": "call_0", "name": "find", "arguments": '{"id": "1"}'},
            {"type": "function_call", "call_id": "call_9", "name": "find", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_0", "output": "not there"},
            {"type": "function_call_output", "call_id": "call_9", "output": "nor there"},
        ],
    }
    with ScriptedServer([reply]) as server:

        @trace.agent
        def asks() -> None:
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="k", max_retries=0)
            if how == "plain":
                client.responses.create(**request)
            else:
                list(client.responses.create(**request, stream=True))

        asks()
    trace.flush()
    call = only_run(home).calls[0]
    assert call["provider"] == "openai.responses"
    assert [m["role"] for m in call["request"]["messages"]] == ["system", "user", "assistant", "tool", "tool"]
    assert [c["id"] for c in call["request"]["messages"][2]["tool_calls"]] == ["call_0", "call_9"]
    assert call["request"]["messages"][4] == {"role": "tool", "tool_call_id": "call_9", "content": "nor there"}
    assert call["request"]["tools"] == [FUNCTION]
    assert call["request"]["params"]["temperature"] == 0.1
    assert call["response"]["message"] == {
        "role": "assistant",
        "content": "Looking.",
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "find", "arguments": '{"id":"7"}'}}],
        "reasoning_content": "hm",
    }
    if how != "cut off":
        assert call["response"]["finish_reason"] == "tool_calls"
        assert call["response"]["usage"] == {"prompt_tokens": 9, "completion_tokens": 5}


def test_what_the_responses_api_keeps_on_the_server_is_put_back_from_the_earlier_call(home: Path) -> None:
    second = {**RESPONSE, "id": "resp_2", "output": [OUTPUT[1]]}
    with ScriptedServer([Reply(RESPONSE), Reply(second)]) as server:

        @trace.agent
        def continues() -> None:
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="k", max_retries=0)
            first = client.responses.create(model="gpt-x", input="Where is it?")
            client.responses.create(
                model="gpt-x",
                previous_response_id=first.id,
                input=[{"type": "function_call_output", "call_id": "call_1", "output": "here"}],
            )

        continues()
    trace.flush()
    first, then = only_run(home).calls
    assert [m["role"] for m in then["request"]["messages"]] == ["user", "assistant", "tool"]
    assert then["request"]["messages"][1] == first["response"]["message"]
    assert first["thread"] == then["thread"]


def _any_wire(seen: Any) -> Reply:
    if seen.path.endswith("/messages"):
        return Reply(ANTHROPIC)
    if seen.body.get("stream"):
        return Reply(events=chat_chunks([{"role": "assistant", "content": "over http"}]))
    return Reply(chat("over http"))


@pytest.mark.parametrize("model", ["openai/m", "hosted_vllm/m", "anthropic/claude-x"])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
def test_litellm_over_http_is_recorded_once(home: Path, model: str, streamed: bool, is_async: bool) -> None:
    if streamed and model.startswith("anthropic"):
        pytest.skip("the streamed form is tested with the client itself")
    import litellm

    with ScriptedServer(_any_wire) as server:
        base = server.url if model.startswith("anthropic") else server.url + "/v1"
        options: dict[str, Any] = {"model": model, "api_base": base, "api_key": "k", "messages": QUESTION}

        @trace.agent
        def asks() -> None:
            reply: Any = litellm.completion(**options, stream=streamed)
            if streamed:
                list(reply)

        @trace.agent
        async def asks_async() -> None:
            reply: Any = await litellm.acompletion(**options, stream=streamed)
            if streamed:
                [chunk async for chunk in reply]
            await asyncio.sleep(0.2)  # its callbacks come later, and must find that there is nothing to add

        asyncio.run(asks_async()) if is_async else asks()
        time.sleep(0.2)
    trace.flush()
    run = only_run(home)
    assert len(run.calls) == 1
    assert run.calls[0]["request"]["messages"] == QUESTION
    assert run.reply()["content"] in ("over http", "Looking.")


@pytest.mark.parametrize("how", ["sync", "streamed", "async"])
def test_litellm_without_http_is_recorded_from_its_callback(home: Path, how: str) -> None:
    import litellm

    options: dict[str, Any] = {"model": "openai/m", "messages": QUESTION, "mock_response": "not over http"}

    @trace.agent
    def asks() -> None:
        reply: Any = litellm.completion(**options, temperature=0.5, tools=[FUNCTION], stream=how == "streamed")
        if how == "streamed":
            list(reply)

    @trace.agent
    async def asks_async() -> None:
        await litellm.acompletion(**options, temperature=0.5, tools=[FUNCTION])
        await asyncio.sleep(0.3)

    asyncio.run(asks_async()) if how == "async" else asks()
    run = eventually(home, lambda run: len(run.calls) == 1)
    [call] = run.calls
    assert call["provider"] == "litellm"
    assert call["request"]["messages"] == QUESTION
    assert call["request"]["tools"] == [FUNCTION]
    assert call["request"]["params"]["temperature"] == 0.5
    assert call["response"]["message"] == {"role": "assistant", "content": "not over http"}


def test_runs_that_begin_together_hook_the_clients_once(tmp_path: Path) -> None:
    """In a process of its own: hooks stay, and only the first runs of a process can race for them."""
    program = """
import threading
import trace_sdk as trace
from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage

start = threading.Barrier(16)

@trace.agent(name="racer")
def asks():
    return FakeMessagesListChatModel(responses=[AIMessage("There.")]).invoke("Where?").content

def first():
    start.wait()
    asks()

threads = [threading.Thread(target=first) for _ in range(16)]
[t.start() for t in threads]
[t.join() for t in threads]
"""
    environment = {**os.environ, "TRACE_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120, env=environment)
    events = [json.loads(line) for path in (tmp_path / "spool").glob("*.jsonl") for line in path.open()]
    assert sum(event["type"] == "start" for event in events) == 16
    assert len({event["call_id"] for event in events if event["type"] == "call"}) == 16


def test_a_langchain_model_without_http_is_recorded_from_its_callback(home: Path) -> None:
    from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

    asked = AIMessage("", tool_calls=[{"id": "c1", "name": "find", "args": {"id": "7"}}])
    model = FakeMessagesListChatModel(responses=[asked, AIMessage("There.")])

    @trace.agent
    async def asks() -> str:
        messages: list[Any] = [HumanMessage("Where is it?")]
        messages.append(model.invoke(messages))
        messages.append(ToolMessage("on the table", tool_call_id="c1"))
        return str((await model.ainvoke(messages)).content)

    assert asyncio.run(asks()) == "There."
    trace.flush()
    first, second = only_run(home).calls
    assert first["provider"] == "langchain"
    assert first["request"]["messages"] == QUESTION
    assert first["response"]["message"]["tool_calls"][0]["function"]["name"] == "find"
    assert [m["role"] for m in second["request"]["messages"]] == ["user", "assistant", "tool"]
    assert second["response"]["message"]["content"] == "There."
    assert first["thread"] == second["thread"]


class State(TypedDict):
    done: Annotated[list[str], operator.add]


def test_parallel_nodes_of_a_graph_belong_to_one_run_and_keep_their_threads_apart(home: Path) -> None:
    from langgraph.graph import END, START, StateGraph

    with ScriptedServer(lambda seen: Reply(chat(seen.body["messages"][-1]["content"].upper(), None))) as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="k", max_retries=0)

        def node(name: str) -> Any:
            def act(state: State) -> dict[str, Any]:
                messages: list[Any] = [{"role": "system", "content": name}]
                for turn in range(2):
                    messages.append({"role": "user", "content": f"{name} {turn}"})
                    reply = client.chat.completions.create(model="m", messages=messages)
                    messages.append({"role": "assistant", "content": reply.choices[0].message.content})
                return {"done": [name]}

            return act

        graph: Any = StateGraph(State)
        for name in ("left", "right"):
            graph.add_node(name, node(name))
            graph.add_edge(START, name)
            graph.add_edge(name, END)
        compiled = graph.compile()

        @trace.agent
        def fans_out() -> None:
            compiled.invoke({"done": []})

        fans_out()
    trace.flush()
    run = only_run(home)
    assert len(run.calls) == 4
    assert run.threads() == [{"left"}, {"right"}]


def test_raw_httpx_calls_are_recorded_and_other_requests_are_not(home: Path) -> None:
    with ScriptedServer(lambda seen: Reply(chat("raw"))) as server:

        @trace.agent
        def asks() -> None:
            body = {"model": "m", "messages": QUESTION}
            httpx.post(server.url + "/v1/chat/completions?key=hidden", json=body)
            httpx.post(server.url + "/v1/weather", json=body)
            with httpx.Client() as client, client.stream("POST", server.url + "/v1/chat/completions", json=body) as r:
                assert b"raw" in b"".join(r.iter_raw())

        asks()
    trace.flush()
    run = only_run(home)
    assert [c["response"]["message"]["content"] for c in run.calls] == ["raw", "raw"]
    assert run.calls[0]["url"] == server.url + "/v1/chat/completions"


def test_an_answer_that_cannot_be_read_is_an_error_and_no_guess(home: Path) -> None:
    with ScriptedServer([Reply(b"<html>proxy</html>"), Reply(b"", status=502)]) as server:

        @trace.agent
        def asks() -> None:
            for _ in range(2):
                httpx.post(server.url + "/v1/chat/completions", content=b"no json")

        asks()
    trace.flush()
    first, second = only_run(home).calls
    assert (first["response"], first["error"]["boundary"]) == (None, "provider")
    assert "proxy" in first["error"]["message"]
    assert (second["error"]["status"], second["error"]["boundary"]) == (502, "infrastructure")
    assert first["request"]["messages"] == []


def test_a_client_imported_inside_the_run_is_recorded_too(tmp_path: Path) -> None:
    program = """
import trace_sdk as trace, sys
@trace.agent
def asks(url):
    import openai
    client = openai.OpenAI(base_url=url + "/v1", api_key="k", max_retries=0)
    reply = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "q"}])
    return reply.choices[0].message.content
print(asks(sys.argv[1]))
"""
    with ScriptedServer([Reply(chat("late import"))]) as server:
        done = subprocess.run(
            [sys.executable, "-c", program, server.url],
            capture_output=True,
            text=True,
            timeout=60,
            env={"TRACE_HOME": str(tmp_path)},
            cwd=Path(__file__).parents[2],
        )
    assert done.stdout == "late import\n", done.stderr
    assert [c["response"]["message"]["content"] for run in runs(tmp_path) for c in run.calls] == ["late import"]
