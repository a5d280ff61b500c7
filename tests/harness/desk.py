"""A small environment written by hand, for the tests of scoring, episodes and admission: a library's loan desk."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from harness.environment import Act, Goals, Task

TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "find_loans",
            "description": "Loans of a member.",
            "parameters": {
                "type": "object",
                "properties": {"member": {"type": "string"}},
                "required": ["member"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "extend_loan",
            "description": "Extend a loan by some days.",
            "parameters": {
                "type": "object",
                "properties": {"loan_id": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["loan_id", "days"],
            },
        },
    },
)
TITLES = ("Dune", "Emma", "Ulysses", "Walden", "Kim", "Ivanhoe", "Persuasion", "Middlemarch")


class LoanDesk:
    """Extend the loan of one title by some days, and say its number."""

    name = "loan-desk"
    tools: Sequence[Mapping[str, Any]] = TOOLS

    def __init__(self) -> None:
        self._world: dict[str, Any] = {"loans": {}}
        self._goal: dict[str, Any] = {}

    def reset(self, seed: int) -> Task:
        draw = random.Random(f"loan-desk {seed}")
        member = f"M-{draw.randrange(10_000, 99_999)}"
        numbers = draw.sample(range(100_000, 999_999), 3)
        titles = draw.sample(TITLES, 3)
        self._world = {
            "loans": {
                f"L-{n}": {"loan_id": f"L-{n}", "member": member, "title": title, "days": draw.randrange(1, 9)}
                for n, title in zip(numbers, titles, strict=True)
            }
        }
        more = draw.randrange(10, 20)
        loan = f"L-{numbers[1]}"
        self._goal = {"member": member, "title": titles[1], "loan": loan, "days": more}
        text = f"I am {member}. Please extend my loan of {titles[1]} to {more} days and tell me its number."
        messages = ({"role": "system", "content": "You run a loan desk."}, {"role": "user", "content": text})
        return Task(seed, text, messages, "extend")

    def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        loans = self._world["loans"]
        if tool == "find_loans" and "member" in arguments:
            found = [loan for loan in loans.values() if loan["member"] == arguments["member"]]
            return json.dumps({"loans": found} if found else {"error": "no such member"})
        if tool == "extend_loan" and {"loan_id", "days"} <= arguments.keys():
            loan = loans.get(arguments["loan_id"]) if isinstance(arguments["loan_id"], str) else None
            if loan is None:
                return json.dumps({"error": "no such loan"})
            loan["days"] = arguments["days"]
            return json.dumps(loan)
        return json.dumps({"error": "invalid call"})

    def respond(self, text: str) -> str | None:
        return None

    def state(self) -> Mapping[str, Any]:
        return copy.deepcopy(self._world)

    def goals(self) -> Goals:
        goal = self._goal
        return Goals(state={f"loans.{goal['loan']}.days": goal["days"]}, said=((goal["loan"],),))

    def reference(self) -> Sequence[Act]:
        goal = self._goal
        return (
            Act("find_loans", {"member": goal["member"]}),
            Act("extend_loan", {"loan_id": goal["loan"], "days": goal["days"]}),
            Act(text=f"Your loan {goal['loan']} now runs {goal['days']} days."),
        )


def lapse(acts: Sequence[Act], task: Task) -> Sequence[Act] | None:
    """The capability "look it up first" taken out: the title is passed for the loan's number."""
    write = next(a for a in acts if a.tool == "extend_loan")
    return (Act("extend_loan", {**write.arguments, "loan_id": "Dune"}), Act(text="Done."))
