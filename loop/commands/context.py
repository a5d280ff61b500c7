"""Where the commands find the home folder and the database: the environment decides, in one place."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storage.database import Database


def home() -> Path:
    """The home folder: TRACE_HOME, or `.trace` here."""
    return Path(os.environ.get("TRACE_HOME") or ".trace")


def database(*, ingest: bool = True) -> Database:
    """The database, migrated; the spool is read in first, so that what commands show is current."""
    from storage.database import open_database
    from storage.ingest import ingest_spool

    opened = open_database(home=home())
    if ingest:
        ingest_spool(opened, home())
    return opened


def require_known(db: Database, ids: Iterable[str]) -> None:
    """Raise TraceError for the first id that no run has."""
    from storage import overview
    from storage.errors import TraceError

    with db.engine.connect() as connection:
        for id in ids:
            if not overview.is_known(connection, id):
                fix = "`trace-sdk trajectories list` has ids."
                raise TraceError(f"no trajectory has the id {id}", where=db.location, fix=fix)
