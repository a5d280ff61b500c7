"""Where an outcome comes from, what stays unknown, and what is kept of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import trace_sdk as trace
from tests.trace_sdk.spool import only_run, runs


def verdicts(home: Path) -> list[tuple[Any, Any, Any, Any]]:
    trace.flush()
    return [(o["success"], o["score"], o["source"], o["reason"]) for o in only_run(home).outcomes]


@pytest.mark.parametrize(
    ("verdict", "stored"),
    [
        (True, (True, None)),
        (False, (False, None)),
        (1, (True, 1.0)),
        (1.0, (True, 1.0)),
        (0.99, (False, 0.99)),
        (trace.Outcome(True, 0.4), (True, 0.4)),
        (trace.Outcome(None, 0.4), (None, 0.4)),
    ],
)
def test_a_verifier_judges_the_result(home: Path, verdict: Any, stored: tuple[Any, Any]) -> None:
    seen: list[Any] = []
    trace.agent(name="a", outcome=lambda result: (seen.append(result), verdict)[1])(lambda: "result")()
    assert seen == ["result"]
    assert [v[:3] for v in verdicts(home)] == [(*stored, "verifier")]


def test_unknown_stays_unknown(home: Path) -> None:
    trace.agent(name="a", outcome=lambda result: None)(lambda: 1)()
    assert verdicts(home) == []


@pytest.mark.parametrize("bad", ["yes", object(), float("nan"), [True]])
def test_what_is_no_outcome_is_refused_or_left_unknown_and_never_guessed(home: Path, bad: Any) -> None:
    def agent() -> None:
        handle = trace.current()
        assert handle is not None
        with pytest.raises(TypeError, match="outcome"):
            handle.outcome(bad)

    trace.agent(name="a", outcome=lambda result: bad)(agent)()
    with pytest.raises(TypeError, match="outcome"):
        trace.feedback("X", bad)
    assert verdicts(home) == []
    assert only_run(home).notes[0]["verifier_error"]["boundary"] == "grader"


def test_a_verifier_that_raises_says_nothing_about_the_agent(home: Path) -> None:
    assert trace.agent(name="a", outcome=lambda result: 1 / 0)(lambda: "fine")() == "fine"
    assert verdicts(home) == []
    assert only_run(home).status == "completed"
    assert only_run(home).notes[0]["verifier_error"]["type"] == "ZeroDivisionError"


def test_the_agent_says_it_itself_and_again(home: Path) -> None:
    @trace.agent
    def agent() -> None:
        handle = trace.current()
        assert handle is not None
        handle.outcome(0.5, reason="halfway")
        handle.outcome(True)

    agent()
    assert verdicts(home) == [(False, 0.5, "agent", "halfway"), (True, None, "agent", None)]


@pytest.mark.parametrize(
    ("error", "options", "stored"),
    [
        (ValueError("wrong"), {}, [(False, None, "exception", "raised ValueError")]),
        (ValueError("wrong"), {"exceptions_fail": False}, []),
        (TimeoutError(), {}, []),
        (ConnectionResetError(), {}, []),
        (OSError(28, "No space left on device"), {}, []),
        (KeyboardInterrupt(), {}, []),
    ],
)
def test_only_the_agents_own_exceptions_are_failures(
    home: Path, error: BaseException, options: dict[str, Any], stored: list[Any]
) -> None:
    def agent() -> None:
        raise error

    with pytest.raises(type(error)):
        trace.agent(name="a", **options)(agent)()
    assert verdicts(home) == stored
    run = only_run(home)
    assert run.status == "raised"
    assert run.end["error"]["boundary"] == ("agent" if isinstance(error, ValueError) else "infrastructure")


def test_an_infrastructure_error_behind_another_is_seen(home: Path) -> None:
    def agent() -> None:
        try:
            raise TimeoutError("no answer")
        except TimeoutError as cause:
            raise RuntimeError("could not answer") from cause

    with pytest.raises(RuntimeError):
        trace.agent(name="a")(agent)()
    assert verdicts(home) == []
    assert only_run(home).end["error"]["boundary"] == "infrastructure"


def test_an_explicit_outcome_stands_before_an_exception(home: Path) -> None:
    def agent() -> None:
        handle = trace.current()
        assert handle is not None
        handle.outcome(True)
        raise ValueError("late")

    with pytest.raises(ValueError, match="late"):
        trace.agent(name="a")(agent)()
    assert [v[0] for v in verdicts(home)] == [True]


def test_feedback_comes_later_twice_and_for_any_id(home: Path) -> None:
    ids: list[str] = []

    @trace.agent
    def agent() -> None:
        handle = trace.current()
        assert handle is not None
        ids.append(handle.id)

    agent()
    trace.feedback(ids[0], False, source="support", reason="complaint")
    trace.feedback(ids[0], 1.0)
    assert verdicts(home) == [(False, None, "support", "complaint"), (True, 1.0, "user", None)]


def test_a_tools_error_is_the_tools(home: Path) -> None:
    @trace.tool(name="lookup")
    def look(email: str, *, strict: bool = True) -> dict[str, str]:
        if email == "nobody":
            raise LookupError("no such customer")
        return {"id": "7"}

    @trace.tool
    async def slow(n: int) -> int:
        return n + 1

    @trace.agent
    async def agent() -> None:
        look("a@b.c", strict=False)
        await slow(1)
        look("nobody")

    import asyncio

    with pytest.raises(LookupError):
        asyncio.run(agent())
    trace.flush()
    run = only_run(home)
    assert [(t["name"], t["arguments"], t["result"]) for t in run.tools] == [
        ("lookup", {"email": "a@b.c", "strict": False}, {"id": "7"}),
        ("slow", {"n": 1}, 2),
        ("lookup", {"email": "nobody"}, None),
    ]
    assert run.tools[2]["error"] == {"type": "LookupError", "message": "no such customer", "boundary": "tool"}
    assert run.end["error"]["boundary"] == "tool"


def test_a_tool_outside_a_run_is_just_the_function(home: Path) -> None:
    assert trace.tool(lambda n: n + 1)(1) == 2
    trace.flush()
    assert not (home / "spool").exists()


def test_known_successes_are_sampled_and_the_kept_ones_carry_the_weight(home: Path) -> None:
    trace.init(home=home, sample_successes=0.25)
    agent = trace.agent(name="a", outcome=lambda result: result)(lambda verdict: verdict)
    for _ in range(400):
        agent(True)
    for verdict in (False, None):
        agent(verdict)
    trace.flush()
    weights = {True: [], False: [], None: []}  # type: dict[Any, list[float]]
    for run in runs(home):
        weights[run.output].append(run.end["weight"])
    assert set(weights[True]) == {0.0, 4.0}
    assert 60 <= weights[True].count(4.0) <= 140, "a quarter of 400, give or take four deviations"
    assert weights[False] == [1.0]
    assert weights[None] == [1.0]


def test_consent_and_task_keys_are_kept(home: Path) -> None:
    trace.agent(name="a", trainable=False, task=lambda question, n: f"{question}/{n}")(lambda question, n: None)("q", 2)
    trace.flush()
    assert only_run(home).start["trainable"] is False
    assert only_run(home).start["task"] == "q/2"


def test_an_option_that_fails_costs_the_option_and_not_the_run(home: Path) -> None:
    assert trace.agent(name="a", task=lambda: 1, session=lambda *_: 1 / 0)(lambda q: q)("q") == "q"
    trace.flush()
    assert only_run(home).start["task"] is None
    assert only_run(home).output == "q"


@pytest.mark.parametrize("wrong", [7, type("Class", (), {})])
def test_decorating_what_is_no_function_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(TypeError, match="decorates a function"):
        trace.agent(wrong)
    with pytest.raises(TypeError, match="decorates a function"):
        trace.tool(wrong)


def test_an_evaluation_needs_its_two_methods() -> None:
    with pytest.raises(TypeError, match="no run"):
        trace.evaluation(type("Half", (), {"suite": lambda self, split: []}))


@pytest.mark.parametrize("fraction", [-0.1, 1.1])
def test_a_fraction_out_of_range_is_refused(tmp_path: Path, fraction: float) -> None:
    with pytest.raises(ValueError, match="sample_successes"):
        trace.init(home=tmp_path, sample_successes=fraction)
