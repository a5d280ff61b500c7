"""What Alembic runs: our tables, on the connection that `storage.migrations.runner` hands over."""

from typing import Any, Literal

from alembic import context
from sqlmodel.sql.sqltypes import AutoString

from storage.migrations import VERSION_TABLE
from storage.tables import Row


def _render(kind: str, item: Any, _context: Any) -> str | Literal[False]:
    # SQLModel's own string type; revisions shall not depend on it.
    return "sa.String()" if kind == "type" and isinstance(item, AutoString) else False


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Row.metadata,
    version_table=VERSION_TABLE,
    compare_type=True,
    render_item=_render,
    # SQLite cannot alter a column; Alembic then copies the table.
    render_as_batch=True,
    # The caller has begun the transaction and holds the lock.
    transactional_ddl=False,
)
context.run_migrations()
