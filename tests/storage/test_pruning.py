"""What is deleted is gone, from the tables and from the file; what others share or say stays."""

from __future__ import annotations

from pathlib import Path

from sqlmodel import col, select

from storage import pruning, tables, trajectories
from storage.database import Database
from tests.storage.test_trajectories import count, run


def remaining(db: Database) -> set[str]:
    return {t.id for t in trajectories.load(db)}


def test_only_content_that_nobody_shares_goes(db: Database) -> None:
    tools = ({"type": "function", "function": {"name": "find"}},)
    longer = run("hello", "hi", "my secret is blue", "noted", user="u1", tools=tools)
    shorter = run("hello", "hi", user="u2", tools=tools)
    trajectories.save(db, [shorter, longer], "episode")
    trajectories.add_outcome(db, longer.id, False, reason="blue is wrong")

    found, running = pruning.matching(db, user="u1")
    assert (found, running) == ([longer.id], 0)
    done = pruning.prune(db, found)
    assert (done.trajectories, done.tool_sets) == (1, 0)
    assert trajectories.get(db, shorter.id).messages == shorter.messages
    assert trajectories.get(db, shorter.id).tools == tools
    assert count(db, tables.Outcome) == 0
    with db.session() as session:
        assert session.exec(select(col(tables.User.id))).all() == ["u2"]

    done = pruning.prune(db, pruning.matching(db, user="u2")[0])
    assert (done.trajectories, done.tool_sets) == (1, 1)
    assert [count(db, table) for table in (tables.Trajectory, tables.MessageList, tables.User)] == [0, 0, 0]


def test_no_word_of_it_stays_in_the_files(db: Database, tmp_path: Path) -> None:
    kept, secret = run("hello"), run("the passphrase is marzipan-tugboat")
    trajectories.save(db, [kept, secret], "episode")
    pruning.prune(db, [secret.id])
    db.close()
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"marzipan-tugboat" not in path.read_bytes(), path


def test_conditions_are_met_all_together_and_none_means_nothing(db: Database) -> None:
    old = run("a", session="s", started_at=100.0)
    new = run("b", session="s", started_at=900.0)
    other = run("c", session="t", started_at=100.0, agent="clerk")
    undated = run("d", session="s")
    trajectories.save(db, [old, new, other, undated], "episode")
    assert pruning.matching(db) == ([], 0)
    assert pruning.matching(db, session="s", before=500.0)[0] == [old.id]
    assert set(pruning.matching(db, before=500.0)[0]) == {old.id, other.id}
    assert pruning.matching(db, before=500.0, agent="clerk")[0] == [other.id]
    assert pruning.matching(db, ids=[new.id], before=500.0) == ([], 0)


def test_runs_that_it_started_go_with_it_and_a_running_one_stays(db: Database) -> None:
    top, sub, deeper, alone = (run(text) for text in ("top", "sub", "deeper", "alone"))
    trajectories.save(db, [top, sub, deeper, alone], "episode")
    with db.transaction() as session:
        for child, parent in ((sub, top), (deeper, sub)):
            session.get_one(tables.Trajectory, child.id).parent = parent.id
        session.get_one(tables.Trajectory, alone.id).state = "completed"
    found, _ = pruning.matching(db, ids=[top.id])
    assert set(found) == {top.id, sub.id, deeper.id}
    pruning.prune(db, found)
    assert remaining(db) == {alone.id}


def test_labels_go_and_what_was_computed_stays(db: Database) -> None:
    gone, kept = run("a"), run("b")
    trajectories.save(db, [gone, kept], "episode")
    with db.transaction() as session:
        analysis = tables.Analysis(agent="desk", failed=1, succeeded=1)
        capability = tables.Capability(agent="desk", name="Looking up")
        evaluation = tables.Evaluation(arm="base", split="gate", n=2, successes=1)
        session.add_all([analysis, capability, evaluation])
        session.flush()
        for each in (gone, kept):
            session.add(tables.Label(analysis=analysis.id, capability=capability.id, trajectory=each.id, value="NA"))
            episode = {"evaluation": evaluation.id, "task": each.id, "trajectory": each.id, "success": True}
            session.add(tables.EvaluationEpisode(**episode))
    pruning.prune(db, [gone.id])
    with db.session() as session:
        assert session.exec(select(col(tables.Label.trajectory))).all() == [kept.id]
        episodes = session.exec(select(tables.EvaluationEpisode)).all()
        assert {(e.task, e.trajectory, e.success) for e in episodes} == {
            (gone.id, None, True),
            (kept.id, kept.id, True),
        }
        assert session.exec(select(col(tables.Analysis.failed))).all() == [1]
