from __future__ import annotations

from dataclasses import dataclass

import pytest
from sqlmodel import select

from loop.evaluation import Arm, fingerprint, measure, outcomes_of, task_key
from storage.database import open_database
from storage.errors import TraceError
from storage.tables import Evaluation


@dataclass(frozen=True)
class Result:
    success: bool | None
    trajectory: str | None = None
    score: float | None = None
    error: dict | None = None


@pytest.fixture
def database(tmp_path):
    with open_database(home=tmp_path) as opened:
        yield opened


def runner(solves, ran: list):
    """A target whose outcome follows from the task; it notes what it was asked to run."""

    def run(tasks, save):
        for index, task in enumerate(tasks):
            ran.append(task)
            save(index, Result(solves(task)))

    return run


ARM = Arm("base", fingerprint("base"))


def test_a_measurement_counts_known_outcomes(database):
    seen = []
    result = measure(
        database,
        ARM,
        agent="desk",
        split="report",
        tasks=range(10),
        run=runner(lambda t: t % 2 == 0, []),
        model="m",
        progress=lambda done, total, successes: seen.append((done, total, successes)),
    )
    assert (result.n, result.successes, result.unknown) == (10, 5, 0)
    assert result.ci[0] < 0.5 < result.ci[1]
    assert seen[-1] == (10, 10, 5)
    assert outcomes_of(database, result.evaluation) == {str(t): t % 2 == 0 for t in range(10)}


def test_what_was_measured_is_not_measured_again(database):
    ran: list = []
    arguments = {"agent": "desk", "split": "gate", "model": "m", "run": runner(bool, ran)}
    measure(database, ARM, tasks=range(6), **arguments)
    again = measure(database, ARM, tasks=range(8), **arguments)
    assert ran == [0, 1, 2, 3, 4, 5, 6, 7]
    assert again.n == 8
    with database.session() as session:
        assert [(row.n, row.state) for row in session.exec(select(Evaluation))] == [(8, "done")]


def test_an_interrupted_measurement_goes_on_with_the_missing_tasks(database):
    ran: list = []

    def dies(tasks, save):
        save(0, Result(True))
        save(1, Result(False))
        raise KeyboardInterrupt

    arguments = {"agent": "desk", "split": "gate", "model": "m", "tasks": range(5)}
    with pytest.raises(KeyboardInterrupt):
        measure(database, ARM, run=dies, **arguments)
    result = measure(database, ARM, run=runner(lambda t: True, ran), **arguments)
    assert ran == [2, 3, 4]
    assert result.outcomes == {"0": True, "1": False, "2": True, "3": True, "4": True}


def test_other_policies_splits_and_models_are_measured_on_their_own(database):
    ran: list = []
    common = {"agent": "desk", "tasks": [1], "run": runner(bool, ran)}
    measure(database, ARM, split="gate", model="m", **common)
    measure(database, ARM, split="report", model="m", **common)
    measure(database, ARM, split="gate", model="other", **common)
    measure(database, Arm("base", fingerprint("changed")), split="gate", model="m", **common)
    assert len(ran) == 4


def test_an_unknown_outcome_is_no_failure(database):
    result = measure(
        database,
        ARM,
        agent="desk",
        split="gate",
        model="m",
        tasks=range(4),
        run=runner(lambda t: None if t == 3 else True, []),
    )
    assert (result.n, result.unknown, result.success) == (3, 1, 1.0)


def test_a_broken_target_is_said_and_not_counted(database):
    with pytest.raises(TraceError, match="4 of 4 runs of the target ended without an outcome"):
        measure(database, ARM, agent="d", split="gate", model="m", tasks=range(4), run=runner(lambda t: None, []))


def test_a_split_without_tasks_is_said(database):
    with pytest.raises(TraceError, match="no tasks in the gate split"):
        measure(database, ARM, agent="d", split="gate", model="m", tasks=[], run=runner(bool, []))


def test_tasks_are_named_by_what_they_say():
    assert task_key({"b": 1, "a": 2}) == task_key({"a": 2, "b": 1}) != task_key({"a": 2, "b": 2})
    assert len(task_key({"text": "x" * 500})) <= 120
