"""The tools that the model sees, and what they answer: compact JSON, refusals as ``{"error": ...}``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .database import Desk, DeskError, Order

TOOLS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("tools.json").read_text(encoding="utf-8"))


def find_customer(desk: Desk, email: str) -> dict[str, Any]:
    customer = desk.customer_by_email(email)
    return {"customer_id": customer.id, "name": customer.name}


def list_orders(desk: Desk, customer_id: str) -> list[dict[str, Any]]:
    return [_brief(order) for order in desk.orders_of(customer_id)]


def get_order(desk: Desk, order_id: str) -> dict[str, Any]:
    order = desk.order(order_id)
    return {**_brief(order), "address": order.address}


def cancel_order(desk: Desk, order_id: str) -> dict[str, Any]:
    order = desk.cancel(order_id)
    return {"order_id": order.id, "status": order.status}


def refund_order(desk: Desk, order_id: str) -> dict[str, Any]:
    order = desk.refund(order_id)
    return {"order_id": order.id, "status": order.status, "amount": order.price}


def change_address(desk: Desk, order_id: str, address: str) -> dict[str, Any]:
    order = desk.change_address(order_id, address)
    return {"order_id": order.id, "address": order.address}


def _brief(order: Order) -> dict[str, Any]:
    return {"item": order.item, "price": order.price, "status": order.status, "order_id": order.id}


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (find_customer, list_orders, get_order, cancel_order, refund_order, change_address)
}
_PARAMETERS: dict[str, list[str]] = {
    tool["function"]["name"]: list(tool["function"]["parameters"]["properties"]) for tool in TOOLS
}


def call_tool(desk: Desk, name: str, raw_arguments: str) -> str:
    """Run one tool call as the model wrote it. Whatever is wrong with it is the answer, never an exception."""
    try:
        if name not in _FUNCTIONS:
            raise DeskError(f"no tool {name}")
        answer = _FUNCTIONS[name](desk, **_arguments(name, raw_arguments))
    except DeskError as error:
        answer = {"error": str(error)}
    return json.dumps(answer, ensure_ascii=False)


def _arguments(name: str, raw_arguments: str) -> dict[str, str]:
    try:
        arguments = json.loads(raw_arguments)
        # Half a surrogate pair is valid JSON, but neither SQLite nor the next request can carry it.
        json.dumps(arguments, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise DeskError("the arguments are not a JSON object")
    for parameter in _PARAMETERS[name]:
        if not isinstance(arguments.get(parameter), str):
            raise DeskError(f"{name} needs {parameter}")
    # What a tool does not know it does not look at, as most do.
    return {parameter: arguments[parameter] for parameter in _PARAMETERS[name]}
