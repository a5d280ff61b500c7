"""What goes out comes in again unchanged, in every format, as far as the format can hold it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage import codec, overview, trajectories
from storage.database import open_database
from storage.exporters import atif, openai, otlp
from storage.ids import new_id
from storage.importers import FORMATS
from storage.importers.contract import BrokenRecord, Options, Source, read
from storage.ingest import ingest_spool
from storage.trajectory import Message, ToolCall, Trajectory, message_from_dict
from tests.storage.spool import Writer, call, end, says, start, user

# Any character, NUL and half surrogate pairs included: models and tools produce them all.
TEXT = st.text(st.characters(codec=None, categories=None), max_size=12)
NAME = st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=8)
WORD = st.text("abcdefgh_-0123456789", min_size=1, max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
ARGUMENTS = st.dictionaries(TEXT, JSON, max_size=3).map(codec.dumps) | st.sampled_from(
    ["", "{", "[1]", '"x"', "7", "null"]
)
SPACED = st.sampled_from(['{"a": 1}', '{ "b":[ ] }', '{"a":1,"a":2}', '{"x": 1.50}'])
PARTS = st.lists(
    st.builds(lambda text: {"type": "text", "text": text}, TEXT)
    | st.builds(lambda url: {"type": "image_url", "image_url": {"url": url}}, WORD),
    min_size=2,
    max_size=3,
)
CONTENT = TEXT | PARTS
TOOLS = st.sampled_from(
    [
        (),
        ({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"é": {}}}}},),
        ({"type": "function", "function": {"name": "f", "description": "d", "strict": True}}, {"type": "web_search"}),
        ({"name": "flat", "parameters": {}},),
    ]
)


def chat(role: str, content: Any, **more: Any) -> Message:
    return message_from_dict({"role": role, "content": content, **more})


@st.composite
def conversations(draw: st.DrawFn, arguments: st.SearchStrategy[str]) -> tuple[Message, ...]:
    """Turns of a person and an agent; results follow the calls that they answer, not always all of them."""
    messages: list[Message] = [chat("system", draw(TEXT))] if draw(st.booleans()) else []
    for turn in range(draw(st.integers(1, 3))):
        if draw(st.booleans()) or not messages:
            messages.append(chat("user", draw(CONTENT)))
        calls = [ToolCall.parse(f"{turn}-{i}", draw(WORD), draw(arguments)) for i in range(draw(st.integers(0, 2)))]
        messages.append(replace(chat("assistant", draw(CONTENT)), tool_calls=tuple(calls)))
        for one in calls[: draw(st.integers(0, len(calls)))]:
            messages.append(chat("tool", draw(CONTENT), tool_call_id=one.id))
    return tuple(messages)


def runs(messages: st.SearchStrategy[tuple[Message, ...]]) -> st.SearchStrategy[Trajectory]:
    return st.builds(
        Trajectory,
        id=st.builds(new_id),
        agent=WORD,
        messages=messages,
        tools=TOOLS,
        task=NAME,
        version=NAME.filter(lambda v: v != "unknown"),
        model=NAME,
        policy=NAME,
        session=NAME,
        user=NAME,
        tags=st.lists(WORD, max_size=3, unique=True).map(lambda tags: tuple(sorted(tags))),
        status=st.sampled_from(["completed", "raised", "aborted", "running"]),
        success=st.none() | st.booleans(),
        score=st.none() | st.floats(-1e6, 1e6),
        trainable=st.booleans(),
        error=st.none() | st.fixed_dictionaries({"type": WORD, "message": TEXT, "boundary": st.just("tool")}),
        # Whole microseconds: what an ISO time holds.
        started_at=st.just(0.0) | st.integers(10**15, 2 * 10**15).map(lambda n: n / 10**6),
        metadata=st.dictionaries(WORD.map(lambda w: f"m{w}"), JSON, max_size=2),
    )


def back(format: str, text: str, **options: Any) -> Trajectory:
    (found,) = read(FORMATS[format], Source("exported", text.encode()), Options(**options))
    assert not isinstance(found, BrokenRecord), found
    return found


@settings(max_examples=80, deadline=None)
@given(runs(conversations(ARGUMENTS | SPACED)))
def test_openai(run: Trajectory) -> None:
    read = back("openai", openai.line(run), agent=run.agent)
    held = ("agent", "messages", "tools", "success", "score", "task", "model", "session")
    assert {k: getattr(read, k) for k in held} == {k: getattr(run, k) for k in held}


@settings(max_examples=80, deadline=None)
# The format holds arguments as objects: the spaces between them are not part of it.
@given(runs(conversations(ARGUMENTS)))
def test_atif(run: Trajectory) -> None:
    assert back("atif", atif.document(run)) == replace(run, id=back("atif", atif.document(run)).id)


@settings(max_examples=80, deadline=None)
@given(runs(conversations(ARGUMENTS | SPACED)))
def test_otlp(run: Trajectory) -> None:
    read = back("otlp", otlp.line(run))
    assert read.metadata["otlp"]["trace"]
    ours = {k: v for k, v in read.metadata.items() if k != "otlp"}
    assert replace(read, metadata=ours) == replace(run, id=read.id)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(run=runs(conversations(ARGUMENTS | SPACED)))
def test_otlp_that_was_stored_goes_out_and_in_as_the_same(run: Trajectory, tmp_path: Path) -> None:
    with open_database(home=tmp_path / new_id()) as db:
        assert FORMATS["otlp"].save(db, [back("otlp", otlp.line(run))], "import:otlp").added == 1
        (stored,) = trajectories.load(db)
        again = back("otlp", otlp.line(stored))
        kept = {k: v for k, v in stored.metadata.items() if k != "otlp"}
        assert {k: v for k, v in again.metadata.items() if k != "otlp"} == kept
        assert replace(again, id="", metadata={}) == replace(stored, id="", metadata={})


def test_atif_carries_token_ids_and_log_probabilities_of_the_calls_that_made_the_run(tmp_path: Path) -> None:
    id = new_id()
    asked = [{"role": "system", "content": "You help."}, user("where is O-1?")]
    answer = call(id, asked, says("shipped"))
    answer["response"] |= {"prompt_token_ids": [1, 2, 3], "token_ids": [4, 5], "logprobs": [-0.5, -0.25]}
    aside = call(id, [user("summarize")], says("s"), seq=1, thread="t2")
    Writer(tmp_path).write(start(id), answer, aside, end(id))
    with open_database(home=tmp_path) as db:
        ingest_spool(db, tmp_path)
        (run,) = trajectories.load(db)
        document = codec.loads(atif.document(run, overview.whole(db, id)["calls"]))
    agent_steps = [step for step in document["steps"] if step["source"] == "agent"]
    expected = {
        "prompt_tokens": 10,
        "completion_tokens": 2,
        "prompt_token_ids": [1, 2, 3],
        "completion_token_ids": [4, 5],
        "logprobs": [-0.5, -0.25],
    }
    assert [step["metrics"] for step in agent_steps] == [expected]
    # They survive a second trip, though no column of a run holds them.
    again = codec.loads(atif.document(back("atif", codec.dumps(document))))
    assert [step.get("metrics") for step in again["steps"]] == [None, None, expected]


def test_otlp_is_what_the_conventions_and_protobuf_say() -> None:
    run = Trajectory(
        "r1",
        "desk",
        (
            Message("system", "You help."),
            Message("user", "hi"),
            Message("assistant", "", (ToolCall.parse("a", "find", '{"title":"Emma"}'),)),
            Message("tool", "2", (), "a"),
            Message("assistant", "Two."),
        ),
        ({"type": "function", "function": {"name": "find", "parameters": {}}},),
        session="s",
        model="small",
        success=False,
        started_at=1767323045.5,
    )
    document = otlp.document(run)
    spans = document["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert [span["name"] for span in spans] == ["invoke_agent desk", "chat small"]
    assert spans[1]["parentSpanId"] == spans[0]["spanId"]
    assert {span["traceId"] for span in spans} == {spans[0]["traceId"]}
    assert spans[0]["startTimeUnixNano"] == "1767323045500000000"
    said = {a["key"]: a["value"] for a in spans[1]["attributes"]}
    asked = codec.loads(said["gen_ai.input.messages"]["stringValue"])
    assert [m["role"] for m in asked] == ["system", "user", "assistant", "tool"]
    assert asked[2]["parts"] == [{"type": "tool_call", "id": "a", "name": "find", "arguments": {"title": "Emma"}}]
    assert asked[3]["parts"] == [{"type": "tool_call_response", "id": "a", "response": "2"}]
    tools = codec.loads(said["gen_ai.tool.definitions"]["stringValue"])
    assert tools == [{"type": "function", "name": "find", "parameters": {}}]
    assert spans[0]["events"][0]["name"] == "gen_ai.evaluation.result"
