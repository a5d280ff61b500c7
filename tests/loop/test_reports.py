"""The report is what the rows say: counted again from them, whatever was printed before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from loop import reports
from storage import tables
from storage.database import Database, open_database
from storage.errors import TraceError

TASKS = [f"t{n}" for n in range(20)]
SOLVED = {"base": 5, "warm_start": 9, "routed": 16}


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with open_database(home=tmp_path) as opened:
        yield opened


def measured(db: Database, state: str = "promoted") -> str:
    """An ended cycle whose arms solved the first tasks of `TASKS`, each as many as `SOLVED` says."""
    cycle = tables.Cycle(agent="desk", state=state)
    run = tables.TrainingRun(kind="grpo", cycle=cycle.id, state="done")
    adapter = tables.Adapter(name="look-up", version=1, path="/a", sha256="aa", base="/m", parent_sha256="bb")
    with db.transaction() as session:
        session.add(tables.Agent(name="desk"))
        session.flush()
        session.add_all([cycle, adapter])
        session.flush()
        run.adapter = adapter.id
        session.add(run)
        session.flush()
        for step, (groups, informative, guided) in enumerate([(4, 0.5, 1), (6, 1.0, 2)], 1):
            metrics = {"groups": groups, "guided": guided, "rollouts": groups * 4}
            session.add(
                tables.TrainingStep(
                    run=run.id, step=step, reward=0.1 * step, informative_groups=informative, tokens=50, metrics=metrics
                )
            )
        arms = {}
        for name, solved in SOLVED.items():
            evaluation = tables.Evaluation(cycle=cycle.id, arm=name, split="report")
            session.add(evaluation)
            session.flush()
            for n, task in enumerate(TASKS):
                session.add(tables.EvaluationEpisode(evaluation=evaluation.id, task=task, success=n < solved))
            arms[name] = {"evaluation": evaluation.id, "tasks": TASKS}
        session.add(tables.GateDecision(cycle=cycle.id, verdict="promote", reason="better", gain=0.5, p_value=0.01))
        cycle.report = {"arms": arms, "minutes": 1.5}
    return cycle.id


def test_arms_and_grpos_part_are_counted_from_the_episodes(db: Database) -> None:
    report = reports.build(db, measured(db))
    assert {name: (arm["n"], arm["successes"]) for name, arm in report["arms"].items()} == {
        name: (20, solved) for name, solved in SOLVED.items()
    }
    grpo = report["grpo"]
    assert (grpo["optimizer_steps"], grpo["adapter_sha256"], grpo["warm_start_sha256"]) == (2, "aa", "bb")
    assert grpo["informative_groups"] == pytest.approx((4 * 0.5 + 6 * 1.0) / 10)
    assert grpo["guided_groups"] == pytest.approx((1 + 2) / 10)
    assert grpo["gain_over_warm_start"] == pytest.approx(7 / 20)
    assert grpo["gain_ci"][0] > 0
    assert (report["rollouts"], report["tokens"]) == (40, 100)
    text = reports.render(report)
    assert "GRPO over warm start: +35%" in text
    assert "80% of groups informative, 30% shown the reference" in text
    assert "not shown" not in text
    assert "(not promoted)" not in text


def test_a_part_that_may_be_chance_is_said_to_be_not_shown(db: Database) -> None:
    cycle = measured(db, "held")
    with db.transaction() as session:
        row = session.get_one(tables.Cycle, cycle)
        # Eight of the tasks, all of which both arms solve.
        row.report = {**row.report, "arms": {n: {**arm, "tasks": TASKS[:8]} for n, arm in row.report["arms"].items()}}
        session.add(row)
    report = reports.build(db, cycle)
    assert report["grpo"]["gain_over_warm_start"] == 0
    text = reports.render(report)
    assert "GRPO's part is not shown" in text
    assert "trained adapter, routed (not promoted)" in text


def test_the_latest_report_is_the_latest_cycles_that_has_one(db: Database) -> None:
    with pytest.raises(TraceError, match="no cycle has a report yet"):
        reports.latest_cycle(db)
    cycle = measured(db)
    with db.transaction() as session:
        session.add(tables.Cycle(agent="desk"))
    assert reports.latest_cycle(db).id == cycle


def test_a_report_is_published_whole(db: Database, tmp_path: Path) -> None:
    report = reports.build(db, measured(db))
    path = reports.write(report, tmp_path)
    assert path.read_text().endswith("}")
    assert [p.name for p in path.parent.iterdir()] == ["latest.json"]
