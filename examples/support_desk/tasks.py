"""Tickets for the desk, each with the shop it arrives in: everything follows from the ticket's seed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from .database import Customer, Desk, Order, Status

Kind = Literal["order_status", "cancel_order", "cancel_item", "refund_item", "redirect_item"]
Action = Literal["tell", "cancel", "refund", "redirect"]
KINDS: tuple[Kind, ...] = get_args(Kind)

ACTIONS: Mapping[Kind, Action] = {
    "order_status": "tell",
    "cancel_order": "cancel",
    "cancel_item": "cancel",
    "refund_item": "refund",
    "redirect_item": "redirect",
}
# Seeds of the splits lie a million apart, so no ticket of one can turn up in another.
SPLITS: Mapping[str, tuple[int, int]] = {
    "train": (0, 600),
    "gate": (1_000_000, 150),
    "report": (2_000_000, 240),
    "people": (3_000_000, 72),
}
"""Split → (first seed, number of tickets). ``people`` are the tickets of `references.jsonl`."""

# A third of the tickets names the order; consecutive seeds take turns, so any run of nine has the mix.
_MIX: tuple[Kind, ...] = (
    "order_status",
    "cancel_item",
    "refund_item",
    "cancel_order",
    "redirect_item",
    "cancel_item",
    "order_status",
    "refund_item",
    "redirect_item",
)
_STATUSES: tuple[Status, ...] = ("processing", "shipped", "delivered", "cancelled", "refunded")
_NEEDED: Mapping[Action, Status] = {"cancel": "processing", "refund": "delivered", "redirect": "processing"}

_TEMPLATES: Mapping[Kind, list[str]] = json.loads(Path(__file__).with_name("tickets.json").read_text("utf-8"))
_POOLS: Mapping[str, list[str]] = json.loads(Path(__file__).with_name("pools.json").read_text("utf-8"))


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a customer asks, the shop as it is then, and what would be right.

    ``order`` is the order that is meant; ``address`` is the new one where the customer gives one.
    """

    seed: int
    kind: Kind
    text: str
    customer: Customer
    order: Order
    address: str
    customers: tuple[Customer, ...]
    orders: tuple[Order, ...]

    @property
    def action(self) -> Action:
        return ACTIONS[self.kind]

    def open_desk(self) -> Desk:
        """A fresh database with this ticket's shop in it."""
        return Desk(self.customers, self.orders)


def tasks_of(split: str) -> list[dict[str, Any]]:
    """The tasks of a split as JSON values. Raises ValueError for a split that does not exist."""
    if split not in SPLITS:
        raise ValueError(f"there is no split {split!r}, only {', '.join(SPLITS)}")
    first, count = SPLITS[split]
    tickets = (ticket_of(seed) for seed in range(first, first + count))
    return [
        {"id": f"{split}-{ticket.seed - first}", "seed": ticket.seed, "kind": ticket.kind, "ticket": ticket.text}
        for ticket in tickets
    ]


def ticket_of(seed: int) -> Ticket:
    """The ticket of a seed: the same in any process and whatever was made before."""
    rng = random.Random(f"support-desk/{seed}")
    kind = _MIX[seed % len(_MIX)]
    action = ACTIONS[kind]
    customers = _customers(rng, count=4)
    orders = _orders(rng, customers, _NEEDED.get(action))
    customer = customers[0]
    own = [order for order in orders if order.customer_id == customer.id]
    order = rng.choice([order for order in own if order.status == _NEEDED.get(action, order.status)])
    address = _address(rng, other_than=order.address)
    text = rng.choice(_TEMPLATES[kind]).format(
        order=order.id,
        name=customer.name,
        email=customer.email,
        which=_description(rng, order, own),
        address=address,
    )
    return Ticket(seed, kind, text[0].upper() + text[1:], customer, order, address, customers, tuple(orders))


def _customers(rng: random.Random, count: int) -> tuple[Customer, ...]:
    ids = rng.sample(range(100, 1000), count)
    first_names = rng.sample(_POOLS["first_names"], count)
    last_names = rng.sample(_POOLS["last_names"], count)
    return tuple(
        Customer(f"C{id}", _email(rng, first.lower(), last.lower()), f"{first} {last}")
        for id, first, last in zip(ids, first_names, last_names, strict=True)
    )


def _email(rng: random.Random, first: str, last: str) -> str:
    user = rng.choice([f"{first}.{last}", f"{first}{rng.randint(10, 99)}", f"{first}.{last}{rng.randint(1, 9)}"])
    return f"{user}@{rng.choice(_POOLS['domains'])}"


def _orders(rng: random.Random, customers: tuple[Customer, ...], needed: Status | None) -> list[Order]:
    """Two or three orders of the first customer, one or two of each other.

    The first two are in the state that the request needs, so that which one is meant has to be found out; one of
    them shares its colour or its kind with the third.
    """
    counts = [rng.choice((2, 2, 3))] + [rng.randint(1, 2) for _ in customers[1:]]
    ids = [f"A{number}" for number in rng.sample(range(1000, 10000), sum(counts))]
    colours = rng.sample(_POOLS["colours"], sum(counts))
    things = rng.sample(_POOLS["things"], sum(counts))
    prices = rng.sample(range(8, 96), sum(counts))
    owners = [customer for customer, count in zip(customers, counts, strict=True) for _ in range(count)]
    statuses: list[Status] = [rng.choice(_STATUSES[:3]) for _ in owners]
    if needed is not None:
        statuses[:2] = [needed, needed]
    if counts[0] == 3 and rng.random() < 0.5:
        colours[2] = colours[0]
    elif counts[0] == 3:
        things[2] = things[0]
    return [
        Order(id, owner.id, f"{colour} {thing}", price, status, _address(rng))
        for id, owner, colour, thing, price, status in zip(ids, owners, colours, things, prices, statuses, strict=True)
    ]


def _address(rng: random.Random, other_than: str = "") -> str:
    cities = [city for city in _POOLS["cities"] if not other_than.endswith(city)]
    return f"{rng.randint(1, 99)} {rng.choice(_POOLS['streets'])}, {rng.choice(cities)}"


def _description(rng: random.Random, order: Order, own: list[Order]) -> str:
    """How the customer names the order: always true of this one of the customer's orders alone."""
    return rng.choice(list(_descriptions(order, [other for other in own if other.id != order.id])))


def _descriptions(order: Order, others: list[Order]) -> Iterator[str]:
    # The item itself is what most people say, hence several times among the choices.
    for article in ("the", "the", "the", "my", "my"):
        yield f"{article} {order.item}"
    colour, thing = order.item.split()
    if all(not other.item.startswith(f"{colour} ") for other in others):
        yield f"the {colour} one"
    if all(not other.item.endswith(f" {thing}") for other in others):
        yield f"my {thing}"
    yield f"the order for {order.price} euros"
    if all(other.price < order.price for other in others):
        yield "the most expensive order"
    if all(other.status != order.status for other in others):
        yield f"the {order.status} order"
