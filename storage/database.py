"""Opening the database: where it is, whether it is ours, and the newest schema on it before anyone uses it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, NoSuchModuleError, OperationalError
from sqlmodel import Session

from storage import codec
from storage.errors import TraceError
from storage.migrations import HEAD, VERSION_TABLE

log = structlog.get_logger()

_BUSY_SECONDS = 30
_CACHE_KIB = 64 << 10
# The log's pages that a commit may leave before it has to copy them itself.
_LOG_PAGES = 8192
_BULK_LOG_PAGES = 32768
_COMMITS_PER_COPY = 6
# Any fixed number: PostgreSQL's lock that keeps two processes from migrating at once.
_MIGRATION_LOCK = 0x7472616365


class Database:
    """An open database with the newest schema. One for a process; its sessions may be used in any thread."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @property
    def location(self) -> str:
        """Path or address, without a password, as it may be shown."""
        url = self.engine.url
        return (url.database or ":memory:") if url.drivername.startswith("sqlite") else url.render_as_string()

    def session(self) -> Session:
        """A session to read with, or to write with by `commit()`. Rows stay usable after it is closed."""
        return Session(self.engine, expire_on_commit=False)

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """A session that commits at the end of the block, and rolls back if the block raises.

        On SQLite it holds the write lock from the start: it waits for another writer, instead of failing when
        what it has read turns out to be stale. Don't nest it, and don't call a writing function inside it.
        """
        engine = self.engine.execution_options(immediate=True)
        with Session(engine, expire_on_commit=False) as session, session.begin():
            yield session

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """Like `transaction`, without the object mapper: for bulk work."""
        with self.engine.execution_options(immediate=True).begin() as connection:
            yield connection

    @contextmanager
    def bulk(self) -> Iterator[Database]:
        """The same database for many large transactions in a row, each a `connection`: SQLite's log is copied into the
        file by a thread, beside the next transactions, and not by a commit that waits for it."""
        if self.engine.dialect.name != "sqlite":
            yield self
            return
        copier = _LogCopier(self.engine)
        try:
            yield _BulkDatabase(self.engine.execution_options(bulk=True), copier)
        finally:
            copier.close()

    def close(self) -> None:
        """Give the connections back. An open database can be closed at any time; sessions then reopen it."""
        self.engine.dispose()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _BulkDatabase(Database):
    def __init__(self, engine: Engine, copier: _LogCopier) -> None:
        super().__init__(engine)
        self._copier = copier

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        with super().connection() as connection:
            yield connection
        self._copier.committed()


class _LogCopier:
    """Copies the write-ahead log into the database file. SQLite lets a writer go on meanwhile, and Python another
    thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._thread = ThreadPoolExecutor(1, "trace-log-copier")
        self._copying: Future[None] | None = None
        self._commits = 0

    def committed(self) -> None:
        """After every few commits the log is copied by the thread, so that pages that all of them change are copied
        once; when that is done, what was added since is copied here: the log starts again from its beginning only when
        all of it was copied."""
        if self._copying is None:
            self._commits += 1
            if self._commits % _COMMITS_PER_COPY == 0:
                self._copying = self._thread.submit(self._copy)
        elif self._copying.done():
            self._copying.result()
            self._copying = None
            self._copy()

    def close(self) -> None:
        """Wait for what is being copied."""
        self._thread.shutdown()
        if self._copying is not None:
            self._copying.result()

    def _copy(self) -> None:
        # A failure loses nothing: the log is kept, and copied another time.
        try:
            # Not through a transaction, within which SQLite does not copy.
            with closing(self._engine.raw_connection()) as connection, closing(connection.cursor()) as cursor:
                cursor.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except (DatabaseError, sqlite3.Error) as error:
            log.warning("database.log_not_copied", reason=str(error))


def home_folder(home: Path | None = None) -> Path:
    """The folder that holds spool, database, adapters and reports: as given, else TRACE_HOME, else `.trace`."""
    return home if home is not None else Path(os.environ.get("TRACE_HOME") or ".trace")


def open_database(url: str | None = None, home: Path | None = None, *, durable: bool = False) -> Database:
    """Open (and create, and migrate) the database of ``url``, else of TRACE_DATABASE_URL, else `{home}/trace.db`.

    ``durable``: a commit is on the disk itself when it returns, for who deletes his own copy then.

    Raises TraceError if it cannot be opened or written, isn't a database, or belongs to something else or to a
    newer version of this project.
    """
    given = url or os.environ.get("TRACE_DATABASE_URL")
    target = _parse(given) if given else URL.create("sqlite", database=str(home_folder(home) / "trace.db"))
    sqlite = target.get_backend_name() == "sqlite"
    where = (target.database or ":memory:") if sqlite else target.render_as_string()
    if sqlite and target.database not in (None, "", ":memory:"):
        _make_folder(Path(str(target.database)).parent)
    try:
        engine = create_engine(target, json_serializer=codec.dumps, json_deserializer=codec.loads)
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        fix = "pip install 'psycopg[binary]' and use postgresql+psycopg://" if "postgres" in where else ""
        raise TraceError(f"no driver for this database: {error}", where=where, fix=fix) from error
    if sqlite:
        event.listen(engine, "connect", _configure_sqlite)
        if durable:
            event.listen(engine, "connect", _sync_each_commit)
        event.listen(engine, "begin", _begin_sqlite)
    database = Database(engine)
    try:
        _migrate(database, where)
    except DatabaseError as error:
        database.close()
        raise _explained(error, where) from error
    except BaseException:
        database.close()
        raise
    return database


def _parse(url: str) -> URL:
    try:
        return make_url(url)
    except ArgumentError as error:
        fix = "Use sqlite:///PATH or postgresql+psycopg://USER:PASSWORD@HOST/NAME."
        # The address may hold a password, so it isn't repeated.
        raise TraceError("the database's address cannot be read", where="TRACE_DATABASE_URL", fix=fix) from error


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise TraceError(
            f"the database's folder cannot be made: {reason}",
            where=str(folder),
            fix="Set TRACE_HOME to a folder that can be written.",
        ) from error


def _configure_sqlite(connection: Any, _record: Any) -> None:
    # Python's sqlite3 would begin transactions on its own, and not before DDL; we do it in _begin_sqlite.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {_BUSY_SECONDS * 1000}")
    cursor.execute("PRAGMA journal_mode = WAL")
    # In WAL mode a power cut can lose the last commits but never corrupts; the spool still has what they held.
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.execute("PRAGMA foreign_keys = ON")
    # The default of 2 MB writes pages of a large transaction out and reads them in again, several times each.
    cursor.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    # Whoever commits the page that fills the log copies it into the file, and waits for the disk twice; by default
    # every 4 MB, which is less than one reading of the spool. `Database.bulk` copies beside the writer.
    cursor.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
    cursor.close()


def _sync_each_commit(connection: Any, _record: Any) -> None:
    connection.execute("PRAGMA synchronous = FULL").close()


def _begin_sqlite(connection: Connection) -> None:
    options = connection.get_execution_options()
    pages = _BULK_LOG_PAGES if options.get("bulk") else _LOG_PAGES
    # A connection keeps what its last user has set.
    if connection.info.get("log_pages", _LOG_PAGES) != pages:
        connection.exec_driver_sql(f"PRAGMA wal_autocheckpoint = {pages}")
        connection.info["log_pages"] = pages
    connection.exec_driver_sql("BEGIN IMMEDIATE" if options.get("immediate") else "BEGIN")


def _migrate(database: Database, where: str) -> None:
    with database.engine.connect() as connection:
        if _revision(connection, where) == HEAD:
            return
    from storage.migrations import runner

    with database.connection() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATION_LOCK})
        # Read again: another process may have migrated while this one waited for the lock.
        revision = _revision(connection, where)
        if revision == HEAD:
            return
        if revision is not None and revision not in runner.known_revisions():
            raise TraceError(
                f"the database was written by a newer version (schema {revision}, this one knows {HEAD})",
                where=where,
                fix="Upgrade trace-sdk-worker, or set TRACE_HOME to another folder.",
            )
        runner.upgrade(connection)


def _revision(connection: Connection, where: str) -> str | None:
    """The schema's revision, None for an empty database. Raises TraceError if somebody else's tables are there."""
    names = inspect(connection).get_table_names()
    if VERSION_TABLE in names:
        return connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    if names:
        shown = ", ".join(sorted(names)[:3])
        raise TraceError(
            f"this database belongs to something else (it has tables {shown}…)",
            where=where,
            fix="Set TRACE_DATABASE_URL or TRACE_HOME to a place of its own.",
        )
    return None


def is_full(error: DatabaseError) -> bool:
    """Whether the database failed because its disk, or its quota, is full."""
    return "is full" in str(error.orig) or getattr(error.orig, "sqlstate", None) == "53100"


def _explained(error: DatabaseError, where: str) -> TraceError:
    reason = str(error.orig).strip().splitlines()[0] if error.orig and str(error.orig).strip() else str(error)
    if "not a database" in reason or "malformed" in reason:
        return TraceError(
            "this file is not a database", where=where, fix="Move it away, or set TRACE_HOME to another folder."
        )
    if "readonly" in reason or "read-only" in reason or "unable to open" in reason:
        fix = "Check that the path is a file in a folder you may write to, or set TRACE_HOME to another folder."
        return TraceError(f"the database cannot be written: {reason}", where=where, fix=fix)
    if is_full(error):
        return TraceError("no space is left for the database", where=where, fix="Make room, and run this again.")
    if "locked" in reason:
        return TraceError(
            f"another process has held the database for {_BUSY_SECONDS} seconds", where=where, fix="Try again."
        )
    kind = "reached" if isinstance(error, OperationalError) else "used"
    return TraceError(f"the database cannot be {kind}: {reason}", where=where, fix="Check TRACE_DATABASE_URL.")
