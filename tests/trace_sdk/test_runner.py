"""The runner's protocol: what it answers for good runs, bad runs, noise and nonsense."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trace_sdk.scripted import Reply, ScriptedServer, chat
from tests.trace_sdk.spool import runs

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(lambda seen: Reply(chat(seen.body["messages"][-1]["content"].upper()))) as running:
        yield running


def talk(
    server: ScriptedServer, home: Path, target: str, requests: list[Any], concurrency: int = 1
) -> tuple[list[dict[str, Any]], subprocess.CompletedProcess[str]]:
    lines = "".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in requests)
    done = subprocess.run(
        [sys.executable, "-m", "trace_sdk.runner", target, "--concurrency", str(concurrency)],
        input=lines,
        capture_output=True,
        text=True,
        timeout=180,
        cwd=ROOT,
        env={**os.environ, "TRACE_HOME": str(home), "SCRIPTED_URL": server.url},
    )
    return [json.loads(line) for line in done.stdout.splitlines()], done


def run(id: int, text: str) -> dict[str, Any]:
    return {"op": "run", "id": id, "task": {"id": f"t{id}", "text": text}}


DESK = "tests.trace_sdk.agent_under_test:Desk"


def test_an_evaluation_is_listed_and_run_and_its_verdict_is_stored(server: ScriptedServer, tmp_path: Path) -> None:
    requests = [{"op": "suite", "split": "gate"}, run(1, "good"), run(2, "bad"), run(3, "unknown")]
    answers, done = talk(server, tmp_path, DESK, requests)
    assert done.returncode == 0, done.stderr
    assert answers[0]["tasks"] == [{"id": "gate-0", "text": "good"}, {"id": "gate-1", "text": "bad"}]
    by_id = {a["id"]: a for a in answers[1:]}
    assert [(by_id[n]["success"], by_id[n]["score"], by_id[n]["error"]) for n in (1, 2, 3)] == [
        (True, 0.5, None),
        (False, 0.5, None),
        (None, None, None),
    ]
    stored = {r.id: r for r in runs(tmp_path)}
    assert {by_id[n]["trajectory"] for n in (1, 2, 3)} == set(stored)
    good = stored[by_id[1]["trajectory"]]
    assert good.start["task"] == "t1"
    assert [(o["success"], o["score"], o["source"], o["reason"]) for o in good.outcomes] == [
        (True, 0.5, "evaluation", "compared")
    ]
    assert stored[by_id[3]["trajectory"]].outcomes == []


def test_noise_on_stdout_never_gets_between_the_answers(server: ScriptedServer, tmp_path: Path) -> None:
    answers, done = talk(server, tmp_path, DESK, [run(1, "good"), run(2, "child")])
    assert [a["id"] for a in answers] == [1, 2]
    assert "noise on stdout" in done.stderr
    assert "a child prints" in done.stderr


def test_errors_of_a_run_are_data_and_the_next_run_goes_on(server: ScriptedServer, tmp_path: Path) -> None:
    requests = [run(1, "raise"), run(2, "exit"), run(3, "nonsense"), "{torn", {"op": "fly"}, run(4, "good")]
    answers, done = talk(server, tmp_path, DESK, requests)
    assert done.returncode == 0, done.stderr
    by_id = {a.get("id"): a for a in answers if "trajectory" in a}
    assert by_id[1]["error"] == {"type": "ValueError", "message": "the agent is wrong", "boundary": "agent"}
    assert by_id[1]["trajectory"] in {r.id for r in runs(tmp_path)}
    assert by_id[2]["error"]["type"] == "SystemExit"
    assert by_id[3]["error"]["boundary"] == "grader"
    assert by_id[4]["success"] is True
    assert sum(1 for a in answers if (a.get("error") or {}).get("type") == "UsageError") == 2


def test_runs_overlap_when_they_may(server: ScriptedServer, tmp_path: Path) -> None:
    answers, _ = talk(server, tmp_path, DESK, [run(n, "slow") for n in range(8)], concurrency=8)
    assert {a["id"] for a in answers} == set(range(8))
    assert len({a["trajectory"] for a in answers}) == 8
    spans = [(r.start["ts"], r.end["ts"]) for r in runs(tmp_path)]
    assert max(begin for begin, _ in spans) < min(end for _, end in spans), "all were under way at one moment"


def test_a_crash_leaves_what_happened_before_it_in_the_spool(server: ScriptedServer, tmp_path: Path) -> None:
    answers, done = talk(server, tmp_path, DESK, [run(1, "die")])
    assert done.returncode == 7
    assert answers == []
    stored = runs(tmp_path)
    assert [(r.status, r.output, len(r.calls)) for r in stored] == [("completed", "LAST WORDS", 1)]


@pytest.mark.parametrize("name", ["judged", "answer", "async_answer"])
def test_a_decorated_function_is_called_with_the_task(server: ScriptedServer, tmp_path: Path, name: str) -> None:
    target = f"tests.trace_sdk.agent_under_test:{name}"
    answers, _ = talk(server, tmp_path, target, [{"op": "run", "id": 1, "task": "good"}, {"op": "suite"}])
    ran = next(a for a in answers if "trajectory" in a)
    assert ran["success"] is (True if name == "judged" else None)
    assert [r.output for r in runs(tmp_path)] == ["GOOD"]
    assert "no suite" in next(a for a in answers if "tasks" in a)["error"]["message"]


@pytest.mark.parametrize("target", ["no_such_module_here:x", "tests.trace_sdk.agent_under_test:nothing", "json"])
def test_a_target_that_cannot_be_loaded_is_said_on_the_pipe(
    server: ScriptedServer, tmp_path: Path, target: str
) -> None:
    answers, done = talk(server, tmp_path, target, [])
    assert done.returncode == 1
    assert answers[0]["op"] == "load"
    assert answers[0]["error"]["message"]
