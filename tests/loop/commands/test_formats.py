"""`import` and `export` of every format, and that `trajectories show` leaves nothing of a run out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from storage import tables
from storage.content import ContentWriter
from storage.database import open_database
from storage.importers import FORMATS
from tests.loop.commands.line import document, run, sample
from tests.storage.importers.samples import SAMPLES, otlp_run, request

ALL = pytest.mark.parametrize("name", list(FORMATS))


pytestmark = pytest.mark.usefixtures("home")


@ALL
def test_every_format_takes_tools_agent_and_reference_and_adds_nothing_twice(name: str, tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([{"type": "function", "function": {"name": "mine"}}]))
    line = ("import", name, sample(tmp_path, name), "--tools", tools, "--agent", "desk", "--reference")
    first = document(*line)
    assert (first["added"], first["agents"], first["broken"]) == (SAMPLES[name].runs, ["desk"], [])
    again = document(*line)
    assert (again["added"], again["present"]) == (0, SAMPLES[name].runs)
    rows = document("trajectories", "list", "--agent", "desk", "--reference")["trajectories"]
    assert len(rows) == SAMPLES[name].runs
    assert all(document("trajectories", "show", row["id"])["tools"] for row in rows)


@ALL
@pytest.mark.parametrize("form", ["openai", "otlp", "atif"])
def test_what_every_format_brought_in_goes_out_and_comes_in_again(name: str, form: str, tmp_path: Path) -> None:
    document("import", name, sample(tmp_path, name), "--agent", "first")
    out = tmp_path / ("out" if form == "atif" else "out.jsonl")
    assert run("export", form, out, "--agent", "first").exit_code == 0
    files = sorted(out.iterdir()) if form == "atif" else [out]
    document("import", form, *files, "--agent", "second")

    def told(agent: str) -> list[Any]:
        rows = document("trajectories", "list", "--agent", agent)["trajectories"]
        shown = [document("trajectories", "show", row["id"]) for row in rows if row["messages"]]
        kept = ("task", "model", "session", "success", "score", "tools")
        # ATIF holds arguments as objects, so the spaces between them are not part of it.
        return sorted((json.dumps([[_plain(m) for m in s["messages"]], *(s[k] for k in kept)]) for s in shown), key=str)

    assert told("second") == told("first")


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    calls = [
        {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    content = message["content"]
    if isinstance(content, list) and len(content) == 1 and set(content[0]) == {"type", "text"}:
        content = content[0]["text"]
    return {**{k: v for k, v in message.items() if k != "name"}, "content": content, "tool_calls": calls}


def test_two_records_with_one_task_id_in_different_files_are_two(tmp_path: Path) -> None:
    for file, said in (("a.jsonl", "yes"), ("b.jsonl", "no")):
        record = {"messages": [{"role": "user", "content": said}], "task_id": "t1", "outcome": said == "yes"}
        (tmp_path / file).write_text(json.dumps(record) + "\n")
        assert document("import", "openai", tmp_path / file, "--agent", "desk")["added"] == 1
    rows = document("trajectories", "list", "--task", "t1")["trajectories"]
    assert sorted(row["success"] for row in rows) == [False, True]


def test_a_broken_trace_is_named_the_others_come_in_and_the_exit_code_is_3(tmp_path: Path) -> None:
    spans = [*otlp_run(1, "pass"), *otlp_run(2, "fail")]
    spans[5]["spanId"] = "zz"
    (tmp_path / "t.jsonl").write_text("\n".join(json.dumps(request(s)) for s in spans))
    found = document("import", "otlp", tmp_path / "t.jsonl", exit_code=3)
    assert (found["added"], found["succeeded"]) == (1, 1)
    assert [(b["file"], b["position"]) for b in found["broken"]] == [
        ("t.jsonl", f"trace {2:032x}, line 6, resourceSpans[0].scopeSpans[0].spans[0]")
    ]


def test_a_trace_that_comes_in_two_files_is_one_run(tmp_path: Path) -> None:
    spans = otlp_run(1, "pass")
    for file, part, added in (("a.json", spans[:1], 1), ("b.json", spans[1:], 0)):
        (tmp_path / file).write_text(json.dumps(request(*part)))
        assert document("import", "otlp", tmp_path / file)["added"] == added
    (row,) = document("trajectories", "list")["trajectories"]
    assert (row["agent"], row["messages"], row["success"]) == ("desk", 5, True)


# Columns that stand elsewhere in the document, or repeat it.
_SHOWN_AS = {
    "trajectory": {"state": "status", "details": "metadata", "message_count": "messages", "messages": "messages"},
    "model_call": {
        "trajectory": "id",
        "messages": "request",
        "request_count": "request",
        "tools": "request",
        "params": "request",
    },
    "run_event": {"id": "kind", "trajectory": "kind"},
    "outcome": {"id": "source", "trajectory": "source"},
}
# Where ingest reads on. It is no property of the run, and empty once the run has ended.
_BOOKKEEPING = {"segment"}


def test_show_prints_every_column_of_every_table_of_a_run(home: Path) -> None:
    asked = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    tools = [{"type": "function", "function": {"name": "find"}}]
    with open_database(home=home) as db:
        with db.connection() as connection:
            content = ContentWriter(connection)
            messages, tool_set = content.messages(asked), content.tools(tools)
            content.flush()
        with db.transaction() as session:
            session.add(tables.Agent(name="desk"))
            session.add(tables.Session(id="s"))
            session.add(tables.User(id="u"))
            session.flush()
            row = tables.Trajectory(**_filled(tables.Trajectory), state="running")
            row.id, row.agent, row.session, row.user, row.root = "r", "desk", "s", "u", "root"
            row.messages, row.tools, row.message_count = messages, tool_set, 2
            session.add(row)
            session.flush()
            row.state = "completed"
            call = tables.ModelCall(**_filled(tables.ModelCall))
            call.trajectory, call.messages, call.tools, call.request_count = "r", messages, tool_set, 1
            event = tables.RunEvent(trajectory="r", kind="note", at=5.5, data={"x": 1})
            outcome = tables.Outcome(trajectory="r", success=True, score=0.5, source="qa", reason="w", at=7.5)
            session.add_all([call, event, outcome, tables.Tag(tag="night", trajectory="r")])
            session.add(tables.Trajectory(id="child", agent="desk", source="spool", parent="r"))
    shown = document("trajectories", "show", "r")
    parts = {
        "trajectory": (tables.Trajectory, shown),
        "model_call": (tables.ModelCall, shown["calls"][0]),
        "run_event": (tables.RunEvent, shown["events"][0]),
        "outcome": (tables.Outcome, shown["outcomes"][0]),
    }
    for name, (table, part) in parts.items():
        for column in table.model_fields:
            if column in _BOOKKEEPING:
                continue
            assert _SHOWN_AS[name].get(column, column) in part, (name, column)
    filled = _filled(tables.Trajectory)
    plain = [
        c for c in filled if c in shown and c not in ("id", "agent", "session", "user", "root", "tools", "messages")
    ]
    assert {c: shown[c] for c in plain} == {c: filled[c] for c in plain}
    assert (shown["messages"], shown["tools"], shown["metadata"]) == (asked, tools, filled["details"])
    assert (shown["tags"], shown["children"], shown["status"]) == (["night"], ["child"], "completed")
    (call_shown,) = shown["calls"]
    filled = _filled(tables.ModelCall)
    assert call_shown["request"] == {"messages": asked[:1], "tools": tools, "params": filled["params"]}
    assert call_shown["response"] == {"message": asked[1], **filled["response"]}
    other = [c for c in filled if c in call_shown and c not in ("tools", "messages", "response", "params")]
    assert {c: call_shown[c] for c in other} == {c: filled[c] for c in other}
    assert shown["events"] == [{"kind": "note", "at": 5.5, "data": {"x": 1}}]
    assert [(o["success"], o["score"], o["source"], o["reason"], o["at"]) for o in shown["outcomes"]] == [
        (True, 0.5, "qa", "w", 7.5)
    ]


def _filled(table: type[tables.Row]) -> dict[str, Any]:
    """A value of its own for every column."""
    found: dict[str, Any] = {}
    for number, (name, field) in enumerate(table.model_fields.items()):
        kind = str(field.annotation)
        if name == "state":
            continue
        if "bool" in kind:
            found[name] = True
        elif "int" in kind or "float" in kind:
            found[name] = number + 1
        elif "str" in kind:
            found[name] = f"{name} {number}"
        else:
            found[name] = {name: number}
    return found
