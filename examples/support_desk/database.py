"""The shop's order database: SQLite, with the rules of what may be done to an order in which state."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Literal

Status = Literal["processing", "shipped", "delivered", "cancelled", "refunded"]

_SCHEMA = """
CREATE TABLE customers (id TEXT PRIMARY KEY, email TEXT NOT NULL UNIQUE, name TEXT NOT NULL);
CREATE TABLE orders (
    id TEXT PRIMARY KEY,
    customer_id TEXT NOT NULL REFERENCES customers (id),
    item TEXT NOT NULL,
    price INTEGER NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('processing', 'shipped', 'delivered', 'cancelled', 'refunded')),
    address TEXT NOT NULL
);
CREATE INDEX orders_of_customer ON orders (customer_id);
"""


class DeskError(Exception):
    """What the desk refuses, in words that the agent can read."""


@dataclass(frozen=True, slots=True)
class Customer:
    id: str
    email: str
    name: str


@dataclass(frozen=True, slots=True)
class Order:
    """One order of one item. ``price`` is in whole euros."""

    id: str
    customer_id: str
    item: str
    price: int
    status: Status
    address: str


@dataclass(frozen=True, slots=True)
class State:
    """All rows of the database, by id. Equal exactly when the databases are."""

    customers: Mapping[str, Customer]
    orders: Mapping[str, Order]


class Desk:
    """One shop's orders. Belongs to the thread that opened it; close it, or use it as a context manager."""

    def __init__(self, customers: Iterable[Customer], orders: Iterable[Order], path: str = ":memory:") -> None:
        self._connection = sqlite3.connect(path)
        self._connection.execute("PRAGMA foreign_keys = ON")
        with self._connection:
            self._connection.executescript(_SCHEMA)
            self._connection.executemany("INSERT INTO customers VALUES (?, ?, ?)", map(astuple, customers))
            self._connection.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?)", map(astuple, orders))

    def __enter__(self) -> Desk:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def customer_by_email(self, email: str) -> Customer:
        row = self._connection.execute("SELECT * FROM customers WHERE email = ?", (email.strip().lower(),)).fetchone()
        if row is None:
            raise DeskError(f"no customer with email {email}")
        return Customer(*row)

    def orders_of(self, customer_id: str) -> list[Order]:
        if self._connection.execute("SELECT 1 FROM customers WHERE id = ?", (customer_id,)).fetchone() is None:
            raise DeskError(f"no customer {customer_id}")
        rows = self._connection.execute("SELECT * FROM orders WHERE customer_id = ? ORDER BY id", (customer_id,))
        return [Order(*row) for row in rows]

    def order(self, order_id: str) -> Order:
        row = self._connection.execute("SELECT * FROM orders WHERE id = ?", (order_id,)).fetchone()
        if row is None:
            raise DeskError(f"no order {order_id}")
        return Order(*row)

    def cancel(self, order_id: str) -> Order:
        """Only what has not left the house can be cancelled."""
        return self._change(order_id, "processing", "cancelled", "status", "cancelled")

    def refund(self, order_id: str) -> Order:
        """Only what has arrived can be refunded."""
        return self._change(order_id, "delivered", "refunded", "status", "refunded")

    def change_address(self, order_id: str, address: str) -> Order:
        """Only what has not left the house can go elsewhere."""
        if not address.strip():
            raise DeskError("the address is empty")
        return self._change(order_id, "processing", "redirected", "address", address.strip())

    def state(self) -> State:
        """Everything in the database, as it is now."""
        customers = self._connection.execute("SELECT * FROM customers")
        orders = self._connection.execute("SELECT * FROM orders")
        return State({row[0]: Customer(*row) for row in customers}, {row[0]: Order(*row) for row in orders})

    def _change(
        self, order_id: str, needed: Status, done: str, column: Literal["status", "address"], value: str
    ) -> Order:
        order = self.order(order_id)
        if order.status != needed:
            raise DeskError(f"order {order_id} is {order.status}, only {needed} orders can be {done}")
        with self._connection:
            self._connection.execute(f"UPDATE orders SET {column} = ? WHERE id = ?", (value, order_id))
        return self.order(order_id)
