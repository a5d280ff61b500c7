"""Opening a database: whose it is, which schema it has, and what is said when it can't be used."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import IntegrityError
from sqlalchemy.schema import CreateIndex, CreateTable

from storage import bulk, states, tables
from storage.database import Database, open_database
from storage.errors import TraceError
from storage.migrations import HEAD, VERSION_TABLE, runner


def test_a_new_home_gets_the_newest_schema_with_wal_and_foreign_keys(tmp_path: Path) -> None:
    with open_database(home=tmp_path / "home") as db, db.engine.connect() as connection:
        pragma = lambda name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()  # noqa: E731
        assert connection.scalar(text(f"SELECT version_num FROM {VERSION_TABLE}")) == HEAD
        assert pragma("journal_mode") == "wal"
        assert pragma("foreign_keys") == 1
        assert pragma("synchronous") == 1
        assert pragma("busy_timeout") == 30_000
    assert (tmp_path / "home" / "trace.db").exists()


def test_the_revisions_make_exactly_the_tables(tmp_path: Path) -> None:
    with open_database(home=tmp_path) as db, db.engine.connect() as connection:
        assert runner.differences(connection) == []
    assert runner.head() == HEAD


def test_the_revisions_make_exactly_the_tables_on_postgresql_too(postgresql: Callable[[], str]) -> None:
    with open_database(postgresql()) as db, db.engine.connect() as connection:
        assert runner.differences(connection) == []


def test_foreign_keys_are_enforced(db: Database) -> None:
    with pytest.raises(IntegrityError), db.transaction() as session:
        session.add(tables.Capability(agent="nobody", name="x"))


def test_a_file_that_is_not_a_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "trace.db").write_bytes(b"these are not the bytes of a database" * 40)
    with pytest.raises(TraceError, match=r"not a database") as caught:
        open_database(home=tmp_path)
    assert caught.value.where == str(tmp_path / "trace.db")
    assert caught.value.fix


def test_somebody_elses_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE customers (id)")
        # Another application may use Alembic too.
        connection.execute("CREATE TABLE alembic_version (version_num)")
    with pytest.raises(TraceError, match=r"belongs to something else.*customers"):
        open_database(f"sqlite:///{path}")
    with sqlite3.connect(path) as connection:
        names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    assert names == {"customers", "alembic_version"}


def test_a_database_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    with open_database(home=tmp_path) as db, db.connection() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    with pytest.raises(TraceError, match=r"newer version \(schema 9999"):
        open_database(home=tmp_path)


def test_paths_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceError, match="folder cannot be made"):
        open_database(home=tmp_path / "file" / "home")
    (tmp_path / "trace.db").mkdir()
    with pytest.raises(TraceError, match="cannot be written"):
        open_database(home=tmp_path)


@pytest.mark.parametrize(
    ("url", "says"),
    [("this is no address", "cannot be read"), ("oracle+nothing://u:secret@h/d", "no driver")],
)
def test_an_address_that_cannot_be_used_is_named_without_its_password(url: str, says: str) -> None:
    with pytest.raises(TraceError, match=says) as caught:
        open_database(url)
    assert "secret" not in str(caught.value)


def test_processes_that_open_a_new_home_at_once_all_get_it(tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def open_it() -> None:
        try:
            open_database(home=tmp_path).close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_transaction_waits_for_another_writer_instead_of_failing(tmp_path: Path) -> None:
    with open_database(home=tmp_path) as db:
        with db.transaction() as session:
            session.add(tables.Agent(name="a"))

        def rename(suffix: str) -> None:
            for _ in range(20):
                with db.transaction() as session:
                    # Reads first: a deferred transaction would fail here when the other has written since.
                    agent = session.get(tables.User, "u") or tables.User(id="u", created_at=0)
                    agent.created_at += 1
                    session.add(agent)

        threads = [threading.Thread(target=rename, args=(s,)) for s in "xy"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with db.session() as session:
            user = session.get(tables.User, "u")
        assert user is not None
        assert user.created_at == 40


def test_a_transaction_that_raises_leaves_nothing(db: Database) -> None:
    def fail_halfway() -> None:
        with db.transaction() as session:
            session.add(tables.Agent(name="a"))
            session.flush()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_halfway()
    with db.session() as session:
        assert session.get(tables.Agent, "a") is None


def test_every_table_and_index_can_be_written_for_postgresql() -> None:
    for table in tables.Row.metadata.sorted_tables:
        assert str(CreateTable(table).compile(dialect=postgresql.dialect()))
        for index in table.indexes:
            assert str(CreateIndex(index).compile(dialect=postgresql.dialect()))


def test_every_foreign_key_has_an_index() -> None:
    for table in tables.Row.metadata.sorted_tables:
        leading = {next(iter(i.columns)).name for i in table.indexes} | {next(iter(table.primary_key.columns)).name}
        for key in table.foreign_keys:
            assert key.parent.name in leading, f"{table.name}.{key.parent.name}"


def test_every_state_begins_where_its_machine_begins_and_only_moves_legally(tmp_path: Path) -> None:
    assert set(tables.STATEFUL) == set(states.MACHINES)
    for name, table in tables.STATEFUL.items():
        assert table.__table__.c.state.default.arg == next(iter(states.MACHINES[name]))  # type: ignore[attr-defined]
    adapter = tables.Adapter(name="x", version=1, path="p", sha256="s", base="b")
    with open_database(home=tmp_path) as db, db.session() as session:
        session.add(adapter)
        session.commit()
        # From the database too, where the old value has first to be read.
        session.expire_all()
        adapter.state = "active"
        with pytest.raises(states.IllegalTransition, match="active → candidate"):
            adapter.state = "candidate"
        with pytest.raises(states.IllegalTransition, match="'asleep' is not one of"):
            adapter.state = "asleep"
        adapter.state = "retired"
        adapter.state = "active"


def test_bulk_transactions_leave_a_short_log_and_others_are_as_strict_as_before(tmp_path: Path) -> None:
    with open_database(home=tmp_path) as db:

        def log_pages() -> int:
            with db.connection() as connection:
                return connection.exec_driver_sql("PRAGMA wal_autocheckpoint").scalar() or 0

        usual = log_pages()
        with db.bulk() as writing:
            for number in range(60):
                with writing.connection() as connection:
                    assert (connection.exec_driver_sql("PRAGMA wal_autocheckpoint").scalar() or 0) > usual
                    rows = [{"sha256": f"{number}-{n}", "tools": "x" * 100_000} for n in range(40)]
                    bulk.insert_rows(connection, tables.ToolSet, rows)
        assert log_pages() == usual
        with db.engine.connect() as connection:
            assert connection.exec_driver_sql("SELECT count(*) FROM tool_set").scalar() == 2400
        # 240 MB went through it.
        assert (tmp_path / "trace.db-wal").stat().st_size < 100 << 20
