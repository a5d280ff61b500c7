"""The stage that makes an environment suit the policy: real database and requests, a server with written answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import select

from harness.environment import Act
from harness.serving.client import VLLMClient
from harness.serving.gateway import Gateway
from loop.cycle.graph import CycleState, first_state
from loop.cycle.measuring import Measuring
from loop.cycle.settings import CalibrationSettings, CycleSettings
from loop.cycle.stages import CALIBRATION_SEEDS, CycleStages
from loop.synthesis.difficulty import ladder
from loop.synthesis.induced import Difficulty, InducedEnvironment, induce
from storage import tables
from storage.database import Database, open_database
from storage.errors import TraceError
from tests.examples.scripted import scripted_server
from tests.loop.synthesis import toy

TASKS = 6


@pytest.fixture(scope="module")
def library() -> InducedEnvironment:
    made = induce(toy.runs(toy.library_renewal, 12))
    assert isinstance(made, InducedEnvironment), made.lines()
    return made


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with open_database(home=tmp_path) as opened:
        yield opened


def model(library: InducedEnvironment, able: Callable[[int], bool]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Solves a task in those episodes for which ``able`` is true of their number, which begins at 0."""
    known: dict[str, list[Act]] = {}  # the knobs change the world around a task, and not what solves it
    for seed in range(CALIBRATION_SEEDS, CALIBRATION_SEEDS + TASKS):
        task = library.reset(seed)
        known[str(task.messages[-1]["content"])] = list(library.reference())
    begun = count()

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        messages = request["messages"]
        said = [m for m in messages if m["role"] == "assistant"]
        if not said and not able(next(begun)):
            return {"content": "I don't know."}
        acts = known[next(str(m["content"]) for m in messages if m["role"] == "user")]
        act = acts[len(said)]
        if act.tool is None:
            return {"content": act.text}
        function = {"name": act.tool, "arguments": json.dumps(dict(act.arguments))}
        return {"tool_calls": [{"id": f"c{len(said)}", "type": "function", "function": function}]}

    return answer


def calibrated(
    db: Database, home: Path, library: InducedEnvironment, able: Callable[[int], bool], *, turn: bool = True
) -> tuple[tables.Environment, str, list[str]]:
    """The environment's row after the stage, what the stage hands on, and what it said."""
    (home / "config.json").write_text("{}")
    cycle = tables.Cycle(agent="library")
    row = tables.Environment(name="renewal", agent="library", spec=library.to_json(), state="admitted")
    with db.transaction() as session:
        session.add(tables.Agent(name="library"))
        session.flush()
        session.add_all([cycle, row])
    settings = CycleSettings(
        agent="library",
        model=home,
        target="nowhere:Nothing",
        target_cwd=home,
        target_python="python",
        calibration=CalibrationSettings(tasks=TASKS, repeats=4, turn=turn),
    )
    said: list[str] = []
    with scripted_server(model(library, able)) as (url, _):
        server: Any = VLLMClient(url.removesuffix("/v1"))
        measuring = Measuring(db, home, settings, server, Gateway(url), lambda *_: None)
        state: CycleState = {**first_state(cycle.id), "environment": row.id}
        handed = CycleStages(measuring, said.append).calibrate(state)["environment"]
    with db.session() as session:
        return session.get_one(tables.Environment, row.id), handed, said


def test_what_is_too_hard_for_the_policy_is_made_easier_before_it_is_trained(
    db: Database, tmp_path: Path, library: InducedEnvironment
) -> None:
    row, handed, said = calibrated(db, tmp_path, library, lambda episode: episode >= 4 * TASKS and episode % 2 == 0)
    assert handed == row.id
    settings, start = ladder(library.difficulty)
    assert start == 2
    assert row.spec["difficulty"]["distractors"] == settings[1].distractors
    assert row.spec["difficulty"]["other_share"] == library.difficulty.other_share
    assert [line for line in said if line.startswith("with ")] == [
        "with length_bias 0, distractors 2: 0% solved",
        "with length_bias -0.75, distractors 1: 50% solved",
    ]
    with db.session() as session:
        check = session.get_one(tables.AdmissionCheck, (row.id, 1, "calibration_success"))
    assert check.value == 0.5
    assert "distractors 1" in check.detail


def test_what_suits_already_is_left_as_it_is(db: Database, tmp_path: Path, library: InducedEnvironment) -> None:
    row, handed, said = calibrated(db, tmp_path, library, lambda episode: episode % 2 == 0)
    assert handed == row.id
    assert row.spec == library.to_json()
    assert said[-1].startswith("calibration: 50% solved")


def test_knobs_stay_where_they_are_when_they_are_not_to_be_turned(
    db: Database, tmp_path: Path, library: InducedEnvironment
) -> None:
    settled = library.with_difficulty(Difficulty(other_share=0.0))
    row, handed, _ = calibrated(db, tmp_path, settled, lambda episode: episode % 4 == 0, turn=False)
    assert handed == row.id
    assert row.spec == settled.to_json()


def test_a_server_that_is_gone_says_nothing_about_the_environment(
    db: Database, tmp_path: Path, library: InducedEnvironment
) -> None:
    def gone(episode: int) -> bool:
        raise ConnectionError  # the connection is closed without an answer

    with pytest.raises(TraceError, match="no episode of the calibration"):
        calibrated(db, tmp_path, library, gone)
    with db.session() as session:
        (row,) = session.exec(select(tables.Environment)).all()
        assert session.exec(select(tables.AdmissionCheck)).all() == []
    assert (row.state, row.spec) == ("admitted", library.to_json())


def test_an_environment_that_is_never_solved_is_not_trained_in(
    db: Database, tmp_path: Path, library: InducedEnvironment
) -> None:
    _, handed, said = calibrated(db, tmp_path, library, lambda episode: False)
    assert handed == ""
    assert "nothing that GRPO could learn from" in said[-1]
