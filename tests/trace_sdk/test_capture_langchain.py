"""`langchain-openai` and LangGraph, with their own packages: every model call of a graph is recorded once, whole."""

from __future__ import annotations

import asyncio
import operator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from pydantic import BaseModel, SecretStr

import trace_sdk as trace
from tests.trace_sdk.scripted import Reply, ScriptedServer, Seen, chat, chat_chunks, response
from tests.trace_sdk.spool import only_run


def model(server: ScriptedServer, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(
        model="m",
        base_url=server.url + "/v1",
        api_key=SecretStr("k"),
        **{"max_retries": 0, "temperature": 0.5, **options},
    )


def streams_or_not(seen: Seen) -> Reply:
    if seen.body.get("stream"):
        deltas = [{"role": "assistant", "content": "On "}, {"content": "the table."}]
        return Reply(events=chat_chunks(deltas), cut=7)
    return Reply(chat("On the table."))


@pytest.mark.parametrize("how", ["invoke", "ainvoke", "stream", "astream", "batch"])
def test_a_chat_model_is_recorded_once_whichever_way_it_is_asked(home: Path, how: str) -> None:
    with ScriptedServer(streams_or_not) as server:
        llm = model(server)
        question = [SystemMessage("You find things."), HumanMessage("Where is it?")]

        @trace.agent
        def asks() -> str:
            if how == "batch":
                return str(llm.batch([question])[0].content)
            return (
                "".join(str(c.content) for c in llm.stream(question))
                if how == "stream"
                else str(llm.invoke(question).content)
            )

        @trace.agent
        async def asks_async() -> str:
            if how == "astream":
                return "".join([str(c.content) async for c in llm.astream(question)])
            return str((await llm.ainvoke(question)).content)

        assert (asyncio.run(asks_async()) if how.startswith("a") else asks()) == "On the table."
        assert len(server.seen) == 1
    trace.flush()
    [call] = only_run(home).calls
    assert call["provider"] == "openai.chat"
    assert call["request"]["messages"] == [
        {"role": "system", "content": "You find things."},
        {"role": "user", "content": "Where is it?"},
    ]
    assert call["request"]["params"]["temperature"] == 0.5
    assert call["response"]["message"] == {"role": "assistant", "content": "On the table."}
    assert call["response"]["usage"]["prompt_tokens"] in (5, 11)


def test_a_call_that_the_client_repeats_is_one_call(home: Path) -> None:
    replies = [Reply({"error": {"message": "busy"}}, status=500), Reply(chat("On the table."))]
    with ScriptedServer(replies) as server:

        @trace.agent
        def asks() -> str:
            return str(model(server, max_retries=2).invoke("Where is it?").content)

        assert asks() == "On the table."
        assert len(server.seen) == 2
    trace.flush()
    run = only_run(home)
    assert len({call["call_id"] for call in run.calls}) == 1
    assert run.calls[-1]["attempt"] == 2
    assert run.calls[-1]["response"]["message"]["content"] == "On the table."


class Place(BaseModel):
    room: str
    shelf: int


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output_keeps_schema_and_answer(home: Path, method: Any) -> None:
    answer = '{"room": "hall", "shelf": 3}'
    called = chat(None, [("c1", "Place", answer)])
    with ScriptedServer([Reply(chat(answer) if method == "json_schema" else called)]) as server:

        @trace.agent
        def asks() -> Any:
            return model(server).with_structured_output(Place, method=method).invoke("Where is it?")

        assert asks() == Place(room="hall", shelf=3)
    trace.flush()
    [call] = only_run(home).calls
    if method == "json_schema":
        assert call["request"]["params"]["response_format"]["json_schema"]["name"] == "Place"
        assert call["response"]["message"]["content"] == answer
    else:
        assert [t["function"]["name"] for t in call["request"]["tools"]] == ["Place"]
        assert call["response"]["message"]["tool_calls"][0]["function"]["arguments"] == answer


@tool
def find(id: str) -> str:
    """Find a thing by its id."""
    return f"{id} is on the table"


def agent_graph(llm: ChatOpenAI) -> Any:
    """The graph that every tutorial shows: a model, its tools, and back."""
    able = llm.bind_tools([find])
    graph: Any = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [able.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([find]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile()


def looks_up_twice(seen: Seen) -> Reply:
    """Two calls at once, then an answer."""
    if seen.body["messages"][-1]["role"] == "tool":
        return Reply(chat("Both are on the table."))
    return Reply(chat(None, [("c1", "find", '{"id": "7"}'), ("c2", "find", '{"id": "8"}')]))


def test_a_tool_using_graph_is_one_conversation_with_its_results(home: Path) -> None:
    with ScriptedServer(looks_up_twice) as server:
        graph = agent_graph(model(server))

        @trace.agent
        def asks(question: str) -> str:
            return str(graph.invoke({"messages": [HumanMessage(question)]})["messages"][-1].content)

        assert asks("Where are 7 and 8?") == "Both are on the table."
    trace.flush()
    first, second = only_run(home).calls
    assert first["thread"] == second["thread"]
    assert [t["function"]["name"] for t in first["request"]["tools"]] == ["find"]
    said = second["request"]["messages"]
    assert [m["role"] for m in said] == ["user", "assistant", "tool", "tool"]
    assert [c["function"]["arguments"] for c in said[1]["tool_calls"]] == ['{"id": "7"}', '{"id": "8"}']
    assert [m["content"] for m in said[2:]] == ["7 is on the table", "8 is on the table"]


class Findings(TypedDict):
    found: Annotated[list[str], operator.add]


@pytest.mark.parametrize("is_async", [False, True])
def test_sub_graphs_that_run_side_by_side_belong_to_one_run_and_stay_apart(home: Path, is_async: bool) -> None:
    with ScriptedServer(looks_up_twice) as server:
        inner = agent_graph(model(server))

        def branch(name: str) -> Any:
            question = {"messages": [SystemMessage(name), HumanMessage("Where are 7 and 8?")]}
            if is_async:

                async def act(_: Findings) -> dict[str, Any]:
                    return {"found": [str((await inner.ainvoke(question))["messages"][-1].content)]}

                return act
            return lambda _: {"found": [str(inner.invoke(question)["messages"][-1].content)]}

        outer: Any = StateGraph(Findings)
        for name in ("left", "right"):
            outer.add_node(name, branch(name))
            outer.add_edge(START, name)
            outer.add_edge(name, END)
        compiled = outer.compile()

        @trace.agent
        def asks() -> list[str]:
            return compiled.invoke({"found": []})["found"]

        @trace.agent
        async def asks_async() -> list[str]:
            return (await compiled.ainvoke({"found": []}))["found"]

        assert (asyncio.run(asks_async()) if is_async else asks()) == ["Both are on the table."] * 2
        assert len(server.seen) == 4
    trace.flush()
    run = only_run(home)
    assert len(run.calls) == 4
    assert run.threads() == [{"left"}, {"right"}]


def test_the_responses_api_behind_a_chat_model_is_recorded_once(home: Path) -> None:
    with ScriptedServer([Reply(response("On the table."))]) as server:

        @trace.agent
        def asks() -> str:
            return model(server, use_responses_api=True).invoke("Where is it?").text

        assert asks() == "On the table."
        assert [seen.path for seen in server.seen] == ["/v1/responses"]
    trace.flush()
    [call] = only_run(home).calls
    assert call["provider"] == "openai.responses"
    assert call["response"]["message"]["content"] == "On the table."
