"""Revisions of the schema. They run by themselves when a database is opened (`storage.database`).

A new one, after a change in `storage.tables`: `python -m storage.migrations "what changed"`, then set HEAD to it.
A test compares the tables with what the revisions make.
"""

HEAD = "0001"
"""The newest revision, known without importing Alembic, which costs half a second on every command."""

VERSION_TABLE = "trace_schema"
"""Not Alembic's default name, so that another application's database is told from ours."""
