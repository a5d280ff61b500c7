"""Where the commands find the home folder and the database: the environment decides, in one place."""

from __future__ import annotations

import os
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
