import time
from pathlib import Path

import pytest

from harness.target import RunResult, TargetProcess
from storage.errors import TraceError

# A team's module: an agent that does what its task says, and an evaluation of it.
AGENT = """
import os, sys, time
import trace_sdk as trace

print("module imported")   # noise on stdout, as teams' modules have it

@trace.agent(name="puppet")
def puppet(task):
    if task.get("say"):
        print(task["say"])
        os.write(1, b'{"id": 1, "success": true}\\n')
    if task.get("once") and not os.path.exists(task["once"]):
        open(task["once"], "w").close()
        os._exit(9)
    if task.get("die"):
        print("out of cheese", file=sys.stderr, flush=True)
        os._exit(5)
    if task.get("raise"):
        raise RuntimeError(task["raise"])
    time.sleep(task.get("sleep", 0))
    return os.environ.get("FLAVOUR", "") if task.get("flavour") else task.get("answer")

class Suite:
    def suite(self, split):
        if split == "broken":
            raise KeyError("no such split")
        return [{"answer": True, "split": split}, {"answer": False}]

    def run(self, task):
        result = puppet(task)
        return result == "mint" if task.get("flavour") else result

Evaluation = trace.evaluation(Suite)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "team_agent.py").write_text(AGENT)
    return tmp_path


def target(folder: Path, spec: str = "team_agent:Evaluation", concurrency: int = 4, **env: str) -> TargetProcess:
    return TargetProcess(
        spec, {"TRACE_HOME": str(folder / "home"), **env}, concurrency, cwd=folder, log=folder / "target.log"
    )


def test_tasks_go_in_and_outcomes_come_out_in_order(folder: Path):
    seen: list[RunResult] = []
    with target(folder) as process:
        tasks = process.suite("gate")
        assert tasks == [{"answer": True, "split": "gate"}, {"answer": False}]
        results = process.run_many([*tasks, {"answer": None}, {"answer": 0.25, "sleep": 0.3}], on_result=seen.append)
    assert [r.task_index for r in results] == [0, 1, 2, 3]
    assert [r.success for r in results][:3] == [True, False, None]
    assert results[3].score == 0.25
    assert all(r.error is None and r.trajectory for r in results)
    assert len({r.trajectory for r in results}) == 4
    assert sorted(r.task_index for r in seen) == [0, 1, 2, 3]


def test_the_environment_reaches_the_agent(folder: Path):
    with target(folder, FLAVOUR="mint") as process:
        assert process.run({"flavour": True}).success is True


def test_runs_go_side_by_side(folder: Path):
    with target(folder) as process:
        process.suite("gate")
        began = time.monotonic()
        results = process.run_many([{"answer": True, "sleep": 2.0}] * 4)
        assert time.monotonic() - began < 7.0
    assert [r.success for r in results] == [True] * 4


def test_what_the_agent_prints_is_not_taken_for_an_answer(folder: Path):
    with target(folder) as process:
        results = process.run_many([{"answer": False, "say": "hello"}, {"answer": False, "say": '{"id": 2}'}])
    assert [r.success for r in results] == [False, False]
    assert "hello" in (folder / "target.log").read_text()


def test_an_agent_that_raises_is_an_error_with_its_boundary(folder: Path):
    with target(folder) as process:
        results = process.run_many([{"raise": "boom"}, {"answer": True}])
    assert results[0].error is not None
    assert results[0].error["type"] == "RuntimeError"
    assert "boom" in results[0].error["message"]
    assert results[1].success is True


def test_a_crash_ends_only_the_task_that_caused_it(folder: Path):
    tasks = [{"answer": True, "sleep": 0.5}, {"die": True}, *[{"answer": True, "sleep": 0.2}] * 4]
    with target(folder) as process:
        results = process.run_many(tasks)
    assert [r.success for r in results] == [True, None, True, True, True, True]
    assert results[1].error is not None
    assert results[1].error["boundary"] == "infrastructure"
    assert "status 5" in results[1].error["message"]
    assert "out of cheese" in results[1].error["message"]


def test_an_agent_that_crashes_on_everything_is_a_clear_error(folder: Path):
    with target(folder) as process, pytest.raises(TraceError, match=r"in a row: out of cheese"):
        process.run_many([{"die": True}] * 20)


def test_a_crash_that_does_not_repeat_is_forgiven(folder: Path):
    with target(folder) as process:
        result = process.run({"answer": True, "once": str(folder / "mark")})
    assert result.error is None
    assert result.success is True


def test_a_run_that_takes_too_long_ends_and_the_rest_goes_on(folder: Path):
    tasks = [{"sleep": 60}, {"answer": True}, {"answer": False, "sleep": 0.1}, {"answer": True}]
    with target(folder, concurrency=2) as process:
        process.suite("gate")
        began = time.monotonic()
        results = process.run_many(tasks, timeout_each=2.0)
        assert time.monotonic() - began < 30
    assert results[0].error is not None
    assert results[0].error["type"] == "Timeout"
    assert [r.success for r in results[1:]] == [True, False, True]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("no_such_module:Evaluation", "No module named"),
        ("team_agent:Nothing", "Nothing"),
        ("team_agent", "MODULE:NAME"),
    ],
)
def test_a_target_that_cannot_be_loaded_is_a_clear_error(folder: Path, spec: str, words: str):
    with target(folder, spec) as process:
        with pytest.raises(TraceError, match=words) as caught:
            process.suite("gate")
        assert caught.value.where == str(folder / "target.log")
        with pytest.raises(TraceError, match=words):
            process.run({})


def test_a_target_without_suites_or_with_a_broken_one_is_a_clear_error(folder: Path):
    with target(folder) as process, pytest.raises(TraceError, match="no such split"):
        process.suite("broken")
    with target(folder, "team_agent:puppet") as process:
        with pytest.raises(TraceError, match="suite"):
            process.suite("gate")
        assert process.run({"answer": True}).error is None


def test_an_interpreter_that_does_not_exist_is_a_clear_error(folder: Path):
    process = TargetProcess("team_agent:Evaluation", cwd=folder, python=str(folder / "python"), log=folder / "log")
    with pytest.raises(TraceError, match="python"):
        process.suite("gate")
    with pytest.raises(TraceError, match="python"):
        process.run_many([{}] * 10)
