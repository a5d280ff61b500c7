"""Alembic, called as a library on a connection of ours. Imported only when there is something to migrate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from storage.migrations import VERSION_TABLE
from storage.tables import Row


def config(connection: Connection | None = None) -> Config:
    """Alembic's settings: the revisions lie beside this file, in a checkout and in an installed wheel alike."""
    settings = Config()
    settings.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    settings.attributes["connection"] = connection
    return settings


def upgrade(connection: Connection) -> None:
    """Bring the schema to the newest revision, inside the transaction that the caller has begun."""
    command.upgrade(config(connection), "head")


def known_revisions() -> set[str]:
    """All revisions this version has; any other was made by a newer one."""
    return {script.revision for script in ScriptDirectory.from_config(config()).walk_revisions()}


def head() -> str | None:
    """The newest revision among the files."""
    return ScriptDirectory.from_config(config()).get_current_head()


def differences(connection: Connection) -> list[Any]:
    """What the tables have and the migrated database lacks, or the other way round."""
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "compare_type": True})
    return compare_metadata(context, Row.metadata)


def revise(connection: Connection, message: str, number: str) -> None:
    """Write the revision that turns this (migrated) database into what the tables say."""
    command.revision(config(connection), message, autogenerate=True, rev_id=number)
