"""Whether a ticket was handled: the database afterwards, and what the customer was told."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from .database import State
from .tasks import Action, Ticket

_DEED: dict[Action, re.Pattern[str]] = {
    "cancel": re.compile(r"\bcancel", re.I),
    "refund": re.compile(r"\brefund|money back", re.I),
    "redirect": re.compile(r"\baddress|\bdeliver|\bship|\bsen[dt]\b|\bredirect|\bgo(es)? to\b", re.I),
}
_DENIAL = re.compile(
    r"\b(can ?not|can't|could not|couldn't|unable|not able|did not|didn't|was not|wasn't|has not|hasn't|"
    r"not possible|failed|error|no (order|customer)|not find|not found)\b",
    re.I,
)
_STATUS = re.compile(r"\b(processing|shipped|delivered|cancell?ed|refunded)\b", re.I)
_ORDER_ID = re.compile(r"\bA\d{4}\b")


@dataclass(frozen=True, slots=True)
class Verdict:
    """``score`` in 0..1: 0.7 for the right change and 0.3 for what was said; success needs both."""

    success: bool
    score: float
    reason: str


def verify(ticket: Ticket, before: State, after: State, reply: str) -> Verdict:
    """Judge one run. ``before`` and ``after`` are the databases around it, ``reply`` what the customer was told."""
    wrong_state = _wrong_state(ticket, before, after)
    if wrong_state:
        return Verdict(False, 0.0, wrong_state)
    wrong_reply = _wrong_reply(ticket, reply)
    if wrong_reply:
        # A question changes nothing in the database: whoever does nothing has not earned anything.
        return Verdict(False, 0.0 if ticket.action == "tell" else 0.7, wrong_reply)
    return Verdict(True, 1.0, "done and told")


def _wrong_state(ticket: Ticket, before: State, after: State) -> str | None:
    order = ticket.order
    right = {
        "tell": order,
        "cancel": replace(order, status="cancelled"),
        "refund": replace(order, status="refunded"),
        "redirect": replace(order, address=ticket.address),
    }[ticket.action]
    expected = {**before.orders, order.id: right}
    if after.customers != before.customers or after.orders.keys() != expected.keys():
        return "customers or orders appeared, vanished or changed"
    wrong = sorted(id for id in expected if after.orders[id] != expected[id])
    if not wrong:
        return None
    if order.id in wrong and after.orders[order.id] == order:
        others = f", but {', '.join(wrong[1:] if wrong[0] == order.id else wrong)} changed" if len(wrong) > 1 else ""
        return f"order {order.id} is as it was{others}"
    return f"wrong change: {', '.join(wrong)}"


def _wrong_reply(ticket: Ticket, reply: str) -> str | None:
    order = ticket.order
    if not reply.strip():
        return "the customer was told nothing"
    if any(id != order.id for id in _ORDER_ID.findall(reply)):
        return "the customer was told about another order"
    if ticket.action == "tell":
        told = {word.lower().replace("canceled", "cancelled") for word in _STATUS.findall(reply)}
        return None if told == {order.status} else f"the customer was not told that the order is {order.status}"
    if order.id not in reply and order.item.lower() not in reply.lower():
        return "the customer was not told which order"
    deed = _DEED[ticket.action].search(reply) or (ticket.action == "redirect" and ticket.address in reply)
    if not deed or _DENIAL.search(reply):
        return "the customer was not told what was done"
    return None
