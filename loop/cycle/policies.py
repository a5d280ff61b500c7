"""What serves, as the database knows it: the active policy, and the names that its parts are served under."""

from __future__ import annotations

from sqlmodel import col, func, select

from harness.serving.policy import Arm
from storage import tables
from storage.database import Database


def active_policy(database: Database) -> tables.Policy | None:
    """The policy that serves, or None when nothing was promoted yet."""
    with database.session() as session:
        query = select(tables.Policy).where(tables.Policy.state == "active")
        return session.exec(query.order_by(col(tables.Policy.version).desc())).first()


def next_version(database: Database, table: type[tables.Policy] | type[tables.Router]) -> int:
    """The version that a new row gets; they count from 1."""
    with database.session() as session:
        return (session.exec(select(func.max(table.version))).one() or 0) + 1


def served_name(adapter: tables.Adapter) -> str:
    """`capability@version`: bound to the adapter's weights for good."""
    return f"{adapter.name}@{adapter.version}"


def arm_of(adapter: tables.Adapter) -> Arm:
    """The arm that serves an adapter, under the adapter's name."""
    return Arm(served_name(adapter), "adapter", adapter=served_name(adapter))
