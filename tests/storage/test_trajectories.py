"""Runs come back from the database as they went in, are stored once, and carry the verdict that counts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select

from storage import tables, trajectories
from storage.database import Database, open_database
from storage.errors import TraceError
from storage.ids import new_id
from storage.trajectory import Message, ToolCall, Trajectory


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    url = request.getfixturevalue("postgresql")() if request.param == "postgresql" else None
    with open_database(url, home=tmp_path_factory.mktemp("home")) as opened:
        yield opened


def run(*texts: str, **fields: Any) -> Trajectory:
    messages = [
        Message("system", "You help."),
        *(Message("user" if i % 2 == 0 else "assistant", t) for i, t in enumerate(texts)),
    ]
    return Trajectory(**{"id": new_id(), "agent": "desk", "messages": tuple(messages), **fields})


def count(db: Database, table: type[tables.Row]) -> int:
    with db.engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(table)) or 0


# Any character, half surrogate pairs and NUL included: models and tools produce them all.
TEXT = st.text(st.characters(codec=None, categories=None), max_size=20)
CALL = st.builds(ToolCall.parse, st.text(max_size=5), st.text(min_size=1, max_size=5), TEXT)
MESSAGE = st.one_of(
    st.builds(Message, st.sampled_from(["system", "user", "assistant"]), TEXT),
    st.builds(Message, st.just("assistant"), TEXT, st.tuples(CALL) | st.tuples(CALL, CALL)),
    st.builds(Message, st.just("tool"), TEXT, st.just(()), st.text(max_size=5), st.none() | st.text(max_size=5)),
)
PLAIN = st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=8)
RUN = st.builds(
    Trajectory,
    id=st.builds(new_id),
    agent=st.sampled_from(["a", "b"]),
    messages=st.lists(MESSAGE, max_size=6).map(tuple),
    tools=st.sampled_from([(), ({"type": "function", "function": {"name": "f", "parameters": {"é": "\ud800"}}},)]),
    task=PLAIN,
    model=PLAIN,
    session=PLAIN,
    user=PLAIN,
    tags=st.sets(st.text("abc", min_size=1, max_size=3)).map(lambda tags: tuple(sorted(tags))),
    status=st.sampled_from(["running", "completed", "raised", "aborted"]),
    success=st.none() | st.booleans(),
    score=st.none() | st.floats(0, 1),
    reference=st.booleans(),
    trainable=st.booleans(),
    error=st.none() | st.just({"type": "E", "message": "m", "boundary": "tool"}),
    started_at=st.floats(0, 2e9),
    metadata=st.dictionaries(st.text(max_size=3), st.integers() | TEXT, max_size=2),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(RUN, min_size=1, max_size=4))
def test_what_is_saved_is_what_is_loaded(shared: Database, runs: list[Trajectory]) -> None:
    assert trajectories.save(shared, runs, "episode") == trajectories.SaveReport(len(runs), 0)
    loaded = {t.id: t for t in trajectories.load(shared, ids=[t.id for t in runs])}
    assert loaded == {t.id: t for t in runs}
    assert trajectories.save(shared, runs, "episode") == trajectories.SaveReport(0, len(runs))


def test_shared_content_is_stored_once(db: Database) -> None:
    tools = ({"type": "function", "function": {"name": "find"}},)
    first = run("hello", "hi", tools=tools, started_at=1.0)
    longer = run("hello", "hi", "find my order", "here", tools=tools, started_at=2.0)
    other = run("goodbye", "bye", tools=tools, started_at=3.0)
    for batch in ([first], [longer, other]):
        trajectories.save(db, batch, "episode")
    with db.session() as session:
        lists = {m.count: m for m in session.scalars(select(tables.MessageList)) if "goodbye" not in m.messages}
    assert count(db, tables.ToolSet) == 1
    assert count(db, tables.MessageList) == 4
    assert lists[1].parent is None
    assert lists[3].parent == lists[1].sha256
    assert lists[5].parent == lists[3].sha256
    assert "You help." in lists[1].messages
    assert all("You help." not in lists[n].messages for n in (3, 5))
    assert "hello" not in lists[5].messages
    assert [t.messages for t in trajectories.load(db)] == [first.messages, longer.messages, other.messages]


def test_filters_select_what_they_say_and_limit_the_rest(db: Database) -> None:
    runs = [
        run("1", success=True, model="m", started_at=3.0),
        run("2", success=False, policy="1/base", started_at=1.0),
        run("3", agent="other", tags=("night",), started_at=2.0),
        run("4", success=True, reference=True, started_at=4.0),
    ]
    trajectories.save(db, runs, "episode")

    def texts(**filters: Any) -> str:
        return "".join(t.messages[1].content for t in trajectories.load(db, **filters))

    assert texts() == "2314"
    assert texts(agent="desk") == "214"
    assert texts(success=True) == "14"
    assert texts(success=False) == "2"
    assert texts(success=None) == "3"
    assert texts(reference=False, success=True) == "1"
    assert texts(model="m") == "1"
    assert texts(policy="1/base") == "2"
    assert texts(tag="night") == "3"
    assert texts(limit=2) == "23"
    assert texts(ids=[runs[3].id, runs[0].id, "missing"]) == "14"
    assert texts(ids=[]) == ""
    with pytest.raises(TraceError, match="no trajectory has the id missing"):
        trajectories.get(db, "missing")


def test_the_latest_verdict_counts_and_all_are_kept(db: Database) -> None:
    ran = run("x", success=True, started_at=100.0)
    trajectories.save(db, [ran], "episode")
    trajectories.add_outcome(db, ran.id, False, 0.2, "user", "wrong order", at=300.0)
    trajectories.add_outcome(db, ran.id, True, 0.9, "checker", at=200.0)
    stored = trajectories.get(db, ran.id)
    assert (stored.success, stored.score) == (False, 0.2)
    history = [(o.at, o.success, o.source, o.reason) for o in trajectories.outcomes(db, ran.id)]
    assert history == [
        (100.0, True, "episode", None),
        (200.0, True, "checker", None),
        (300.0, False, "user", "wrong order"),
    ]
    trajectories.add_outcome(db, ran.id, None, at=400.0)
    assert trajectories.get(db, ran.id).success is None


def test_a_verdict_may_come_before_its_run(db: Database) -> None:
    ran = run("x", started_at=100.0)
    trajectories.add_outcome(db, ran.id, False, source="user", at=50.0)
    trajectories.save(db, [ran], "episode")
    assert trajectories.get(db, ran.id).success is False


def test_tools_that_were_forgotten_can_be_added_and_nothing_else_changes(db: Database) -> None:
    ran = run("x", task="t")
    trajectories.save(db, [ran], "episode")
    tools = ({"type": "function", "function": {"name": "find"}},)
    trajectories.save(db, [dataclasses.replace(ran, tools=tools, task="other")], "episode")
    assert trajectories.get(db, ran.id) == dataclasses.replace(ran, tools=tools)


def test_two_records_of_one_id_in_one_save_are_one(db: Database) -> None:
    ran = run("x")
    assert trajectories.save(db, [ran, ran], "episode") == trajectories.SaveReport(1, 1)
