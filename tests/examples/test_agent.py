"""The agent as a team runs it: the real client against a scripted server, recorded by the real recorder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from examples.support_desk import agent
from examples.support_desk.evaluation import SupportDesk
from examples.support_desk.references import dialogue
from examples.support_desk.tasks import KINDS, ticket_of
from tests.examples.scripted import scripted_server

ROOT = Path(__file__).parents[2]
EVALUATION = "examples.support_desk.evaluation:SupportDesk"
DESK = SupportDesk()


def like_people(request: dict[str, Any]) -> dict[str, Any]:
    """The assistant's next message in the dialogue of whoever handled this very ticket."""
    messages = request["messages"]
    seed = SEED_OF[messages[1]["content"]]
    return dialogue(ticket_of(seed))[len(messages)]


def says(text: str):
    return lambda request: {"content": text}


TASKS = DESK.suite("gate")[:18]
SEED_OF = {task["ticket"]: task["seed"] for task in TASKS}


@pytest.fixture
def server_at(monkeypatch: pytest.MonkeyPatch):
    """Point the agent to an address; the client of other tests is not reused."""

    def point(url: str) -> None:
        monkeypatch.setenv("SUPPORT_DESK_BASE_URL", url)
        agent._client.cache_clear()

    yield point
    agent._client.cache_clear()


def test_a_team_that_handles_tickets_like_people_succeeds_on_all_kinds_at_once_in_threads(server_at) -> None:
    with scripted_server(like_people) as (url, requests), ThreadPoolExecutor(6) as pool:
        server_at(url)
        outcomes = list(pool.map(DESK.run, TASKS))
    assert {task["kind"] for task in TASKS} == set(KINDS)
    assert [(outcome.success, outcome.score) for outcome in outcomes] == [(True, 1.0)] * len(TASKS)
    first = requests[0]
    assert first["tools"] == agent.TOOLS
    assert (first["model"], first["temperature"]) == ("support-desk", 0.4)


def test_an_agent_that_only_talks_fails_with_a_reason(server_at) -> None:
    task = next(task for task in TASKS if task["kind"] == "cancel_item")
    with scripted_server(says("All done!")) as (url, _):
        server_at(url)
        outcome = DESK.run(task)
    assert outcome.success is False
    assert outcome.reason == f"order {ticket_of(task['seed']).order.id} is as it was"


def test_a_model_that_never_stops_calling_tools_is_stopped(server_at) -> None:
    def stubborn(request: dict[str, Any]) -> dict[str, Any]:
        function = {"name": "cancel_order", "arguments": json.dumps({"order_id": "hugo@mail.com"})}
        number = len(request["messages"])
        return {"tool_calls": [{"id": f"call_{number}", "type": "function", "function": function}]}

    with scripted_server(stubborn) as (url, requests), ticket_of(1).open_desk() as desk:
        server_at(url)
        assert agent.handle(ticket_of(1).text, desk) == agent.GAVE_UP
    assert len(requests) == agent.MAX_MODEL_CALLS
    assert requests[-1]["messages"][-1]["content"] == '{"error": "no order hugo@mail.com"}'


def test_model_and_temperature_come_from_the_environment(server_at, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPPORT_DESK_MODEL", "other")
    monkeypatch.setenv("SUPPORT_DESK_TEMPERATURE", "0")
    with scripted_server(says("Hello.")) as (url, requests), ticket_of(0).open_desk() as desk:
        server_at(url)
        assert agent.handle("Hi", desk) == "Hello."
    assert (requests[0]["model"], requests[0]["temperature"]) == ("other", 0)


def test_run_by_the_runner_every_ticket_leaves_a_whole_trajectory_with_its_outcome(tmp_path: Path) -> None:
    tasks = TASKS[:9]
    asked = "".join(json.dumps({"op": "run", "task": task, "id": n}) + "\n" for n, task in enumerate(tasks))
    with scripted_server(like_people) as (url, _):
        done = subprocess.run(
            [sys.executable, "-m", "trace_sdk.runner", EVALUATION, "--concurrency", "3"],
            input=asked,
            cwd=ROOT,
            env={**os.environ, "SUPPORT_DESK_BASE_URL": url, "TRACE_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=120,
        )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(answer["id"] for answer in answers if "id" in answer) == list(range(len(tasks))), done.stderr
    answers = {answer["id"]: answer for answer in answers if "id" in answer}
    events = [
        json.loads(line)
        for segment in (tmp_path / "spool").glob("*.jsonl")
        for line in segment.read_text(encoding="utf-8").splitlines()
    ]
    for number, task in enumerate(tasks):
        assert (answers[number]["success"], answers[number]["error"]) == (True, None)
        own = [event for event in events if event["id"] == answers[number]["trajectory"]]
        (start,) = [event for event in own if event["type"] == "start"]
        (outcome,) = [event for event in own if event["type"] == "outcome"]
        (end,) = [event for event in own if event["type"] == "end"]
        assert (start["agent"], start["task"]) == ("support_desk", task["id"])
        assert (outcome["success"], end["status"]) == (True, "completed")
        calls = {event["call_id"]: event for event in own if event["type"] == "call"}
        last = max(calls.values(), key=lambda call: call["seq"])
        expected = dialogue(ticket_of(task["seed"]))
        assert [m["content"] for m in last["request"]["messages"]] == [m["content"] for m in expected[:-1]]
        assert last["request"]["tools"] == agent.TOOLS
        assert last["response"]["message"]["content"] == expected[-1]["content"]
        assert end["output"] == expected[-1]["content"]


def test_the_example_uses_the_decorators_and_nothing_else_of_the_loop() -> None:
    for path in (ROOT / "examples" / "support_desk").glob("*.py"):
        source = path.read_text(encoding="utf-8")
        used = [line for line in source.splitlines() if "trace." in line and not line.lstrip().startswith("#")]
        allowed = ("@trace.agent(", "@trace.evaluation", "trace.Outcome")
        assert all(any(name in line for name in allowed) for line in used), (path.name, used)
        assert not re.search(r"^\s*(import|from) (loop|harness|storage)\b", source, re.M), path.name


def test_the_readme_s_command_runs(tmp_path: Path) -> None:
    readme = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert all(f"`{kind}`" in readme for kind in KINDS)
    (command,) = re.findall(r"```sh\n(.*?)\n```", readme, re.S)
    ticket = ticket_of(7)
    with scripted_server(lambda request: dialogue(ticket)[len(request["messages"])]) as (url, _):
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=ROOT,
            env={
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "SUPPORT_DESK_BASE_URL": url,
                "TRACE_HOME": str(tmp_path),
            },
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert '"success": true' in done.stdout.replace('"success":true', '"success": true'), done.stderr
