"""The shipped tickets handled by people: current, and each of them really handles its ticket."""

from __future__ import annotations

import json

from examples.support_desk.agent import SYSTEM_PROMPT
from examples.support_desk.references import REFERENCES, records
from examples.support_desk.tasks import KINDS, tasks_of, ticket_of
from examples.support_desk.tools import TOOLS, call_tool
from examples.support_desk.verifier import verify

SHIPPED = [json.loads(line) for line in REFERENCES.read_text(encoding="utf-8").splitlines()]


def test_the_shipped_file_is_what_the_generator_writes() -> None:
    assert list(records()) == SHIPPED


def test_there_are_a_few_dozen_of_every_kind() -> None:
    tasks = {task["id"]: task for task in tasks_of("people")}
    assert 24 <= len(SHIPPED) <= 100
    assert {tasks[record["task_id"]]["kind"] for record in SHIPPED} == set(KINDS)


def test_each_replayed_against_its_shop_answers_the_same_and_verifies() -> None:
    tasks = {task["id"]: task for task in tasks_of("people")}
    for record in SHIPPED:
        ticket = ticket_of(tasks[record["task_id"]]["seed"])
        system, user, *rest, last = record["messages"]
        assert record["tools"] == TOOLS
        assert record["outcome"] is True
        assert (system["content"], user["content"]) == (SYSTEM_PROMPT, ticket.text)
        with ticket.open_desk() as desk:
            before = desk.state()
            for asked, answered in zip(rest[::2], rest[1::2], strict=True):
                (call,) = asked["tool_calls"]
                assert answered["tool_call_id"] == call["id"]
                function = call["function"]
                assert call_tool(desk, function["name"], function["arguments"]) == answered["content"]
            assert verify(ticket, before, desk.state(), last["content"]).success
