"""Recorded runs of two small agents with real tools: a library that lends books, and a gym that takes bookings.

They differ on purpose: text ids and JSON refusals here, number ids, plain keys, nested results and text answers there.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from storage.trajectory import Message, ToolCall, Trajectory

Call = tuple[str, dict[str, Any]]
FIRST = ["Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hal", "Ines", "Joan", "Karl", "Lia", "Max", "Nell", "Otto"]
LAST = ["Adler", "Brook", "Crane", "Doyle", "Evers", "Flint", "Gould", "Hayes", "Irwin", "Joyce", "Keane", "Lloyd"]
ADJECTIVES = ["silent", "golden", "hidden", "broken", "distant", "wooden", "frozen", "burning"]
NOUNS = ["river", "garden", "mirror", "tower", "island", "forest", "harbour", "window"]
SPORTS = ["yoga", "boxing", "rowing", "pilates", "spinning", "climbing", "fencing", "judo"]


def tool(name: str, description: str, **parameters: str) -> dict[str, Any]:
    properties = {n: {"type": t} for n, t in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


LIBRARY_TOOLS = (
    tool("find_member", "Find a member by card.", card="string"),
    tool("list_loans", "Loans of a member.", member_id="string"),
    tool("get_loan", "One loan.", loan_id="string"),
    tool("renew_loan", "Renew a loan.", loan_id="string", weeks="integer"),
)
GYM_TOOLS = (
    tool("find_guest_id", "The id of a guest.", first_name="string", last_name="string"),
    tool("get_guest", "A guest with bookings.", guest_id="integer"),
    tool("cancel_booking", "Cancel a booking.", booking_id="integer"),
    tool("send_note", "Send a note to a guest.", guest_id="integer", note="string"),
)


class Library:
    """Members with loans; an overdue loan cannot be renewed."""

    tools = LIBRARY_TOOLS
    system = "You serve a library. Use the tools, then name the loan."

    def __init__(self, draw: random.Random) -> None:
        self.member = f"M{draw.randrange(1000, 9999)}"
        self.card = f"{draw.randrange(100, 999)}-{draw.randrange(100, 999)}"
        self.name = f"{draw.choice(FIRST)} {draw.choice(LAST)}"
        titles = draw.sample([f"{a} {n}" for a in ADJECTIVES for n in NOUNS], 3)
        numbers = draw.sample(range(10_000, 99_999), 3)
        self.loans = {
            f"L{n}": {"loan_id": f"L{n}", "title": t, "weeks": draw.randrange(1, 4), "state": s}
            for n, t, s in zip(numbers, titles, ("open", "open", "overdue"), strict=True)
        }
        self.target = next(iter(self.loans.values()))

    def call(self, name: str, a: Mapping[str, Any]) -> str:
        loan = self.loans.get(str(a.get("loan_id")))
        if name == "find_member":
            known = a["card"] == self.card
            return json.dumps({"member_id": self.member, "name": self.name} if known else {"error": "unknown card"})
        if name == "list_loans":
            if a["member_id"] != self.member:
                return json.dumps({"error": f"no member {a['member_id']}"})
            brief = [{k: v for k, v in row.items() if k != "weeks"} for row in self.loans.values()]
            return json.dumps({"count": len(brief), "loans": brief})
        if loan is None:
            return json.dumps({"error": f"no loan {a['loan_id']}"})
        if name == "get_loan":
            return json.dumps(loan)
        if loan["state"] != "open":
            return json.dumps({"error": f"a loan that is {loan['state']} cannot be renewed"})
        loan.update(weeks=a["weeks"], state="renewed")
        return json.dumps({"loan_id": loan["loan_id"], "state": "renewed", "weeks": a["weeks"]})


class Gym:
    """Guests by name, number ids, bookings inside the guest, answers in words."""

    tools = GYM_TOOLS
    system = "You run the desk of a gym."

    def __init__(self, draw: random.Random) -> None:
        self.first, self.last = draw.choice(FIRST), draw.choice(LAST)
        self.guest = draw.randrange(1000, 9999)
        ids = draw.sample(range(20_000, 99_999), 3)
        self.bookings = {
            i: {"booking_id": i, "sport": s, "price": p, "status": "booked"}
            for i, s, p in zip(ids, draw.sample(SPORTS, 3), draw.sample(range(10, 60), 3), strict=True)
        }
        self.target = next(iter(self.bookings.values()))

    def call(self, name: str, a: Mapping[str, Any]) -> str:
        if name == "find_guest_id":
            known = (a["first_name"], a["last_name"]) == (self.first, self.last)
            return str(self.guest) if known else "Error: guest not found"
        if name == "get_guest":
            if a["guest_id"] != self.guest:
                return "Error: guest not found"
            who = {"first_name": self.first, "last_name": self.last}
            return json.dumps({"guest_id": self.guest, "name": who, "bookings": list(self.bookings.values())})
        if name == "send_note":
            return "Note sent."
        booking = self.bookings.get(a["booking_id"])
        if booking is None:
            return f"Error: booking {a['booking_id']} not found"
        booking["status"] = "cancelled"
        return f"Booking {a['booking_id']} was cancelled."


def record(
    id: str, world: Any, request: str, calls: Sequence[Call], answer: str, *, success: bool = True
) -> Trajectory:
    """One run: each call in a turn of its own, answered by the world."""
    messages = [Message("system", world.system), Message("user", request)]
    for index, (name, arguments) in enumerate(calls):
        call = ToolCall.parse(f"c{index}", name, json.dumps(arguments))
        messages.append(Message("assistant", "", (call,)))
        messages.append(Message("tool", world.call(name, arguments), tool_call_id=f"c{index}"))
    messages.append(Message("assistant", answer))
    return Trajectory(id, type(world).__name__.lower(), tuple(messages), world.tools, task=id, success=success)


def library_renewal(seed: int) -> Trajectory:
    """Renew the loan of a title: look up, look up, change."""
    world = Library(random.Random(f"library {seed}"))
    loan, weeks = world.target, random.Random(seed).randrange(5, 9)
    words = loan["title"].split()
    said = (f"my loan of {loan['title']}", f"the one with the {words[1]}")[seed % 2]
    others = [row["title"] for row in world.loans.values() if row is not loan]
    if any(words[1] in other for other in others):
        said = f"my loan of {loan['title']}"
    calls: list[Call] = [
        ("find_member", {"card": world.card}),
        ("list_loans", {"member_id": world.member}),
        ("renew_loan", {"loan_id": loan["loan_id"], "weeks": weeks}),
    ]
    request = f"Hello, {world.name} here, card {world.card}. Please renew {said} to {weeks} weeks."
    return record(f"renew-{seed}", world, request, calls, f"Loan {loan['loan_id']} is renewed.")


def library_question(seed: int) -> Trajectory:
    """How long a loan runs: one look-up."""
    world = Library(random.Random(f"question {seed}"))
    loan = world.target
    calls: list[Call] = [("get_loan", {"loan_id": loan["loan_id"]})]
    answer = f"{loan['loan_id']} is {loan['title']}."
    return record(f"ask-{seed}", world, f"Which book is {loan['loan_id']}?", calls, answer)


def library_failure(seed: int) -> Trajectory:
    """Wrong keys and a loan in the wrong state: what refusals are learned from."""
    world = Library(random.Random(f"failure {seed}"))
    overdue = next(row for row in world.loans.values() if row["state"] == "overdue")
    calls: list[Call] = [
        ("find_member", {"card": "000-000"}),
        ("find_member", {"card": world.card}),
        ("list_loans", {"member_id": "M1"}),
        ("list_loans", {"member_id": world.member}),
        ("renew_loan", {"loan_id": overdue["loan_id"], "weeks": 6}),
        ("renew_loan", {"loan_id": "L1", "weeks": 6}),
    ]
    return record(f"fail-{seed}", world, "Renew my book.", calls, "I could not.", success=False)


class StaffedLibrary(Library):
    """With a person to hand over to."""

    tools = (*LIBRARY_TOOLS, tool("transfer_to_human_agents", "Hand over to a person.", summary="string"))

    def call(self, name: str, a: Mapping[str, Any]) -> str:
        return "Transferred." if name == "transfer_to_human_agents" else super().call(name, a)


def library_handover(seed: int) -> Trajectory:
    """Look the member's loans up, then hand over: nothing is changed, and the answer says nothing of them."""
    world = StaffedLibrary(random.Random(f"handover {seed}"))
    calls: list[Call] = [
        ("find_member", {"card": world.card}),
        ("list_loans", {"member_id": world.member}),
        ("transfer_to_human_agents", {"summary": "The customer wants something that we do not do."}),
    ]
    request = f"Hello, {world.name} here, card {world.card}. I lost my loan of {world.target['title']}."
    return record(f"handover-{seed}", world, request, calls, "A colleague takes over.")


def gym_cancellation(seed: int) -> Trajectory:
    """Cancel the booking of a sport, and write a note in the agent's own words."""
    world = Gym(random.Random(f"gym {seed}"))
    booking = world.target
    note = ("We cancelled it as you wished", "Your place has been given back")[seed % 2] + f", {'so ' * (seed % 5)}done"
    calls: list[Call] = [
        ("find_guest_id", {"first_name": world.first, "last_name": world.last}),
        ("get_guest", {"guest_id": world.guest}),
        ("cancel_booking", {"booking_id": booking["booking_id"]}),
        ("get_guest", {"guest_id": world.guest}),
        ("send_note", {"guest_id": world.guest, "note": note}),
    ]
    request = f"I am {world.first} {world.last}. Cancel my {booking['sport']}, please."
    return record(f"gym-{seed}", world, request, calls, f"Booking {booking['booking_id']} is cancelled.")


def runs(make: Callable[[int], Trajectory], count: int) -> list[Trajectory]:
    return [make(seed) for seed in range(count)]
