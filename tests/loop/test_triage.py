"""What is not the agent's fault is set apart, and what is stays."""

from __future__ import annotations

import dataclasses

import pytest

from harness.environment import Act
from loop.triage import attribute, triage
from storage.trajectory import Message, Trajectory
from tests.loop.analysis.shop import Shop, play


def failing(result: str, n: int, *, task: str | None = None, arguments: bool = True) -> list[Trajectory]:
    """Runs of sound calls that a tool answers with ``result``."""
    runs: list[Trajectory] = []
    for seed in range(n):
        shop = Shop(seed if arguments else 0)
        run = play(shop, [Act("find_bouquets", {"email": shop.email})], id=f"r{seed}", success=False, task=task)
        messages = tuple(dataclasses.replace(m, content=result) if m.role == "tool" else m for m in run.messages)
        runs.append(dataclasses.replace(run, messages=messages))
    return runs


@pytest.mark.parametrize(
    ("error", "status", "boundary"),
    [
        ({"type": "E", "message": "x", "boundary": "provider"}, "raised", "provider"),
        ({"type": "E", "message": "x", "boundary": "grader"}, "completed", "grader"),
        ({"type": "RateLimitError", "message": "429", "boundary": "unknown"}, "raised", "provider"),
        ({"type": "OSError", "message": "No space left on device"}, "raised", "infrastructure"),
        ({"type": "KeyError", "message": "'price'", "boundary": "agent"}, "raised", "agent"),
        ({"type": "KeyError", "message": "'price'"}, "raised", "unknown"),
        (None, "aborted", "infrastructure"),
        (None, "completed", "agent"),
    ],
)
def test_one_run_is_attributed_by_what_is_known_of_it(error: dict | None, status: str, boundary: str) -> None:
    run = Trajectory("r", "a", (Message("user", "hi"),), success=False, error=error, status=status)  # type: ignore[arg-type]
    assert attribute(run)[0] == boundary


def test_a_run_that_ends_on_a_fault_of_the_machinery_is_the_tools() -> None:
    assert attribute(failing("Error: upstream timed out", 1)[0])[0] == "tool"


def test_a_tool_that_never_works_is_a_harness_problem() -> None:
    found = triage(failing("Error: column price_cents missing", 6))
    assert len(found.spoiled) == 6
    assert "find_bouquets" in found.problems[0].description
    assert found.problems[0].to_json()["count"] == 6


def test_a_tool_that_works_for_others_is_not_to_blame() -> None:
    shop = Shop(50)
    good = play(shop, shop.reference(), id="good", success=True)
    assert not triage([*failing("Error: no customer with this address", 6), good]).spoiled


def test_the_same_error_in_every_run_of_a_task_is_a_harness_problem() -> None:
    shop = Shop(50)
    good = play(shop, shop.reference(), id="good", success=True, task="other")
    found = triage([*failing("Error: no customer with this address", 4, task="t", arguments=False), good])
    assert set(found.spoiled) == {"r0", "r1", "r2", "r3"}


def test_the_same_error_in_every_run_stays_the_agents_when_its_calls_explain_it() -> None:
    runs = []
    for n in range(4):
        shop = Shop(1)
        act = Act("cancel_bouquet", {"bouquet_id": shop.email})
        runs.append(play(shop, [act], id=f"r{n}", success=False, task="t"))
    shop = Shop(2)
    runs.append(play(shop, shop.reference(), id="good", success=True, task="other"))
    assert not triage(runs).spoiled


def test_a_task_that_somebody_solved_is_not_the_harness() -> None:
    runs = failing("Error: no customer with this address", 4, task="t", arguments=False)
    shop = Shop(0)
    assert not triage([*runs, play(shop, shop.reference(), id="good", success=True, task="t")]).spoiled


def test_runs_that_succeeded_or_are_unknown_are_never_spoiled() -> None:
    runs = [dataclasses.replace(r, success=None) for r in failing("Error: 503", 5)]
    assert not triage(runs).spoiled
