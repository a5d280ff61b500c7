"""The verifier accepts what is right, for every kind, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from examples.support_desk.database import Desk
from examples.support_desk.references import Call, solution
from examples.support_desk.tasks import KINDS, Kind, Ticket, ticket_of
from examples.support_desk.tools import call_tool
from examples.support_desk.verifier import Verdict, verify

SEEDS = 60


def tickets(kind: Kind, count: int = SEEDS) -> list[Ticket]:
    return [ticket for ticket in map(ticket_of, range(count * 9)) if ticket.kind == kind][:count]


def run(ticket: Ticket, calls: list[Call], reply: str, then: Callable[[Desk], object] | None = None) -> Verdict:
    with ticket.open_desk() as desk:
        before = desk.state()
        for name, arguments in calls:
            call_tool(desk, name, json.dumps(arguments))
        if then is not None:
            then(desk)
        return verify(ticket, before, desk.state(), reply)


def other_order(ticket: Ticket) -> str:
    """Another order of the same customer that the rules would let be changed."""
    return next(
        order.id
        for order in ticket.orders
        if order.customer_id == ticket.customer.id
        and order.status == ticket.order.status
        and order.id != ticket.order.id
    )


CHANGES: list[Kind] = [kind for kind in KINDS if kind != "order_status"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_solution_of_every_seed_is_accepted(kind: Kind) -> None:
    for ticket in tickets(kind):
        assert run(ticket, *solution(ticket)) == Verdict(True, 1.0, "done and told"), ticket


@pytest.mark.parametrize("kind", KINDS)
def test_doing_nothing_is_worth_nothing(kind: Kind) -> None:
    for ticket in tickets(kind):
        for reply in ("", "I could not finish this.", f"I will look into {ticket.order.id}."):
            verdict = run(ticket, [], reply)
            assert not verdict.success
            assert verdict.score == 0.0


@pytest.mark.parametrize("kind", CHANGES)
def test_saying_it_without_doing_it_is_worth_nothing(kind: Kind) -> None:
    for ticket in tickets(kind):
        verdict = run(ticket, [], solution(ticket)[1])
        assert (verdict.success, verdict.score) == (False, 0.0)
        assert verdict.reason == f"order {ticket.order.id} is as it was"


@pytest.mark.parametrize("kind", CHANGES)
def test_the_right_action_on_another_order_is_rejected(kind: Kind) -> None:
    for ticket in tickets(kind):
        calls, reply = solution(ticket)
        wrong = other_order(ticket)
        calls = [(name, {**given, "order_id": wrong} if "order_id" in given else given) for name, given in calls]
        for told in (reply, reply.replace(ticket.order.id, wrong)):
            verdict = run(ticket, calls, told)
            assert (verdict.success, verdict.score) == (False, 0.0)
            assert wrong in verdict.reason


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_beside_the_right_one_is_rejected(kind: Kind) -> None:
    for ticket in tickets(kind):
        victim = next(order for order in ticket.orders if order.id != ticket.order.id)

        def meddle(desk: Desk, id: str = victim.id) -> None:
            with desk._connection as connection:
                connection.execute("UPDATE orders SET address = 'elsewhere' WHERE id = ?", (id,))

        verdict = run(ticket, *solution(ticket), then=meddle)
        assert (verdict.success, verdict.score) == (False, 0.0)
        assert victim.id in verdict.reason


def test_a_changed_customer_is_rejected() -> None:
    ticket = ticket_of(1)

    def rename(desk: Desk) -> None:
        with desk._connection as connection:
            connection.execute("UPDATE customers SET name = 'nobody'")

    assert not run(ticket, *solution(ticket), then=rename).success


@pytest.mark.parametrize("kind", CHANGES)
def test_the_right_change_with_the_wrong_words_is_not_success(kind: Kind) -> None:
    for ticket in tickets(kind, 20):
        calls, reply = solution(ticket)
        wrong_replies = [
            "",
            "Done.",
            f"Thank you for your message about {ticket.order.id}.",
            f"I could not find order {ticket.order.id}, so it was not cancelled, refunded or delivered.",
            reply.replace(ticket.order.id, other_order(ticket)),
        ]
        for wrong in wrong_replies:
            verdict = run(ticket, calls, wrong)
            assert not verdict.success, wrong
            assert verdict.score == 0.7


def test_a_status_must_be_told_right_and_alone() -> None:
    for ticket in tickets("order_status"):
        calls, _ = solution(ticket)
        status = ticket.order.status
        other = "shipped" if status != "shipped" else "delivered"
        assert run(ticket, calls, f"It is {status}.").success
        assert not run(ticket, calls, f"It is {other}.").success
        assert not run(ticket, calls, f"It is {status} or {other}.").success
        assert not run(ticket, calls, f"Order {other_id(ticket)} is {status}.").success


def other_id(ticket: Ticket) -> str:
    return next(order.id for order in ticket.orders if order.id != ticket.order.id)


def test_the_customer_may_be_told_the_item_instead_of_the_id() -> None:
    ticket = tickets("cancel_item")[0]
    calls, _ = solution(ticket)
    assert run(ticket, calls, f"Your {ticket.order.item} has been canceled.").success


def test_naming_the_new_address_tells_that_the_order_goes_there() -> None:
    ticket = tickets("redirect_item")[0]
    calls, _ = solution(ticket)
    assert run(ticket, calls, f"{ticket.order.id} is now set to {ticket.address}.").success
    assert not run(ticket, calls, f"{ticket.order.id} is now set to 1 Nowhere, York.").success
