"""`import`, `status`, `trajectories` and `feedback`: what they print, and how they end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from storage import tables
from storage.database import open_database
from storage.errors import TraceError
from storage.ids import new_id
from tests.loop.commands.line import document, run, sample
from tests.storage.importers.samples import SAMPLES
from tests.storage.spool import Writer, call, end, outcome, says, start, tool, user

pytestmark = pytest.mark.usefixtures("home")


def test_import_says_what_was_added_and_adds_nothing_twice(tmp_path: Path) -> None:
    path = sample(tmp_path, "tau-bench")
    first = document("import", "tau-bench", path, "--agent", "desk")
    assert first == {
        "added": 3,
        "present": 0,
        "agents": ["desk"],
        "succeeded": 1,
        "failed": 2,
        "unknown": 0,
        "broken": [],
        "unreadable": [],
    }
    again = document("import", "tau-bench", path, "--agent", "desk")
    assert (again["added"], again["present"]) == (0, 3)
    assert "agent desk: 1 succeeded, 2 failed, 0 unknown" in run("import", "tau-bench", path, "--agent", "desk").stdout


def test_tools_and_reference_reach_the_runs(tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([{"type": "function", "function": {"name": "find"}}]))
    document("import", "tau-bench", sample(tmp_path, "tau-bench"), "--reference", "--tools", tools)
    rows = document("trajectories", "list", "--reference")["trajectories"]
    assert len(rows) == 3
    assert document("trajectories", "list", "--no-reference")["trajectories"] == []
    shown = document("trajectories", "show", rows[0]["id"])
    assert [t["function"]["name"] for t in shown["tools"]] == ["find", "think"]
    assert shown["reference"] is True


def test_broken_records_are_named_the_rest_is_imported_and_the_exit_code_is_3(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_bytes(SAMPLES["openai"].data + b'{"messages": 5}\n')
    result = run("import", "openai", path)
    assert result.exit_code == 3
    assert "broken: runs.jsonl, line 5: messages is a number, not a list" in result.stderr
    assert "4 trajectories added" in result.stdout
    found = document("import", "openai", path, exit_code=3)
    assert found["broken"] == [
        {"file": "runs.jsonl", "position": "line 5", "reason": "messages is a number, not a list"}
    ]


def test_of_several_files_those_that_can_be_read_are_imported(tmp_path: Path) -> None:
    result = run("import", "openai", tmp_path / "missing.jsonl", sample(tmp_path, "openai"))
    assert result.exit_code == 3
    assert "missing.jsonl" in result.stderr
    assert len(document("trajectories", "list")["trajectories"]) == 4


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"messages": 1}\n'])
def test_a_file_without_a_single_run_is_an_error_that_names_it(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "x.jsonl"
    if content is not None:
        path.write_bytes(content)
    result = run("import", "openai", path)
    assert isinstance(result.exception, TraceError)
    assert str(path) in str(result.exception)


@pytest.mark.parametrize(
    "arguments",
    [
        ("import", "nonsense", "x"),
        ("import", "openai"),
        ("trajectories", "list", "--outcome", "maybe"),
        ("trajectories", "list", "--limit", "0"),
        ("trajectories", "lost"),
        ("trajectories", "show"),
        ("trajectories", "show", "x", "--session", "s"),
        ("feedback", "x", "maybe"),
        ("feedback", "x", "success", "--score", "2"),
        ("status", "--nonsense"),
    ],
)
def test_wrong_usage_ends_with_2(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 2


def test_lists_filter_by_what_they_say(home: Path, tmp_path: Path) -> None:
    document("import", "openai", sample(tmp_path, "openai"), "--agent", "a")
    document("import", "intercode", sample(tmp_path, "intercode"), "--agent", "b")

    def count(*arguments: str) -> int:
        return len(document("trajectories", "list", *arguments)["trajectories"])

    assert count() == 6
    assert count("--agent", "a") == 4
    assert count("--outcome", "success") == 3
    assert count("--outcome", "failure") == 2
    assert count("--outcome", "unknown") == 1
    assert count("--agent", "b", "--outcome", "success") == 1
    assert count("--session", "s") == 1
    assert count("--task", "1") == 2
    assert count("--limit", "2") == 2
    assert count("--agent", "nobody") == 0
    text = run("trajectories", "list", "--agent", "b").stdout
    assert "shell_fs_1/0" in text
    assert "failure" in text


def test_show_prints_everything_that_is_stored(home: Path) -> None:
    id, child = new_id(), new_id()
    asked = [user("where is O-1?")]
    Writer(home).write(
        start(id, task="t", session="s", user="u", tags=["night"], input={"q": 1}, version="2"),
        call(id, asked, says("\ud800 shipped"), policy="3/base", tools=[{"function": {"name": "find"}}]),
        tool(id, "find", {"status": "shipped"}),
        {"v": 1, "type": "note", "id": id, "ts": 1002.5, "data": {"shift": "late"}},
        outcome(id, False, score=0.25, reason="wrong"),
        end(id, output="done"),
        start(child, parent=id, root=id),
    )
    shown = document("trajectories", "show", id)
    assert (shown["task"], shown["session"], shown["user"], shown["tags"]) == ("t", "s", "u", ["night"])
    assert (shown["input"], shown["output"], shown["version"]) == ({"q": 1}, "done", "2")
    assert (shown["success"], shown["score"], shown["policy"]) == (False, 0.25, "3/base")
    assert shown["children"] == [child]
    assert shown["messages"] == [*asked, says("\ud800 shipped")]
    (made,) = shown["calls"]
    assert made["request"] == {
        "messages": asked,
        "tools": [{"function": {"name": "find"}}],
        "params": {"temperature": 0},
    }
    assert made["response"]["message"] == says("\ud800 shipped")
    assert made["response"]["usage"] == {"prompt_tokens": 10, "completion_tokens": 2}
    assert [e["data"].get("result") or e["data"]["shift"] for e in shown["events"]] == [{"status": "shipped"}, "late"]
    assert [o["reason"] for o in shown["outcomes"]] == ["wrong"]
    text = run("trajectories", "show", id)
    assert text.exit_code == 0
    for part in ("where is O-1?", "shipped", "night", "wrong", "call 0", "3/base", "find"):
        assert part in text.stdout


def test_a_conversation_is_shown_and_exported_whole_in_the_order_of_its_turns(home: Path, tmp_path: Path) -> None:
    writer = Writer(home)
    turns = [("second", 2000.0, "s-1"), ("first", 1000.0, "s-1"), ("elsewhere", 1500.0, "s-2")]
    for text, at, session in turns:
        id = new_id()
        writer.write(start(id, at, session=session), call(id, [user(text)], says(f"{text}, yes"), ts=at), end(id))
    writer.die()
    shown = document("trajectories", "show", "--session", "s-1")
    assert shown["session"] == "s-1"
    assert [run["messages"][0]["content"] for run in shown["trajectories"]] == ["first", "second"]
    text = run("trajectories", "show", "--session", "s-1").stdout
    assert text.index("first, yes") < text.index("second, yes")
    assert "elsewhere" not in text
    out = tmp_path / "s-1.jsonl"
    assert run("export", "openai", out, "--session", "s-1").exit_code == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(line["messages"][0]["content"], line["session"]) for line in lines] == [
        ("first", "s-1"),
        ("second", "s-1"),
    ]
    missing = run("trajectories", "show", "--session", "nobody's")
    assert isinstance(missing.exception, TraceError)


def test_feedback_counts_from_now_on_and_the_history_is_kept(home: Path) -> None:
    id = new_id()
    Writer(home).write(start(id), outcome(id, True, ts=1001.0), end(id))
    given = document("feedback", id, "failure", "--score", 0.1, "--reason", "refunded twice", "--source", "qa")
    assert (given["id"], given["success"], given["score"]) == (id, False, 0.1)
    assert [(o["success"], o["source"], o["reason"]) for o in given["outcomes"]] == [
        (True, "agent", None),
        (False, "qa", "refunded twice"),
    ]
    assert document("trajectories", "list", "--outcome", "failure")["trajectories"][0]["id"] == id
    assert "unknown, before that failure" in run("feedback", id, "unknown").stdout
    assert document("trajectories", "show", id)["success"] is None


def test_an_id_that_does_not_exist_is_an_error(home: Path) -> None:
    for arguments in (("feedback", "nope", "success"), ("trajectories", "show", "nope")):
        result = run(*arguments)
        assert isinstance(result.exception, TraceError)
        assert "no trajectory has the id nope" in str(result.exception)
        assert result.exception.fix


def test_status_shows_counts_and_what_serves(home: Path, tmp_path: Path) -> None:
    document("import", "openai", sample(tmp_path, "openai"), "--agent", "desk")
    reference = tmp_path / "people.jsonl"
    reference.write_text(json.dumps({"messages": [user("x"), says("y")], "outcome": True}) + "\n")
    document("import", "openai", reference, "--agent", "desk", "--reference")
    live = new_id()
    writer = Writer(home)
    writer.write(start(live, agent="other"))
    with open_database(home=home) as db, db.transaction() as session:
        session.add(tables.Capability(agent="desk", name="look-up before change", state="selected"))
        session.add(tables.Adapter(name="lookup", version=3, path="p", sha256="s", base="b", state="active"))
        session.add(tables.Policy(version=2, base="b", adapters=["lookup@3"], state="active", activated_at=5.0))
        session.add(tables.Policy(version=3, base="b", state="candidate"))
        session.add(tables.Cycle(agent="desk", state="running", stage="train"))
    shown = document("status")
    desk, other = shown["agents"]
    assert {k: desk[k] for k in ("id", "trajectories", "succeeded", "failed", "unknown", "reference")} == {
        "id": "desk",
        "trajectories": 5,
        "succeeded": 2,
        "failed": 1,
        "unknown": 1,
        "reference": 1,
    }
    assert (other["trajectories"], other["unknown"], other["last_at"]) == (1, 1, 1000.0)
    assert shown["capabilities"][0]["name"] == "look-up before change"
    assert shown["adapters"][0]["name"] == "lookup@3"
    assert shown["policy"]["version"] == 2
    assert (shown["last_cycle"]["state"], shown["last_cycle"]["stage"]) == ("running", "train")
    assert shown["spool"] == {"segments": 1, "bytes": shown["spool"]["bytes"], "broken": 0}
    text = run("status").stdout
    for part in ("desk", "look-up before change", "lookup@3", "running in train", "1 open segments"):
        assert part in text
    writer.die()
    assert document("status")["spool"]["segments"] == 0


def test_an_empty_home_is_no_error() -> None:
    assert document("status")["agents"] == []
    assert "nothing recorded yet" in run("status").stdout
    assert "no trajectories match" in run("trajectories", "list").stdout


def command(home: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TRACE_HOME": str(home)}
    line = [sys.executable, "-m", "loop.commands.app", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, env=environment, check=False)


def test_errors_are_one_or_two_lines_on_stderr_and_end_with_1(home: Path) -> None:
    home.mkdir()
    (home / "trace.db").write_bytes(b"x" * 4096)
    result = command(home, "status", "--json")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("error: this file is not a database")
    assert len(result.stderr.strip().splitlines()) <= 2


def test_export_writes_what_import_reads_and_only_what_was_asked_for(tmp_path: Path) -> None:
    document("import", "tau-bench", sample(tmp_path, "tau-bench"), "--agent", "desk")
    lines = tmp_path / "out.jsonl"
    said = run("export", "openai", lines, "--outcome", "failure")
    assert said.exit_code == 0
    # One of the two failures crashed before anything was said.
    assert "1 runs written" in said.output
    assert "1 without any message" in said.output
    again = document("import", "openai", lines, "--agent", "copy")
    assert (again["added"], again["failed"]) == (1, 1)
    folder = tmp_path / "atif"
    assert run("export", "atif", folder, "--agent", "desk").exit_code == 0
    files = sorted(folder.iterdir())
    assert len(files) == 2
    assert document("import", "atif", *files, "--agent", "third")["added"] == 2
    assert len(run("export", "openai", "-", "--agent", "desk").stdout.splitlines()) == 2


def test_export_of_nothing_and_into_nowhere_are_clear_errors(tmp_path: Path) -> None:
    for arguments in (["openai", tmp_path / "x"], ["atif", tmp_path / "folder"]):
        assert isinstance(run("export", *arguments).exception, TraceError)
    document("import", "tau-bench", sample(tmp_path, "tau-bench"), "--agent", "desk")
    (tmp_path / "file").write_text("")
    nowhere = run("export", "openai", tmp_path / "file" / "runs.jsonl")
    assert isinstance(nowhere.exception, TraceError)
    assert "cannot write" in str(nowhere.exception)
    unknown = run("export", "openai", tmp_path / "x", "--id", "no-such-run")
    assert isinstance(unknown.exception, TraceError)
    assert not (tmp_path / "x").exists()
    assert run("export", "atif", "-").exit_code == 2
    assert run("export", "csv", tmp_path / "x").exit_code == 2


def test_prune_deletes_what_it_was_told_and_says_how_many(home: Path) -> None:
    writer = Writer(home)
    kept, gone = new_id(), new_id()
    for id, who in ((kept, "u1"), (gone, "u2")):
        writer.write(start(id, user=who), call(id, [user("hello")], says("hi")), end(id))
    writer.die()
    assert document("prune", "--user", "u2", "--dry-run")["matching"] == 1
    assert document("prune", "--user", "u2")["deleted"] == 1
    # The spool does not bring it back.
    assert [row["id"] for row in document("trajectories", "list")["trajectories"]] == [kept]
    assert document("prune", "--older-than", "1d")["deleted"] == 1
    assert document("prune", "--user", "nobody")["matching"] == 0


def test_prune_wants_to_know_which_runs(tmp_path: Path) -> None:
    assert run("prune").exit_code == 2
    assert run("prune", "--agent", "desk").exit_code == 2
    assert run("prune", "--older-than", "soon").exit_code == 2
    unknown = run("prune", "--id", "no-such-run")
    assert isinstance(unknown.exception, TraceError)
