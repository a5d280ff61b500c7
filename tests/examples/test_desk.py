"""The desk's tools: rules, refusals as answers, short enough for a small model."""

from __future__ import annotations

import json
from typing import Any

import pytest

from examples.support_desk.database import Customer, Desk, Order
from examples.support_desk.tasks import ticket_of
from examples.support_desk.tools import TOOLS, call_tool


@pytest.fixture
def desk():
    customers = [Customer("C100", "mara@mail.com", "Mara Lind"), Customer("C200", "hugo@mail.com", "Hugo Berg")]
    orders = [
        Order("A1000", "C100", "blue mug", 12, "processing", "1 Oak Street, York"),
        Order("A2000", "C100", "red mug", 14, "shipped", "1 Oak Street, York"),
        Order("A3000", "C100", "red lamp", 44, "delivered", "1 Oak Street, York"),
    ]
    with Desk(customers, orders) as desk:
        yield desk


def call(desk: Desk, name: str, **arguments: Any) -> Any:
    return json.loads(call_tool(desk, name, json.dumps(arguments)))


def test_look_ups_answer_from_the_database(desk: Desk) -> None:
    assert call(desk, "find_customer", email=" Mara@Mail.com") == {"customer_id": "C100", "name": "Mara Lind"}
    assert [order["order_id"] for order in call(desk, "list_orders", customer_id="C100")] == ["A1000", "A2000", "A3000"]
    assert call(desk, "list_orders", customer_id="C200") == []
    assert call(desk, "get_order", order_id="A3000")["item"] == "red lamp"


def test_changes_are_in_the_database_and_touch_one_row(desk: Desk) -> None:
    before = desk.state()
    call(desk, "cancel_order", order_id="A1000", reason="an argument that no tool knows is not looked at")
    call(desk, "refund_order", order_id="A3000")
    after = desk.state()
    assert after.orders["A1000"].status == "cancelled"
    assert after.orders["A3000"].status == "refunded"
    assert after.orders["A2000"] == before.orders["A2000"]


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("find_customer", {"email": "nobody@mail.com"}, "no customer with email nobody@mail.com"),
        ("list_orders", {"customer_id": "mara@mail.com"}, "no customer mara@mail.com"),
        ("get_order", {"order_id": "A9"}, "no order A9"),
        ("cancel_order", {"order_id": "A2000"}, "order A2000 is shipped, only processing orders can be cancelled"),
        ("refund_order", {"order_id": "A1000"}, "order A1000 is processing, only delivered orders can be refunded"),
        ("change_address", {"order_id": "A1000", "address": " "}, "the address is empty"),
        ("change_address", {"order_id": "A1000"}, "change_address needs address"),
        ("cancel_order", {"order_id": 1000}, "cancel_order needs order_id"),
        ("drop_tables", {}, "no tool drop_tables"),
    ],
)
def test_a_refusal_is_an_answer_and_changes_nothing(desk: Desk, name: str, arguments: Any, error: str) -> None:
    before = desk.state()
    assert call(desk, name, **arguments) == {"error": error}
    assert desk.state() == before


@pytest.mark.parametrize("raw", ["", "{", "[]", "null", '"A1000"', '{"order_id": "\\ud800"}', "[" * 100_000])
def test_arguments_that_are_no_object_are_refused(desk: Desk, raw: str) -> None:
    assert "error" in json.loads(call_tool(desk, "cancel_order", raw))


def test_every_schema_has_a_function_and_requires_all_its_parameters(desk: Desk) -> None:
    for tool in TOOLS:
        function = tool["function"]
        assert function["parameters"]["required"] == list(function["parameters"]["properties"])
        assert "no tool" not in call_tool(desk, function["name"], "{}")


def test_answers_stay_short() -> None:
    for seed in range(100):
        ticket = ticket_of(seed)
        with ticket.open_desk() as desk:
            answer = call_tool(desk, "list_orders", json.dumps({"customer_id": ticket.customer.id}))
        assert len(answer) < 320
