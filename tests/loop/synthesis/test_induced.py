"""What is inferred of two unrelated domains, and that the environments made of it hold the contract."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import tool_kinds
from harness.episodes import run_episodes
from harness.policies import NullPolicy, OneArgumentWrong, ReferencePolicy
from loop.analysis.detectors import find
from loop.synthesis.induced import Difficulty, EvidenceReport, InducedEnvironment, induce
from storage.trajectory import Trajectory
from tests.harness.conformance import check_conformance
from tests.loop.synthesis import toy


@pytest.fixture(scope="module")
def library() -> InducedEnvironment:
    runs = toy.runs(toy.library_renewal, 20) + toy.runs(toy.library_question, 10) + toy.runs(toy.library_failure, 4)
    return _environment(induce(runs, find("lookup_before_change")))


@pytest.fixture(scope="module")
def gym() -> InducedEnvironment:
    return _environment(induce(toy.runs(toy.gym_cancellation, 24)))


def _environment(made: InducedEnvironment | EvidenceReport) -> InducedEnvironment:
    assert isinstance(made, InducedEnvironment), made.lines()
    return made


def _behaviour(env: InducedEnvironment, tool: str) -> str:
    return next(t.behaviour for t in env.evidence.tools if t.name == tool)


def test_the_library_is_inferred_from_its_runs(library: InducedEnvironment):
    assert _behaviour(library, "find_member") == "one member with card = @card"
    assert "loan_id = loan_id" in _behaviour(library, "get_loan")
    changes = "changes the loan named by loan_id: state ← const renewed, weeks ← arg weeks"
    assert _behaviour(library, "renew_loan") == f"{changes}; refuses by state (accepts open)"
    assert library.evidence.types == {"loan": 82, "member": 24}
    assert library.evidence.dropped == {}


def test_the_gym_is_inferred_from_its_runs(gym: InducedEnvironment):
    assert "key of guest with first_name = name.first_name" in _behaviour(gym, "find_guest_id")
    assert _behaviour(gym, "cancel_booking") == "changes the booking named by booking_id: status ← const cancelled"
    assert gym.models["send_note"].free == ["note"]


@pytest.mark.parametrize("domain", ["library", "gym"])
def test_induced_environments_conform(domain: str, request: pytest.FixtureRequest):
    env: InducedEnvironment = request.getfixturevalue(domain)
    check_conformance(env.copy, range(12))


@pytest.mark.parametrize("domain", ["library", "gym"])
def test_the_spec_as_json_is_the_same_environment(domain: str, request: pytest.FixtureRequest):
    env: InducedEnvironment = request.getfixturevalue(domain)
    text = json.dumps(env.to_json())
    again = InducedEnvironment.from_json(json.loads(text))
    assert json.dumps(again.to_json()) == text
    for seed in range(5):
        assert again.reset(seed) == env.reset(seed)
        assert again.state() == env.state()
        assert again.goals() == env.goals()


def test_tools_and_system_prompt_are_the_agents_own(library: InducedEnvironment):
    assert json.dumps(list(library.tools)) == json.dumps(list(toy.LIBRARY_TOOLS))
    assert {library.reset(seed).messages[0]["content"] for seed in range(20)} == {toy.Library.system}


def test_entities_are_new_and_the_request_still_means_the_right_record(library: InducedEnvironment):
    recorded = {key for case in library.cases for table in case.tables.values() for key in table}
    keys: set[str] = set()
    for seed in range(60):
        task = library.reset(seed)
        keys.add(task.key)
        loans = library.state()["loan"]
        assert not recorded & set(loans)
        for act in library.reference():
            if act.tool != "renew_loan":
                continue
            loan = loans[act.arguments["loan_id"]]
            request = task.messages[-1]["content"]
            assert loan["title"] in request or f"the one with the {loan['title'].split()[1]}" in request
            assert str(act.arguments["weeks"]) in request
    assert len(keys) == 60


def test_the_capability_shows_in_most_tasks_and_some_others_are_mixed_in(library: InducedEnvironment):
    kinds = [library.reset(seed).kind for seed in range(300)]
    others = sum(kind == "get_loan" for kind in kinds) / len(kinds)
    assert 0.15 < others < 0.35
    without = library.with_difficulty(Difficulty(other_share=0.0))
    assert {without.reset(seed).kind for seed in range(50)} == {"find_member > list_loans > renew_loan"}


def test_where_people_showed_how_often_enough_the_agents_own_successes_are_no_example():
    renewals = toy.runs(toy.library_renewal, 16)
    questions = toy.runs(toy.library_question, 8)
    shown = {run.id for run in renewals[:8]}
    people = [replace(run, reference=run.id in shown) for run in renewals]
    made = _environment(induce(people + questions, find("lookup_before_change")))
    assert {c.source for c in made.cases if c.applies} == shown
    assert sum(c.kind == "get_loan" for c in made.cases) == 8
    too_few = [replace(run, reference=run.id in shown - {"renew-0"}) for run in renewals]
    made = _environment(induce(too_few + questions, find("lookup_before_change")))
    assert sum(c.applies for c in made.cases) == 16


def test_a_handover_that_needs_no_look_up_to_be_made_is_no_task():
    handovers = toy.runs(toy.library_handover, 10)
    made = induce(handovers, tools=toy.StaffedLibrary.tools)
    assert isinstance(made, EvidenceReport)
    assert made.dropped == {"it is solved without the look-ups that lead to it": 10}


def _renewal(library: InducedEnvironment) -> tuple[str, dict[str, Any]]:
    for seed in range(50):
        if library.reset(seed).kind != "get_loan":
            break
    act = next(a for a in library.reference() if a.tool == "renew_loan")
    return act.arguments["loan_id"], dict(library.state()["loan"][act.arguments["loan_id"]])


def test_calls_are_refused_as_the_recorded_tools_refused_them(library: InducedEnvironment):
    loan, _ = _renewal(library)
    overdue = next(k for k, r in library.state()["loan"].items() if r["state"] == "overdue")
    before = library.state()
    answers = {
        library.call("find_member", {"card": "1-1"}): '{"error": "unknown card"}',
        library.call("list_loans", {"member_id": "M0"}): '{"error": "no member M0"}',
        library.call("renew_loan", {"loan_id": "L0", "weeks": 5}): '{"error": "no loan L0"}',
        library.call("renew_loan", {"loan_id": overdue, "weeks": 5}): (
            '{"error": "a loan that is overdue cannot be renewed"}'
        ),
    }
    assert all(said == expected for said, expected in answers.items())
    for tool, arguments in (
        ("renew_loan", {"loan_id": loan}),
        ("renew_loan", {"loan_id": loan, "weeks": "five"}),
        ("renew_loan", {"loan_id": loan, "weeks": 5, "color": "red"}),
        ("burn_book", {}),
    ):
        assert tool_kinds.is_error(library.call(tool, arguments)), (tool, arguments)
    assert library.state() == before


def test_a_change_shows_in_every_later_look_up_and_cannot_be_made_twice(library: InducedEnvironment):
    loan, record = _renewal(library)
    assert json.loads(library.call("renew_loan", {"loan_id": loan, "weeks": 8})) == {
        "loan_id": loan,
        "state": "renewed",
        "weeks": 8,
    }
    shown = json.loads(library.call("get_loan", {"loan_id": loan}))
    assert shown == {"loan_id": loan, "title": record["title"], "weeks": 8, "state": "renewed"}
    assert "cannot be renewed" in library.call("renew_loan", {"loan_id": loan, "weeks": 9})


def test_a_look_up_that_no_run_of_the_case_made_is_answered_too(library: InducedEnvironment):
    loan, _ = _renewal(library)
    shown = json.loads(library.call("get_loan", {"loan_id": loan}))
    assert set(shown) == {"loan_id", "title", "weeks", "state"}


def test_a_look_up_that_nothing_explains_is_refused_where_it_was_not_recorded(library: InducedEnvironment):
    spec = library.to_json()
    unexplained = spec["models"]["list_loans"]
    unexplained["shape"], unexplained["part"]["select"] = "memory", [["member_id"]]
    env = InducedEnvironment.from_json(spec)
    env.reset(0)
    asked = next(a.arguments for a in env.reference() if a.tool == "list_loans")
    assert "no member" in env.call("list_loans", asked)


def test_number_ids_stay_numbers_and_nested_records_follow_their_change(gym: InducedEnvironment):
    gym.reset(3)
    acts = {a.tool: a.arguments for a in gym.reference() if a.tool}
    guest = json.loads(gym.call("get_guest", acts["get_guest"]))
    booking = acts["cancel_booking"]["booking_id"]
    assert isinstance(guest["guest_id"], int)
    assert {b["booking_id"]: b["status"] for b in guest["bookings"]}[booking] == "booked"
    assert gym.call("cancel_booking", {"booking_id": booking}) == f"Booking {booking} was cancelled."
    after = json.loads(gym.call("get_guest", acts["get_guest"]))
    assert {b["booking_id"]: b["status"] for b in after["bookings"]}[booking] == "cancelled"


def test_free_text_may_be_worded_otherwise(gym: InducedEnvironment):
    class Reworded(ReferencePolicy):
        def begin(self, env: Any, task: Any) -> Any:
            from harness.environment import Act
            from harness.policies import ScriptedPolicy

            acts = [
                Act(a.tool, {**a.arguments, "note": "other words"}, a.text) if a.tool == "send_note" else a
                for a in env.reference()
            ]
            return ScriptedPolicy(acts, len(task.messages))

    assert _success(gym, Reworded()) == 1.0


def _success(env: InducedEnvironment, policy: Any, seeds: Sequence[int] = range(30)) -> float:
    episodes = asyncio.run(run_episodes(env.copy, seeds, policy, max_turns=12))
    assert all(e.error is None for e in episodes), [e.error for e in episodes]
    return sum(e.score.success for e in episodes if e.score) / len(episodes)


def test_distractors_never_make_the_request_ambiguous(gym: InducedEnvironment):
    crowded = gym.with_difficulty(Difficulty(distractors=12))
    assert _success(crowded, ReferencePolicy()) == 1.0
    crowded.reset(0)
    gym.with_difficulty(Difficulty(distractors=0)).reset(0)
    assert len(crowded.state()["guest"]) > 5


def test_wrong_arguments_and_doing_nothing_solve_nothing(library: InducedEnvironment):
    assert _success(library, NullPolicy()) == 0.0
    assert _success(library, OneArgumentWrong()) == 0.0


def test_thin_evidence_is_reported_and_names_what_is_missing():
    few = induce(toy.runs(toy.library_renewal, 3))
    assert isinstance(few, EvidenceReport)
    assert not few.usable
    assert "3 good runs" in few.reasons[0]
    no_tools = [Trajectory(t.id, t.agent, t.messages, success=True) for t in toy.runs(toy.library_renewal, 12)]
    assert induce(no_tools).reasons == ["no tool schemas were recorded: import the runs with their tools"]  # type: ignore[union-attr]
    failed = induce(toy.runs(toy.library_failure, 9))
    assert isinstance(failed, EvidenceReport)
    assert failed.reasons == ["no run succeeded and none is a reference"]
    nothing = induce([])
    assert isinstance(nothing, EvidenceReport)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_the_solution_of_any_seed_is_never_refused(seed: int, library: InducedEnvironment, gym: InducedEnvironment):
    for env in (library.copy(), gym.copy()):
        env.reset(seed)
        for act in env.reference():
            if act.tool:
                assert not tool_kinds.is_error(env.call(act.tool, act.arguments))


@pytest.mark.parametrize("raw", [{}, {"format": "induced-environment", "version": 1}, {"format": "x", "version": 1}])
def test_a_damaged_spec_is_refused(raw: dict[str, Any]):
    with pytest.raises(ValueError, match=r"induced environment|damaged"):
        InducedEnvironment.from_json(raw)
