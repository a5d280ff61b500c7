"""The ticket generator: deterministic, split, varied, and every ticket has one right answer."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from examples.support_desk.tasks import ACTIONS, KINDS, SPLITS, tasks_of, ticket_of

ROOT = Path(__file__).parents[2]


def test_a_seed_gives_the_same_ticket_whatever_was_made_before() -> None:
    forwards = [ticket_of(seed) for seed in range(20)]
    backwards = [ticket_of(seed) for seed in reversed(range(20))]
    assert forwards == backwards[::-1]


def test_a_seed_gives_the_same_ticket_in_another_process() -> None:
    code = "from examples.support_desk.tasks import ticket_of; print([ticket_of(seed) for seed in range(10)])"
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert told.strip() == str([ticket_of(seed) for seed in range(10)])


def test_no_two_tasks_of_any_splits_share_seed_id_or_text() -> None:
    tasks = [task for split in SPLITS for task in tasks_of(split)]
    for field in ("id", "seed", "ticket"):
        repeated = [value for value, count in Counter(task[field] for task in tasks).items() if count > 1]
        assert repeated == [], field


def test_an_unknown_split_is_named() -> None:
    with pytest.raises(ValueError, match="'holdout'"):
        tasks_of("holdout")


@pytest.mark.parametrize("split", ["train", "gate", "report"])
def test_every_kind_occurs_and_about_a_third_names_the_order(split: str) -> None:
    kinds = Counter(task["kind"] for task in tasks_of(split))
    assert set(kinds) == set(KINDS)
    assert 0.25 <= (kinds["order_status"] + kinds["cancel_order"]) / kinds.total() <= 0.40


def test_the_order_that_is_meant_is_one_of_several_of_that_customer() -> None:
    for seed in range(300):
        ticket = ticket_of(seed)
        own = [order for order in ticket.orders if order.customer_id == ticket.customer.id]
        assert ticket.order in own
        assert len(own) in (2, 3)
        assert len(ticket.orders) > len(own)
        assert len({order.item for order in own}) == len(own)
        if ticket.action != "tell":
            # More than one could be changed by the rules: only the description tells which.
            assert sum(order.status == ticket.order.status for order in own) >= 2


def test_a_ticket_without_an_order_id_describes_exactly_one_order() -> None:
    for seed in range(600):
        ticket = ticket_of(seed)
        if not ticket.kind.endswith("_item"):
            assert ticket.order.id in ticket.text
            continue
        assert ticket.customer.email in ticket.text
        assert not any(order.id in ticket.text for order in ticket.orders)
        own = [order for order in ticket.orders if order.customer_id == ticket.customer.id]
        text = ticket.text.lower()
        if "most expensive" in text:
            meant = [max(own, key=lambda order: order.price)]
        elif " euros" in text:
            meant = [order for order in own if f" {order.price} euros" in text]
        elif " one" in text:
            meant = [order for order in own if f"{order.item.split()[0]} one" in text]
        elif any(f" {order.item}" in f" {text}" for order in own):
            meant = [order for order in own if f" {order.item}" in f" {text}"]
        else:
            meant = [order for order in own if f"my {order.item.split()[1]}" in text]
        assert meant == [ticket.order], ticket.text


def test_wording_varies() -> None:
    for kind in KINDS:
        texts = [task["ticket"] for task in tasks_of("train") if task["kind"] == kind]
        openings = {" ".join(text.split()[:2]) for text in texts}
        assert len(openings) >= 6, kind
    assert set(ACTIONS) == set(KINDS)
