"""Admission lets a sound environment in, and each kind of unsound one fails the check that is made for it."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from harness.admission import Thresholds, admit, calibrate, fingerprint, near_duplicates
from harness.calibration import Range, find_setting
from harness.environment import Act, Goals, RequiredCall, Task
from harness.policies import NullPolicy, ReferencePolicy, ScriptedPolicy
from tests.harness.desk import TOOLS, LoanDesk, lapse

FEW = Thresholds(seeds=20, distinct_seeds=40)


def _failed(make: Callable[[], Any], tools: Sequence[Mapping[str, Any]] = TOOLS, **options: Any) -> set[str]:
    report = admit(make, tools, thresholds=FEW, **options)
    return {check.name for check in report.checks if not check.passed}


def _looks_up(messages: Sequence[Mapping[str, Any]], tools: Any) -> str:
    names = [c["function"]["name"] for m in messages for c in m.get("tool_calls", ())]
    return "PRESENT" if names[:1] == ["find_loans"] else "LACKING" if names else "NA"


def test_a_sound_environment_is_admitted_with_a_number_for_every_check():
    def elsewhere(seeds: Sequence[int]) -> list[str]:
        return [fingerprint(LoanDesk(), seed) for seed in seeds]

    report = admit(
        LoanDesk,
        TOOLS,
        lapse=lapse,
        label=_looks_up,
        systems=["You run a loan desk."],
        held_out=["Where is my parcel?"],
        elsewhere=elsewhere,
        thresholds=FEW,
    )
    assert report.admitted, report.lines()
    assert {c.name for c in report.checks} >= {
        "interface",
        "system_prompt",
        "order_independent",
        "deterministic",
        "distinct",
        "held_out_near",
        "reference",
        "null",
        "echo",
        "random_calls",
        "call_everything",
        "odd_calls",
        "copy_example",
        "wrong_argument",
        "wrong_solved",
        "result_chars",
        "episode_chars",
        "state_chars",
        "reference_calls",
        "unspoiled",
        "runs",
        "ordered",
        "lapse",
        "isolation",
        "agreement",
    }
    json.dumps(report.to_json(), allow_nan=False)


def test_tools_that_differ_by_one_word_are_refused():
    other = copy.deepcopy(list(TOOLS))
    other[0]["function"]["description"] = "Loans of a member!"
    assert _failed(LoanDesk, other) == {"interface"}


def test_tools_whose_keys_stand_in_another_order_are_refused():
    other = [dict(reversed(list(t.items()))) for t in TOOLS]
    assert _failed(LoanDesk, other) == {"interface"}


class Counting(LoanDesk):
    """What a task is depends on how many came before it."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def reset(self, seed: int) -> Task:
        self.count += 1
        return super().reset(seed + 1000 * self.count)


def test_a_task_that_depends_on_earlier_episodes_is_refused():
    assert "order_independent" in _failed(Counting)


def test_a_task_that_another_process_sees_differently_is_refused():
    assert _failed(LoanDesk, elsewhere=lambda seeds: ["other" for _ in seeds]) == {"deterministic"}


class OneTask(LoanDesk):
    def reset(self, seed: int) -> Task:
        return super().reset(seed % 3)


def test_an_environment_of_three_tasks_is_refused():
    assert "distinct" in _failed(OneTask)


class Unsolvable(LoanDesk):
    def goals(self) -> Goals:
        return Goals(state={"loans.none.days": 3})


def test_an_unsolvable_environment_is_refused():
    assert {"reference", "ordered"} <= _failed(Unsolvable)


class Generous(LoanDesk):
    def goals(self) -> Goals:
        return Goals()


def test_an_environment_that_asks_for_nothing_is_refused():
    assert {"null", "echo"} <= _failed(Generous)


class Parrot(LoanDesk):
    """Repeating the request is enough."""

    def goals(self) -> Goals:
        return Goals(said=((self._goal["member"],),))


def test_an_environment_that_an_echo_solves_is_refused():
    assert "echo" in _failed(Parrot)


class AnyCall(LoanDesk):
    def goals(self) -> Goals:
        return Goals(required=(RequiredCall("find_loans"),))


def test_an_environment_that_random_calls_solve_is_refused():
    assert "random_calls" in _failed(AnyCall)


class Forgiving(LoanDesk):
    """The look-up is not needed: the change finds the loan by anything."""

    def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        if tool == "extend_loan" and "days" in arguments:
            arguments = {**arguments, "loan_id": self._goal["loan"]}
        return super().call(tool, arguments)

    def goals(self) -> Goals:
        return Goals(state={f"loans.{self._goal['loan']}.days": self._goal["days"]})


def test_an_environment_in_which_the_lapse_does_no_harm_is_refused():
    assert "lapse" in _failed(Forgiving, lapse=lapse)


def test_a_detector_that_contradicts_the_score_is_noticed():
    assert "agreement" in _failed(LoanDesk, lapse=lapse, label=lambda messages, tools: "LACKING")


def test_a_lapse_that_never_applies_is_noticed():
    assert _failed(LoanDesk, lapse=lambda acts, task: None) == {"lapse_applies"}


def test_an_environment_that_raises_is_refused_and_says_where():
    class Broken(LoanDesk):
        def state(self) -> Mapping[str, Any]:
            raise RuntimeError("no state today")

    report = admit(Broken, TOOLS, thresholds=FEW)
    assert not report.admitted
    assert "no state today" in report.checks[-1].detail


def test_a_request_of_the_gate_split_is_found_again():
    held_out = [LoanDesk().reset(FEW.first_seed + 7).messages[-1]["content"]]
    assert _failed(LoanDesk, held_out=held_out) == {"held_out_near"}
    assert near_duplicates(["Extend A-1 please."], ["extend a-1, PLEASE"], 0.95) == 0
    assert near_duplicates(["Extend a-1 please"], ["extend a-1 PLEASE"], 0.95) == 1


def test_another_system_prompt_is_refused():
    assert _failed(LoanDesk, systems=["You run a gym."]) == {"system_prompt"}
    assert _failed(LoanDesk, systems=["You run a gym.", "You run a loan desk."]) == set()


class Brittle(LoanDesk):
    """Raises where a call is not as expected."""

    def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        if tool not in ("find_loans", "extend_loan"):
            raise KeyError(tool)
        return super().call(tool, arguments)


def test_an_environment_that_raises_on_odd_calls_is_refused_although_no_policy_solves_it():
    report = admit(Brittle, TOOLS, thresholds=FEW)
    failed = {c.name: c for c in report.checks if not c.passed}
    assert set(failed) == {"runs"}
    assert "OddCalls" in failed["runs"].detail
    assert "no_such_tool" in failed["runs"].detail


class Spoilt(LoanDesk):
    """A change that went wrong once shows in every later world of the same instance."""

    spoilt = False

    def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        self.spoilt = self.spoilt or tool == "no_such_tool"
        return super().call(tool, arguments)

    def reset(self, seed: int) -> Task:
        task = super().reset(seed)
        if self.spoilt:
            self._world["closed"] = True
        return task


def test_what_an_odd_call_leaves_behind_is_noticed():
    assert _failed(Spoilt) == {"unspoiled"}


class Careless(LoanDesk):
    """How many days does not matter."""

    def goals(self) -> Goals:
        return Goals(required=(RequiredCall("extend_loan", {"loan_id": self._goal["loan"]}),), unchanged=False)


def test_an_environment_that_forgives_a_wrong_argument_is_refused():
    assert "wrong_solved" in _failed(Careless)


class Talkative(LoanDesk):
    def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        return super().call(tool, arguments) + " " * (70_000 if tool == "no_such_tool" else 0)


def test_a_result_beyond_all_bounds_is_refused_whoever_asks_for_it():
    assert _failed(Talkative) == {"result_chars"}


def test_what_admission_makes_it_closes_again():
    living: set[int] = set()

    class Process(LoanDesk):
        def __init__(self) -> None:
            super().__init__()
            living.add(id(self))
            made.append(self)

        def close(self) -> None:
            living.discard(id(self))

    made: list[Process] = []
    assert admit(Process, TOOLS, thresholds=FEW).admitted
    assert len(made) > FEW.seeds
    assert not living


class _Sometimes(ReferencePolicy):
    """Solves every ``every``-th episode."""

    def __init__(self, every: int) -> None:
        self.turn = itertools.count()
        self.every = every

    def begin(self, env: Any, task: Task) -> ScriptedPolicy:
        acts: Sequence[Act] = env.reference() if next(self.turn) % self.every == 0 else ()
        return ScriptedPolicy(tuple(acts), len(task.messages))


def test_calibration_measures_and_judges():
    fit = calibrate(LoanDesk, _Sometimes(3), range(6), repeats=6)
    assert fit.success == pytest.approx(1 / 3)
    assert fit.informative == 1.0
    assert fit.in_range, fit
    easy = calibrate(LoanDesk, ReferencePolicy(), range(4), repeats=4)
    assert (easy.success, easy.all_success, easy.informative) == (1.0, 1.0, 0.0)
    assert {c.name for c in easy.checks if not c.passed} >= {"calibration_success", "calibration_all_success"}
    hard = calibrate(LoanDesk, NullPolicy(), range(4), repeats=4)
    assert (hard.success, hard.all_zero) == (0.0, 1.0)
    assert not hard.in_range


def test_a_setting_is_searched_from_where_it_starts():
    class Nothing(LoanDesk):
        def goals(self) -> Goals:
            return Goals()

    policy = _Sometimes(3)
    best, tried = asyncio.run(
        find_setting([("easy", Nothing), ("right", LoanDesk)], policy, range(4), group_size=6, target=Range())
    )
    assert best == 1
    assert {index: c.setting for index, c in tried.items()} == {0: "easy", 1: "right"}
