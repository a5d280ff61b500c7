"""The real openai client against a scripted server: what is stored is what went over the wire."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest

import trace_sdk as trace
from tests.trace_sdk.scripted import Reply, ScriptedServer, chat, chat_chunks
from tests.trace_sdk.spool import only_run, runs

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "find_order",
            "description": "Find an order",
            "parameters": {"type": "object", "properties": {"email": {"type": "string"}}},
        },
    }
]


def client(server: ScriptedServer, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="sk-unit-test", max_retries=0, **options)


def test_a_tool_using_run_is_stored_complete_and_as_sent(home: Path) -> None:
    odd = '{"email":  "a@b.c", "n": 1e2}'  # spacing and number form are the model's own
    replies = [
        Reply(chat(None, [("call_1", "find_order", odd), ("call_2", "find_order", "{not json")])),
        Reply(chat("It is on its way.")),
    ]
    with ScriptedServer(replies) as server:

        @trace.agent(version="3", session="s-1", user=lambda question: "u-9", tags=["a", "b"])
        def desk(question: str) -> str:
            messages: list[Any] = [{"role": "system", "content": "Help."}, {"role": "user", "content": question}]
            first = client(server).chat.completions.create(
                model="scripted-1", messages=messages, tools=TOOLS, temperature=0.3, seed=4
            )
            message = first.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls or []:
                messages.append({"role": "tool", "tool_call_id": call.id, "content": f"result of {call.id}"})
            second = client(server).chat.completions.create(model="scripted-1", messages=messages, tools=TOOLS)
            return second.choices[0].message.content or ""

        assert desk("Where is my order?") == "It is on its way."
    trace.flush()
    run = only_run(home)
    assert run.start["agent"].endswith("desk")
    assert (run.start["version"], run.start["session"], run.start["user"]) == ("3", "s-1", "u-9")
    assert run.start["tags"] == ["a", "b"]
    assert run.start["parent"] is None
    assert run.start["root"] == run.id
    assert run.input == {"question": "Where is my order?"}
    assert (run.status, run.output, run.end["error"]) == ("completed", "It is on its way.", None)
    first, second = run.calls
    assert first["provider"] == "openai.chat"
    assert first["url"] == server.url + "/v1/chat/completions"
    assert first["request"]["messages"] == [
        {"role": "system", "content": "Help."},
        {"role": "user", "content": "Where is my order?"},
    ]
    assert first["request"]["tools"] == TOOLS
    assert first["request"]["params"] == {"temperature": 0.3, "seed": 4}
    assert [c["function"]["arguments"] for c in first["response"]["message"]["tool_calls"]] == [odd, "{not json"]
    assert first["response"]["finish_reason"] == "tool_calls"
    assert first["response"]["usage"] == {"prompt_tokens": 11, "completion_tokens": 7}
    assert [m["role"] for m in second["request"]["messages"]] == ["system", "user", "assistant", "tool", "tool"]
    assert run.reply() == {"role": "assistant", "content": "It is on its way."}
    assert first["thread"] == second["thread"]
    assert first["latency"] > 0
    assert "sk-unit-test" not in "".join(p.read_text() for p in (home / "spool").glob("*"))


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("cut", [0, 3, 50])
def test_a_stream_cut_anywhere_is_stored_like_a_plain_reply(home: Path, cut: int, compress: bool) -> None:
    deltas = [
        {"role": "assistant", "content": "Grüße 日本"},
        {"content": " — 😀 done"},
        {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": "Mün'}}]},
        {"tool_calls": [{"index": 1, "id": "c2", "type": "function", "function": {"name": "look", "arguments": "{}"}}]},
        {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "look", "arguments": 'chen"}'}}]},
    ]
    reply = Reply(events=chat_chunks(deltas, "tool_calls"), cut=cut, compress=compress)
    with ScriptedServer([reply]) as server:

        @trace.agent
        def streams() -> str:
            text = ""
            stream = client(server).chat.completions.create(
                model="scripted-1", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            for chunk in stream:
                text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
            return text

        assert streams() == "Grüße 日本 — 😀 done"
    trace.flush()
    run = only_run(home)
    assert run.reply()["content"] == "Grüße 日本 — 😀 done"
    calls = [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in run.reply()["tool_calls"]]
    assert calls == [("c1", "look", '{"city": "München"}'), ("c2", "look", "{}")]
    assert run.calls[0]["response"]["finish_reason"] == "tool_calls"
    assert run.calls[0]["response"]["usage"] == {"prompt_tokens": 5, "completion_tokens": 3}
    assert "incomplete" not in run.calls[0]["response"]


def test_a_stream_that_the_caller_leaves_early_keeps_what_came(home: Path) -> None:
    deltas = [{"role": "assistant", "content": f"{n} "} for n in range(50)]
    with ScriptedServer([Reply(events=chat_chunks(deltas), cut=40, pause=0.002)]) as server:

        @trace.agent
        def impatient() -> str:
            stream = client(server).chat.completions.create(
                model="m", messages=[{"role": "user", "content": "count"}], stream=True
            )
            with stream:
                for chunk in stream:
                    if "3" in (chunk.choices[0].delta.content or ""):
                        return "enough"
            return "never"

        assert impatient() == "enough"
    trace.flush()
    run = only_run(home)
    assert run.reply()["content"].startswith("0 1 2 3")
    assert run.calls[0]["response"]["incomplete"] is True


def test_a_stream_read_after_the_function_returned_is_still_its_own(home: Path) -> None:
    with ScriptedServer([Reply(events=chat_chunks([{"role": "assistant", "content": "late"}]))]) as server:

        @trace.agent
        def hands_out() -> Any:
            return client(server).chat.completions.create(
                model="m", messages=[{"role": "user", "content": "q"}], stream=True
            )

        text = "".join(c.choices[0].delta.content or "" for c in hands_out() if c.choices)
    assert text == "late"
    trace.flush()
    assert only_run(home).reply()["content"] == "late"


def test_an_async_client_is_recorded_in_the_task_that_called_it(home: Path) -> None:
    def answer(seen: Any) -> Reply:
        return Reply(chat(seen.body["messages"][0]["content"].upper()))

    with ScriptedServer(answer) as server:

        @trace.agent(name="one")
        async def one(word: str) -> str:
            async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="k", max_retries=0) as model:
                reply = await model.chat.completions.create(model="m", messages=[{"role": "user", "content": word}])
            return reply.choices[0].message.content or ""

        async def several() -> list[str]:
            return await asyncio.gather(*(one(word) for word in ("a", "b", "c")))

        assert asyncio.run(several()) == ["A", "B", "C"]
    trace.flush()
    stored = runs(home)
    assert [run.output for run in stored] == [run.input["word"].upper() for run in stored]
    assert [[c["response"]["message"]["content"] for c in run.calls] for run in stored] == [
        [run.output] for run in stored
    ]


def test_a_retried_call_is_one_call(home: Path) -> None:
    replies = [Reply({"error": {"message": "overloaded", "type": "server_error"}}, status=503), Reply(chat("ok"))]
    with ScriptedServer(replies) as server:

        @trace.agent
        def retries() -> str:
            model = openai.OpenAI(base_url=server.url + "/v1", api_key="k", max_retries=2)
            reply = model.chat.completions.create(model="m", messages=[{"role": "user", "content": "q"}])
            return reply.choices[0].message.content or ""

        assert retries() == "ok"
    trace.flush()
    run = only_run(home)
    assert len(run.calls) == 1
    assert run.calls[0]["attempt"] == 2
    assert run.reply()["content"] == "ok"


def test_failures_of_infrastructure_are_marked_as_such_and_leave_the_outcome_unknown(home: Path) -> None:
    with ScriptedServer([Reply({"error": {"message": "down", "type": "server_error"}}, status=500)]) as server:

        @trace.agent
        def fails() -> None:
            client(server).chat.completions.create(model="m", messages=[{"role": "user", "content": "q"}])

        with pytest.raises(openai.InternalServerError):
            fails()
    trace.flush()
    run = only_run(home)
    assert run.status == "raised"
    assert run.end["error"]["type"] == "InternalServerError"
    assert run.end["error"]["boundary"] == "infrastructure"
    assert run.calls[0]["error"] == {
        "type": "server_error",
        "message": "down",
        "boundary": "infrastructure",
        "status": 500,
    }
    assert run.calls[0]["response"] is None
    assert run.outcomes == []


def test_a_connection_that_breaks_in_a_stream_keeps_the_part_and_the_error(home: Path) -> None:
    deltas = [{"role": "assistant", "content": "half "}, {"content": "of it"}]
    with ScriptedServer([Reply(events=chat_chunks(deltas), cut=150, breaks_after=2)]) as server:

        @trace.agent
        def broken() -> None:
            for _ in client(server).chat.completions.create(
                model="m", messages=[{"role": "user", "content": "q"}], stream=True
            ):
                pass

        with pytest.raises(openai.APIConnectionError):
            broken()
    trace.flush()
    run = only_run(home)
    assert run.reply()["content"].startswith("half")
    assert run.calls[0]["response"]["incomplete"] is True
    assert run.calls[0]["error"]["boundary"] == "infrastructure"


def test_token_ids_and_log_probabilities_are_kept_when_the_server_returns_them(home: Path) -> None:
    body = chat("hi", prompt_token_ids=[1, 2, 3])
    body["choices"][0]["token_ids"] = [7, 8]
    body["choices"][0]["logprobs"] = {
        "content": [{"token": "h", "logprob": -0.5, "top_logprobs": []}, {"token": "i", "logprob": -1.5}]
    }
    with ScriptedServer([Reply(body)]) as server:

        @trace.agent
        def ids() -> None:
            client(server).chat.completions.create(model="m", messages=[{"role": "user", "content": "q"}])

        ids()
    trace.flush()
    response = only_run(home).calls[0]["response"]
    assert response["prompt_token_ids"] == [1, 2, 3]
    assert response["token_ids"] == [7, 8]
    assert response["logprobs"] == [-0.5, -1.5]


def test_calls_outside_a_run_are_left_alone(home: Path) -> None:
    with ScriptedServer([Reply(chat("inside")), Reply(chat("outside"))]) as server:
        model = client(server)

        @trace.agent
        def inside() -> None:
            model.chat.completions.create(model="m", messages=[{"role": "user", "content": "q"}])

        inside()
        model.chat.completions.create(model="m", messages=[{"role": "user", "content": "q"}])
    trace.flush()
    assert [c["response"]["message"]["content"] for c in only_run(home).calls] == ["inside"]


def test_the_gateway_takes_the_calls_of_a_run_and_alone_gets_the_trajectory_id(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        ScriptedServer([Reply(chat("from the gateway"), headers={"x-trace-policy": "4/cap@2"})]) as gateway,
        ScriptedServer([Reply(chat("from the provider"))]) as provider,
    ):
        monkeypatch.setenv("TRACE_GATEWAY", gateway.url)
        trace.init(home=home)
        model = client(provider)

        def ask() -> str:
            reply = model.chat.completions.create(model="m", messages=[{"role": "user", "content": "q"}])
            return reply.choices[0].message.content or ""

        @trace.agent
        def asks() -> tuple[str, str]:
            handle = trace.current()
            assert handle is not None
            return ask(), handle.id

        reply, trajectory = asks()
        assert reply == "from the gateway"
        assert ask() == "from the provider"
    trace.flush()
    assert gateway.seen[0].headers["x-trace-trajectory"] == trajectory
    assert gateway.seen[0].path == "/v1/chat/completions"
    assert "authorization" not in gateway.seen[0].headers
    assert "x-trace-trajectory" not in provider.seen[0].headers
    assert provider.seen[0].headers["authorization"] == "Bearer sk-unit-test"
    run = only_run(home)
    assert run.id == trajectory
    assert run.calls[0]["response"]["policy"] == "4/cap@2"
