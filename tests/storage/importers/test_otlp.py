"""OpenTelemetry: every vocabulary gives the same run, JSON and protobuf alike, whole or in parts."""

from __future__ import annotations

import builtins
import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest

from storage import trajectories
from storage.database import Database, open_database
from storage.errors import TraceError
from storage.importers import FORMATS, otlp, read_file
from storage.importers.contract import BrokenRecord, Options
from storage.trajectory import Message, Trajectory, message_to_dict
from tests.storage.importers.samples import SAMPLES, attributes, otlp_run, request, span
from tests.storage.importers.test_fuzz import protobuf

CALL = {"id": "a", "type": "function", "function": {"name": "find", "arguments": '{"title":"Emma"}'}}
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "You run a library desk."},
    {"role": "user", "content": "Is Emma in?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": '{"copies": 2}', "tool_call_id": "a"},
    {"role": "assistant", "content": "Yes, two copies."},
]
SCHEMA = {"type": "object", "properties": {}}
TOOL = {"type": "function", "function": {"name": "find", "description": "Find.", "parameters": SCHEMA}}


def body(*spans: dict[str, Any]) -> bytes:
    return json.dumps(request(*spans)).encode()


def read(payload: bytes, **options: Any) -> list[Trajectory | BrokenRecord]:
    return list(otlp.records(payload, "application/json", **options))


def one(*spans: dict[str, Any]) -> Trajectory:
    (run,) = read(body(*spans))
    assert isinstance(run, Trajectory), run
    return run


def messages(run: Trajectory) -> list[dict[str, Any]]:
    return [message_to_dict(m) for m in run.messages]


def genai(message: dict[str, Any]) -> dict[str, Any]:
    """A chat-completions message with parts, after the GenAI conventions."""
    if message["role"] == "tool":
        part = {"type": "tool_call_response", "id": message["tool_call_id"], "response": message["content"]}
        return {"role": "tool", "parts": [part]}
    parts = [{"type": "text", "content": message["content"]}] if message["content"] else []
    for call in message.get("tool_calls", ()):
        arguments = json.loads(call["function"]["arguments"])
        parts.append({"type": "tool_call", "id": call["id"], "name": "find", "arguments": arguments})
    return {"role": message["role"], "parts": parts}


def as_attributes(structured: bool) -> dict[str, Any]:
    """GenAI 1.37 and later; system instructions apart from the history."""
    pack = (lambda value: value) if structured else json.dumps
    tools = [{"type": "function", "name": "find", "description": "Find.", "parameters": SCHEMA}]
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.response.model": "some-model",
        "gen_ai.system_instructions": pack([{"type": "text", "content": CHAT[0]["content"]}]),
        "gen_ai.input.messages": pack([genai(m) for m in CHAT[1:4]]),
        "gen_ai.output.messages": pack([{**genai(CHAT[4]), "finish_reason": "stop"}]),
        "gen_ai.tool.definitions": pack(tools),
    }


def openinference() -> dict[str, Any]:
    found: dict[str, Any] = {
        "openinference.span.kind": "LLM",
        "llm.model_name": "some-model",
        "llm.tools.0.tool.json_schema": json.dumps(TOOL),
    }
    for name, listed in (("llm.input_messages", CHAT[:4]), ("llm.output_messages", CHAT[4:])):
        for index, message in enumerate(listed):
            base = f"{name}.{index}.message"
            found[f"{base}.role"] = message["role"]
            found[f"{base}.content"] = message["content"]
            if "tool_call_id" in message:
                found[f"{base}.tool_call_id"] = message["tool_call_id"]
            for number, call in enumerate(message.get("tool_calls", ())):
                tool = f"{base}.tool_calls.{number}.tool_call"
                found[f"{tool}.id"] = call["id"]
                found[f"{tool}.function.name"] = call["function"]["name"]
                found[f"{tool}.function.arguments"] = call["function"]["arguments"]
    return found


def traceloop() -> dict[str, Any]:
    found: dict[str, Any] = {
        "llm.request.type": "chat",
        "gen_ai.request.model": "some-model",
        "llm.request.functions.0.name": "find",
        "llm.request.functions.0.description": "Find.",
        "llm.request.functions.0.parameters": json.dumps(SCHEMA),
    }
    for name, listed in (("gen_ai.prompt", CHAT[:4]), ("gen_ai.completion", CHAT[4:])):
        for index, message in enumerate(listed):
            found[f"{name}.{index}.role"] = message["role"]
            found[f"{name}.{index}.content"] = message["content"]
            if "tool_call_id" in message:
                found[f"{name}.{index}.tool_call_id"] = message["tool_call_id"]
            for number, call in enumerate(message.get("tool_calls", ())):
                found[f"{name}.{index}.tool_calls.{number}.id"] = call["id"]
                found[f"{name}.{index}.tool_calls.{number}.name"] = call["function"]["name"]
                found[f"{name}.{index}.tool_calls.{number}.arguments"] = call["function"]["arguments"]
    return found


def events(packed: str | None = None) -> list[tuple[str, dict[str, Any]]]:
    """GenAI up to 1.36: an event for each message. ``packed`` names the attribute that holds the body as JSON."""
    found: list[tuple[str, dict[str, Any]]] = []
    for message in CHAT[:4]:
        told = {"content": message["content"], "role": message["role"]}
        if "tool_calls" in message:
            told["tool_calls"] = json.dumps(message["tool_calls"])
        if "tool_call_id" in message:
            told["id"] = message["tool_call_id"]
        found.append((f"gen_ai.{message['role']}.message", told))
    found.append(("gen_ai.choice", {"index": 0, "finish_reason": "stop", "message": json.dumps(CHAT[4])}))
    found.append(("gen_ai.choice", {"index": 1, "finish_reason": "stop", "message": json.dumps(CHAT[4])}))
    return [(name, {packed: json.dumps(said)}) for name, said in found] if packed else found


MODEL = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "some-model"}
VOCABULARIES = {
    "genai attributes, as text": span(1, 2, as_attributes(False), None),
    "genai attributes, structured": span(1, 2, as_attributes(True), None),
    "genai attributes, on the event of details": span(
        1, 2, MODEL, None, [("gen_ai.client.inference.operation.details", as_attributes(True))]
    ),
    "genai events": span(1, 2, MODEL, None, events()),
    "genai events, packed": span(1, 2, MODEL, None, events("gen_ai.event.content")),
    "openinference": span(1, 2, openinference(), None),
    "traceloop": span(1, 2, traceloop(), None),
}


@pytest.mark.parametrize("name", list(VOCABULARIES))
def test_every_vocabulary_gives_the_same_run(name: str) -> None:
    run = one(VOCABULARIES[name])
    assert messages(run) == CHAT
    assert (run.model, run.agent, run.status) == ("some-model", "library", "completed")
    if "events" not in name:
        assert run.tools == (TOOL,)


def test_events_that_come_as_log_records_belong_to_their_span() -> None:
    logs = [
        {
            "timeUnixNano": str(1767323047 * 10**9 + index),
            "eventName": name,
            "traceId": f"{1:032x}",
            "spanId": f"{2:016x}",
            "body": {"kvlistValue": {"values": attributes({**said, **whole(said)})}},
        }
        for index, (name, said) in enumerate(events())
    ]
    records = {"resourceLogs": [{"resource": {}, "scopeLogs": [{"logRecords": logs}]}]}
    # In one file or request with its span, and in one of its own.
    (run,) = read(json.dumps(request(span(1, 2, MODEL, None)) | records).encode())
    assert isinstance(run, Trajectory)
    assert (messages(run), run.model) == (CHAT, "some-model")
    (alone,) = read(json.dumps(records).encode(), signal="logs")
    assert isinstance(alone, Trajectory)
    assert (messages(alone), alone.id, alone.status) == (CHAT, run.id, "running")


def whole(said: dict[str, Any]) -> dict[str, Any]:
    return {k: json.loads(said[k]) for k in ("message", "tool_calls") if k in said}


def test_content_blocks_reasoning_and_images_are_kept() -> None:
    image = {"type": "blob", "modality": "image", "mime_type": "image/png", "content": "aGk="}
    thought = {"type": "reasoning", "content": "hm"}
    asked = [{"role": "user", "parts": [{"type": "text", "content": "what is it?"}, image]}]
    said = [{"role": "assistant", "parts": [thought, {"type": "text", "content": "A cup."}]}]
    run = one(span(1, 2, MODEL | {"gen_ai.input.messages": asked, "gen_ai.output.messages": said}, None))
    assert [m.content for m in run.messages] == ["what is it?", "A cup."]
    assert image in run.messages[0].parts
    assert thought in run.messages[1].parts


def test_a_text_that_looks_like_json_stays_as_it_was_written() -> None:
    said = [{"role": "user", "parts": [{"type": "text", "content": '{"a":  1}'}]}]
    assert one(span(1, 2, MODEL | {"gen_ai.input.messages": said}, None)).messages[0].content == '{"a":  1}'
    told = [("gen_ai.user.message", {"content": '{"a":  1}'}), ("gen_ai.choice", {"message": "[1,  2]"})]
    assert [m.content for m in one(span(1, 2, MODEL, None, told)).messages] == ['{"a":  1}', "[1,  2]"]
    value = {"openinference.span.kind": "LLM", "input.value": '{"q":  1}', "output.value": "yes"}
    assert [m.content for m in one(span(1, 2, value, None)).messages] == ['{"q":  1}', "yes"]


def test_the_longest_thread_is_the_run_and_the_others_are_kept_beside_it() -> None:
    aside = [{"role": "user", "parts": [{"type": "text", "content": "Summarize."}]}]
    reply = [{"role": "assistant", "parts": [{"type": "text", "content": "Emma is in."}]}]
    other = span(1, 9, MODEL | {"gen_ai.input.messages": aside, "gen_ai.output.messages": reply})
    run = one(*otlp_run(1, "pass"), other)
    assert messages(run) == CHAT
    (kept,) = run.metadata["otlp"]["other_threads"]
    assert [m["content"] for m in kept["messages"]] == ["Summarize.", "Emma is in."]
    assert (run.agent, run.session, run.user, run.success) == ("desk", "s", "u", True)
    assert len(run.metadata["otlp"]["usage"]) == 2


def test_the_last_tools_result_comes_from_its_own_span() -> None:
    first, tool, _, root = otlp_run(1, "pass")
    assert messages(one(first, tool, root)) == CHAT[:4]
    named = span(1, 3, {"openinference.span.kind": "TOOL", "tool.name": "find", "output.value": '{"copies": 2}'})
    assert messages(one(first, named, root)) == CHAT[:4]
    assert messages(one(first, root)) == CHAT[:3]


def test_an_error_of_the_root_is_the_runs_and_one_below_is_not() -> None:
    failed = {"status": {"code": 2, "message": "no more"}}
    first, tool, second, root = otlp_run(1, "pass")
    caught = ("exception", {"exception.type": "KeyError", "exception.message": "x"})
    root = {**root, **failed, "events": [{"name": caught[0], "attributes": attributes(caught[1])}]}
    run = one(first, tool, second, root)
    assert (run.status, run.success) == ("raised", None)
    assert run.error == {"type": "KeyError", "message": "no more", "boundary": "unknown"}
    assert one({**first, **failed}, tool, second, otlp_run(1, "pass")[3]).status == "completed"


def test_annotations_that_are_no_verdict_fail_nobody() -> None:
    named = {"annotations.0.annotation.name": "relevance", "annotations.0.annotation.score": 0.2}
    first, tool, second, _ = otlp_run(1, "pass")
    root = span(1, 1, {"openinference.span.kind": "AGENT", **named}, None)
    run = one(first, tool, second, root)
    assert (run.success, run.score) == (None, None)
    assert run.metadata["otlp"]["evaluations"] == [{"name": "relevance", "score": 0.2}]
    named |= {"annotations.1.annotation.name": "success", "annotations.1.annotation.score": 1.0}
    assert one(first, tool, second, span(1, 1, {"openinference.span.kind": "AGENT", **named}, None)).success is True


def test_json_and_protobuf_of_the_same_spans_are_the_same_runs() -> None:
    expected = read(SAMPLES["otlp"].data)
    assert list(otlp.records(protobuf(), "application/x-protobuf")) == expected
    # Other spellings of JSON: snake_case, names of enumerations, numbers as numbers, ids in base64.
    json_format = pytest.importorskip("google.protobuf.json_format")
    trace_service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    message = trace_service.ExportTraceServiceRequest.FromString(protobuf())
    snake = json_format.MessageToJson(message, preserving_proto_field_name=True).encode()
    assert read(snake) == expected


def test_files_are_read_as_json_lines_and_protobuf_alike(tmp_path: Path) -> None:
    spans = [*otlp_run(1, "pass"), *otlp_run(2, "fail")]
    shuffled = random.Random(0).sample(spans, len(spans))
    data = protobuf()
    files = {
        "one.json": SAMPLES["otlp"].data,
        "pretty.json": json.dumps(SAMPLES["otlp"].document, indent=1).encode(),
        "list.json": json.dumps([request(s) for s in spans]).encode(),
        "lines.jsonl": b"\n".join(body(s) for s in shuffled),
        "one.pb": data,
        "delimited.pb": len(data).to_bytes(4) + data + (0).to_bytes(4),
    }
    found = {}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        runs = [r for r in read_file(FORMATS["otlp"], tmp_path / name, Options()) if isinstance(r, Trajectory)]
        found[name] = {r.id: r for r in runs}
    assert len(found["one.json"]) == 2
    assert {r.status for r in found["one.json"].values()} == {"completed"}
    for name, runs in found.items():
        assert runs == found["one.json"], name


def test_protobuf_without_its_package_is_a_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith(("opentelemetry", "google.protobuf")):
            raise ImportError(f"No module named {name!r}")
        return real(name, *rest)

    data = protobuf()
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(TraceError, match="cannot be read here") as caught:
        list(otlp.records(data, "application/x-protobuf"))
    assert "trace-sdk-worker[otel]" in caught.value.fix
    (tmp_path / "x.pb").write_bytes(data)
    with pytest.raises(TraceError, match="cannot be read here"):
        list(read_file(FORMATS["otlp"], tmp_path / "x.pb", Options()))
    # JSON needs nothing.
    assert len(read(SAMPLES["otlp"].data)) == 2


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        (b"", "application/json"),
        (b"{", "application/json"),
        (b"[]", "application/json"),
        (b"{}", "application/json"),
        (b'{"resourceSpans": 5}', "application/json"),
        (b"\xff\xff", "application/x-protobuf"),
        (b"{}", "text/plain"),
        (b"{}", ""),
    ],
)
def test_a_body_that_is_no_request_is_one_clear_error(payload: bytes, kind: str) -> None:
    with pytest.raises(TraceError, match="not an OTLP request"):
        list(otlp.records(payload, kind))


def test_a_broken_span_is_named_its_trace_is_left_out_and_the_others_are_read() -> None:
    broken = [{**s, "spanId": "zz"} if i == 1 else s for i, s in enumerate(otlp_run(2, "fail"))]
    found = read(body(*otlp_run(1, "pass"), *broken, {"traceId": 7}))
    assert [type(f) for f in found] == [BrokenRecord, BrokenRecord, Trajectory]
    first, second = found[0], found[1]
    assert isinstance(first, BrokenRecord)
    assert isinstance(second, BrokenRecord)
    assert first.position == f"trace {2:032x}, resourceSpans[0].scopeSpans[0].spans[5]"
    assert "'zz' is not an id of 8 bytes" in first.reason
    assert second.position == "resourceSpans[0].scopeSpans[0].spans[8]"
    bad = span(3, 2, MODEL | {"gen_ai.input.messages": [{"role": "nobody", "parts": []}]}, None)
    (only,) = read(body(bad))
    assert isinstance(only, BrokenRecord)
    assert f"span {2:016x}: gen_ai.input.messages[0]: message role 'nobody'" in only.reason


def test_traces_without_a_word_about_models_are_left_out(tmp_path: Path) -> None:
    web = span(7, 1, {"http.request.method": "GET"}, None)
    assert read(body(web)) == []
    assert [r.id for r in read(body(web, *otlp_run(1, "pass"))) if isinstance(r, Trajectory)] == [
        one(*otlp_run(1, "pass")).id
    ]
    (tmp_path / "web.json").write_bytes(body(web))
    with pytest.raises(TraceError, match="no span in it is about a model"):
        list(read_file(FORMATS["otlp"], tmp_path / "web.json", Options()))


def test_a_file_whose_content_was_not_captured_says_what_to_set(tmp_path: Path) -> None:
    (tmp_path / "silent.json").write_bytes(body(span(1, 2, MODEL, None)))
    (record,) = read_file(FORMATS["otlp"], tmp_path / "silent.json", Options())
    assert isinstance(record, BrokenRecord)
    assert "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT" in record.reason


def stored(db: Database) -> list[Trajectory]:
    return list(trajectories.load(db))


@pytest.mark.parametrize("order", random.Random(1).sample(list(itertools.permutations(range(4))), 6), ids=str)
def test_a_run_that_is_delivered_in_parts_is_the_whole_run_in_any_order(order: tuple[int, ...], tmp_path: Path) -> None:
    spans = otlp_run(1, "pass")
    with open_database(home=tmp_path) as db:
        for index in order:
            report, broken = otlp.receive(db, body(spans[index]))
            assert not broken
        assert report.added == 0
        assert stored(db) == [one(*spans)]
        assert [(o.success, o.source) for o in trajectories.outcomes(db, stored(db)[0].id)] == [(True, "import:otlp")]


def test_until_its_root_has_come_a_run_is_running_and_a_repeated_request_changes_nothing(tmp_path: Path) -> None:
    first, tool, second, root = otlp_run(1, "pass")
    with open_database(home=tmp_path) as db:
        for _ in range(2):
            otlp.receive(db, body(first))
        (run,) = stored(db)
        assert (run.status, run.agent, messages(run)) == ("running", "library", CHAT[:3])
        otlp.receive(db, body(tool))
        assert messages(stored(db)[0]) == CHAT[:4]
        otlp.receive(db, body(second, root))
        (run,) = stored(db)
        assert (run.status, run.agent, run.session, messages(run)) == ("completed", "desk", "s", CHAT)
        for late in (first, tool, second, root):
            assert otlp.receive(db, body(late))[0] == trajectories.SaveReport(0, 1)
        assert stored(db) == [run]
        assert len(trajectories.outcomes(db, run.id)) == 1


def test_a_web_servers_root_ends_the_run_and_adds_none_of_its_own(tmp_path: Path) -> None:
    first, _, _, _ = otlp_run(1, "pass")
    web = span(1, 1, {"http.request.method": "POST"}, None)
    with open_database(home=tmp_path) as db:
        otlp.receive(db, body(first))
        otlp.receive(db, body(web, span(5, 1, {"http.request.method": "GET"}, None)))
        (run,) = stored(db)
        assert (run.status, run.agent) == ("completed", "library")


def test_a_root_with_a_parent_in_another_process_is_a_root() -> None:
    first, tool, second, root = otlp_run(1, "pass")
    caller = {**root, "parentSpanId": f"{77:016x}"}
    assert one(first, tool, second, caller).status == "running"
    assert one(first, tool, second, {**caller, "flags": 0x300}).status == "completed"


def test_files_and_requests_of_one_trace_meet_and_what_a_person_said_stays(tmp_path: Path) -> None:
    first, tool, second, root = otlp_run(1, "pass")
    (tmp_path / "a.json").write_bytes(body(first, tool))
    (tmp_path / "b.json").write_bytes(body(second, root))
    options = Options(agent="mine", model="given", reference=True)
    format = FORMATS["otlp"]
    with open_database(home=tmp_path) as db:
        for file, added in (("a.json", 1), ("b.json", 0), ("a.json", 0)):
            runs = (r for r in read_file(format, tmp_path / file, options) if isinstance(r, Trajectory))
            assert format.save(db, runs, "import:otlp").added == added
        (run,) = stored(db)
    assert (run.agent, run.model, run.reference, run.status, messages(run)) == (
        "mine",
        "given",
        True,
        "completed",
        CHAT,
    )


def test_a_verdict_given_meanwhile_is_not_overruled(tmp_path: Path) -> None:
    spans = otlp_run(1, "pass")
    with open_database(home=tmp_path) as db:
        otlp.receive(db, body(*spans[:3]))
        (run,) = stored(db)
        trajectories.add_outcome(db, run.id, False, source="user", reason="wrong book")
        otlp.receive(db, body(spans[3]))
        (run,) = stored(db)
        assert run.success is False
        assert {o.source for o in trajectories.outcomes(db, run.id)} == {"user", "import:otlp"}


def test_messages_of_many_calls_are_not_stored_twice(tmp_path: Path) -> None:
    # An agent of 60 turns sends its history 60 times over; the run is it once.
    history = [Message("user" if i % 2 == 0 else "assistant", f"turn {i} " + "x" * 200) for i in range(120)]
    parts = [{"role": m.role, "parts": [{"type": "text", "content": m.content}]} for m in history]
    spans = [
        span(
            1,
            n + 2,
            MODEL | {"gen_ai.input.messages": parts[: 2 * n + 1], "gen_ai.output.messages": [parts[2 * n + 1]]},
        )
        for n in range(60)
    ]
    run = one(*spans, otlp_run(1, "pass")[3])
    assert run.messages == tuple(history)
    assert "other_threads" not in run.metadata["otlp"]
    assert len(json.dumps(run.metadata)) < 5000
