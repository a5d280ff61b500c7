"""Many rows at once, on SQLite and PostgreSQL alike."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import JSON, ColumnElement, Connection, func, insert, inspect, select
from sqlalchemy.dialects import postgresql, sqlite

from storage import codec
from storage.tables import Row

T = TypeVar("T")

# SQLite takes 32,766 parameters in a statement, PostgreSQL 65,535.
PARAMETERS = 10_000


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of at most ``size`` items, in order, without holding more than one of them."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def insert_rows(connection: Connection, table: type[Row], rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows that are known to be new. All of them must have the same keys."""
    if rows and not _insert_quickly(connection, table, rows, ""):
        connection.execute(insert(table), rows)


def insert_missing(connection: Connection, table: type[Row], rows: Sequence[dict[str, Any]]) -> None:
    """Insert those rows whose key isn't there yet; leave the others as they are."""
    if not rows or _insert_quickly(connection, table, rows, " ON CONFLICT DO NOTHING"):
        return
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    connection.execute(dialect.insert(table).on_conflict_do_nothing(), rows)


def insert_or_replace(connection: Connection, table: type[Row], rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows with different ids; one whose ``id`` is there already takes its place."""
    if not rows:
        return
    changed = [key for key in rows[0] if key != "id"]
    update = ", ".join(f'"{key}" = excluded."{key}"' for key in changed)
    if _insert_quickly(connection, table, rows, f" ON CONFLICT (id) DO UPDATE SET {update}"):
        return
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(table)
    taken = {key: statement.excluded[key] for key in changed}
    connection.execute(statement.on_conflict_do_update(index_elements=["id"], set_=taken), rows)


def _insert_quickly(connection: Connection, table: type[Row], rows: Sequence[dict[str, Any]], conflict: str) -> bool:
    """Insert by SQLite's driver itself: SQLAlchemy's work on each value costs more than the insertion. False where
    that is not possible."""
    if connection.dialect.name != "sqlite":
        return False
    keys = tuple(rows[0])
    columns = inspect(table).local_table.columns
    absent = [c for c in columns if c.default is not None and c.name not in keys]
    if not all(c.default.is_scalar for c in absent):
        return False
    encoded = [n for n, key in enumerate(keys) if isinstance(columns[key].type, JSON)]
    constants = tuple(c.default.arg for c in absent)
    names = ", ".join(f'"{name}"' for name in (*keys, *(c.name for c in absent)))
    marks = ", ".join("?" * (len(keys) + len(absent)))
    # In the order of the first row's keys, which need not be every row's.
    values = [(*map(row.__getitem__, keys), *constants) for row in rows]
    if encoded:
        values = [tuple(_encoded(value, encoded)) for value in values]
    statement = f'INSERT INTO "{table.__tablename__}" ({names}) VALUES ({marks}){conflict}'
    connection.exec_driver_sql(statement, values)
    return True


def _encoded(values: Sequence[Any], places: Sequence[int]) -> list[Any]:
    """Values of a row, those at ``places`` as JSON."""
    found = list(values)
    for place in places:
        if found[place] is not None:
            found[place] = codec.dumps(found[place])
    return found


def existing(connection: Connection, column: Any, values: Iterable[str]) -> set[str]:
    """Those of the values that the column (a key or an indexed one) has."""
    found: set[str] = set()
    for chunk in chunks(values, PARAMETERS):
        found.update(connection.scalars(select(column).where(among(connection, column, chunk))))
    return found


def among(connection: Connection, column: Any, values: Sequence[str]) -> ColumnElement[bool]:
    """The condition that a column has one of at most `PARAMETERS` values."""
    if connection.dialect.name != "sqlite":
        return column.in_(values)
    # One parameter instead of thousands, whose binding would cost more than the look-up.
    return column.in_(select(func.json_each(json.dumps(values)).table_valued("value").c.value))
