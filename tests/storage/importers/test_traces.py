"""Langfuse, LangSmith and SWE-agent: what their files become, in each of the forms that they come in."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from storage.importers import FORMATS
from storage.importers.contract import BrokenRecord, Options, Source, read
from storage.trajectory import Trajectory, message_to_dict
from tests.storage.importers.samples import SAMPLES
from tests.storage.importers.test_importers import runs
from tests.storage.importers.test_otlp import CHAT


def contents(run: Trajectory) -> list[Any]:
    return [(m.role, m.content, [(c.id, c.name, c.arguments) for c in m.tool_calls]) for m in run.messages]


EXPECTED = [(m["role"], m["content"], [("a", "find", {"title": "Emma"})] if m.get("tool_calls") else []) for m in CHAT]


def records(name: str, data: bytes) -> list[Trajectory | BrokenRecord]:
    return list(read(FORMATS[name], Source(SAMPLES[name].file, data), Options()))


def test_langfuse_takes_messages_tools_and_who_it_was_for() -> None:
    good, bad = runs("langfuse")
    assert contents(good) == contents(bad) == EXPECTED
    assert (good.agent, good.model, good.session, good.user, good.version) == ("desk", "some-model", "s", "u", "3")
    assert (good.tags, good.started_at) == (("night",), 1767323045.0)
    assert [t["function"]["name"] for t in good.tools] == ["find"]
    assert (good.success, bad.success) == (True, False)
    assert [s["name"] for s in good.metadata["scores"]] == ["success", "relevance"]
    assert good.metadata["usage"] == {"t1-1": {"prompt_tokens": 10, "completion_tokens": 2}}


def test_langfuse_reads_pages_downloads_lines_and_rows_of_observations() -> None:
    traces = SAMPLES["langfuse"].document
    expected = [contents(r) for r in runs("langfuse")]
    texts = copy.deepcopy(traces)
    for trace in texts:
        for observation in trace["observations"]:
            for key in ("input", "output"):
                if not isinstance(observation[key], str):
                    observation[key] = json.dumps(observation[key])
    rows = [o for trace in traces for o in trace["observations"]]
    forms = {
        "page": json.dumps({"data": traces, "meta": {"page": 1}}).encode(),
        "lines": b"\n".join(json.dumps(t).encode() for t in traces),
        "texts": json.dumps(texts).encode(),
        "rows": b"\n".join(json.dumps(o).encode() for o in rows),
    }
    for name, data in forms.items():
        assert [contents(r) for r in runs("langfuse", data)] == expected, name
    for trace, whole in zip(texts, expected, strict=True):
        observations = trace["observations"]
        download = {"trace": {k: v for k, v in trace.items() if k != "observations"}, "observations": observations}
        (run,) = runs("langfuse", json.dumps(download).encode())
        assert contents(run) == whole


def test_langfuse_completes_a_run_that_ends_with_a_tool_and_marks_a_failed_root() -> None:
    trace = copy.deepcopy(SAMPLES["langfuse"].document[0])
    trace["observations"] = trace["observations"][:3]
    trace["observations"][0] |= {"level": "ERROR", "statusMessage": "gave up"}
    (run,) = runs("langfuse", json.dumps(trace).encode())
    assert [(s.call.name, s.result) for s in run.steps()] == [("find", '{"copies":2}')]
    assert (run.status, run.error) == ("raised", {"type": "Error", "message": "gave up", "boundary": "unknown"})


def test_langfuse_traces_without_generations_are_what_went_in_and_came_out() -> None:
    trace = {"id": "t", "name": "faq", "timestamp": "2026-01-02T03:04:05Z", "input": "hours?", "output": {"at": 9}}
    (run,) = runs("langfuse", json.dumps(trace | {"observations": [], "scores": []}).encode())
    assert [message_to_dict(m) for m in run.messages] == [
        {"role": "user", "content": "hours?"},
        {"role": "assistant", "content": '{"at":9}'},
    ]
    (listed,) = records("langfuse", json.dumps([trace | {"observations": ["o1"]}]).encode())
    assert isinstance(listed, BrokenRecord)
    assert "ids only" in listed.reason


def test_langsmith_puts_a_trace_together_from_its_runs() -> None:
    good, bad = runs("langsmith")
    assert contents(good) == contents(bad) == EXPECTED
    assert (good.agent, good.model, good.session, good.user) == ("desk", "some-model", "s", "u")
    assert (good.success, bad.success, good.tags) == (True, False, ("night",))
    assert good.metadata["feedback"] == {"success": 1.0, "relevance": 0.4}
    assert [t["function"]["name"] for t in good.tools] == ["find"]
    assert good.started_at == 1767323045.0


def test_langsmith_reads_lists_nested_runs_and_plain_messages() -> None:
    lines = copy.deepcopy(SAMPLES["langsmith"].document)
    expected = [contents(r) for r in runs("langsmith")]
    assert [contents(r) for r in runs("langsmith", json.dumps({"runs": lines}).encode())] == expected
    nested = [{**lines[i], "child_runs": lines[i + 1 : i + 4]} for i in (0, 4)]
    assert [contents(r) for r in runs("langsmith", json.dumps(nested).encode())] == expected
    plain = lines[:4]
    plain[1]["inputs"], plain[1]["outputs"] = {"messages": CHAT[:2]}, {"choices": [{"message": CHAT[2]}]}
    plain[3]["inputs"], plain[3]["outputs"] = {"messages": CHAT[:4]}, CHAT[4]
    assert [contents(r) for r in runs("langsmith", json.dumps(plain).encode())] == expected[:1]
    # As of a graph: its state, and no model call of its own.
    state = {**lines[0], "inputs": {"messages": CHAT[:2]}, "outputs": {"messages": CHAT}}
    (run,) = runs("langsmith", json.dumps([state]).encode())
    assert contents(run) == EXPECTED


def test_langsmith_marks_errors_and_names_lines_that_are_no_runs() -> None:
    lines = copy.deepcopy(SAMPLES["langsmith"].document)
    lines[0] |= {"error": "ValueError('no such book')", "status": "error"}
    lines[4]["status"] = "pending"
    data = b"\n".join([b"7", *(json.dumps(line).encode() for line in lines), b"{"])
    found = records("langsmith", b'{"name": "x"}\n' + data)
    broken = [r for r in found if isinstance(r, BrokenRecord)]
    assert [b.position for b in broken] == ["line 1", "line 2", "line 11"]
    raised, pending = (r for r in found if isinstance(r, Trajectory))
    assert raised.error == {"type": "ValueError", "message": "ValueError('no such book')", "boundary": "unknown"}
    assert (raised.status, pending.status) == ("raised", "aborted")


def test_swe_agent_actions_become_calls_and_demonstrations_are_left_out() -> None:
    (run,) = runs("swe-agent")
    assert [(s.call.name, s.call.arguments, s.result) for s in run.steps()] == [
        ("bash", {"command": "ls"}, "a b"),
        ("submit", {}, "diff"),
    ]
    assert [m.role for m in run.messages] == ["system", "user", "assistant", "tool", "assistant", "tool"]
    assert run.messages[2].content == "Look."
    assert (run.task, run.model, run.version) == ("library__desk-8", "some-model", "1.1.0")
    assert (run.status, run.metadata["demonstrations"], run.metadata["submission"]) == ("completed", 1, "diff")
    assert [t["function"]["name"] for t in run.tools] == ["bash"]


@pytest.mark.parametrize(
    ("ending", "status", "boundary"),
    [
        ("submitted (exit_context)", "completed", None),
        ("exit_cost", "completed", None),
        ("exit_context", "raised", "infrastructure"),
        ("exit_environment_error", "raised", "environment"),
        (None, "completed", None),
    ],
)
def test_swe_agent_knows_who_broke_off(ending: str | None, status: str, boundary: str | None) -> None:
    document = copy.deepcopy(SAMPLES["swe-agent"].document)
    document["info"]["exit_status"] = ending
    del document["info"]["resolved"]
    (run,) = runs("swe-agent", json.dumps(document).encode())
    assert (run.status, (run.error or {}).get("boundary"), run.success) == (status, boundary, None)


def test_swe_agent_files_without_history_are_read_from_their_steps() -> None:
    document = copy.deepcopy(SAMPLES["swe-agent"].document)
    del document["history"]
    (run,) = runs("swe-agent", json.dumps(document).encode())
    assert [m.role for m in run.messages] == ["system", "assistant", "tool"]
    assert [(s.call.arguments, s.result) for s in run.steps()] == [({"command": "ls"}, "a b")]
