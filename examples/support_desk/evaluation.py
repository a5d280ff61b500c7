"""How the team runs its agent on tickets: `suite` lists them, `run` handles one in its own fresh shop."""

from __future__ import annotations

from typing import Any

import trace_sdk as trace

from .agent import handle
from .tasks import tasks_of, ticket_of
from .verifier import verify


@trace.evaluation
class SupportDesk:
    """Several runs may go on at once, in threads: nothing is shared between them but the client."""

    def suite(self, split: str) -> list[dict[str, Any]]:
        """The tickets of ``train``, ``gate`` or ``report``."""
        return tasks_of(split)

    def run(self, task: dict[str, Any]) -> trace.Outcome:
        """Let the agent handle the task's ticket, and look at what it did to the database."""
        ticket = ticket_of(task["seed"])
        with ticket.open_desk() as desk:
            before = desk.state()
            reply = handle(ticket.text, desk)
            verdict = verify(ticket, before, desk.state(), reply)
        return trace.Outcome(verdict.success, verdict.score, verdict.reason)
