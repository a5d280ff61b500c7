"""Tickets handled by people, as chat messages: `python -m examples.support_desk.references FILE` writes them.

The shipped `references.jsonl` is what this wrote; it has the form that `trace-sdk import openai` reads.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .agent import SYSTEM_PROMPT
from .tasks import Ticket, tasks_of, ticket_of
from .tools import TOOLS, call_tool

REFERENCES = Path(__file__).with_name("references.jsonl")

Call = tuple[str, dict[str, str]]


def solution(ticket: Ticket) -> tuple[list[Call], str]:
    """The calls that handle the ticket, and what the customer is then told."""
    order = ticket.order.id
    look_up: list[Call] = [
        ("find_customer", {"email": ticket.customer.email}),
        ("list_orders", {"customer_id": ticket.customer.id}),
    ]
    if ticket.kind == "order_status":
        return [("get_order", {"order_id": order})], f"Order {order} is {ticket.order.status}."
    if ticket.kind == "cancel_order":
        return [("cancel_order", {"order_id": order})], f"I cancelled order {order}."
    if ticket.kind == "cancel_item":
        return [*look_up, ("cancel_order", {"order_id": order})], f"I cancelled order {order}."
    if ticket.kind == "refund_item":
        return [*look_up, ("refund_order", {"order_id": order})], f"I refunded order {order}."
    change = {"order_id": order, "address": ticket.address}
    return [*look_up, ("change_address", change)], f"Order {order} now goes to {ticket.address}."


def dialogue(ticket: Ticket) -> list[dict[str, Any]]:
    """The ticket handled, as chat messages; the tools' answers come from the ticket's own database."""
    calls, reply = solution(ticket)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": ticket.text},
    ]
    with ticket.open_desk() as desk:
        for number, (name, arguments) in enumerate(calls):
            call_id = f"call_{ticket.seed}_{number}"
            function = {"name": name, "arguments": json.dumps(arguments)}
            messages.append(
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": call_id, "type": "function", "function": function}],
                }
            )
            answer = call_tool(desk, name, function["arguments"])
            messages.append({"role": "tool", "tool_call_id": call_id, "content": answer})
    messages.append({"role": "assistant", "content": reply})
    return messages


def records() -> Iterator[dict[str, Any]]:
    """One record for each ticket of the split ``people``."""
    for task in tasks_of("people"):
        messages = dialogue(ticket_of(task["seed"]))
        yield {"task_id": task["id"], "outcome": True, "tools": TOOLS, "messages": messages}


def write(path: Path) -> int:
    """Write the records to ``path``, one a line, and return how many."""
    lines = [json.dumps(record, ensure_ascii=False) for record in records()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(lines)


if __name__ == "__main__":
    print(write(Path(sys.argv[1]) if len(sys.argv) > 1 else REFERENCES))
