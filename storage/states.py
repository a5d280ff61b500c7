"""Every state machine of the database, in one place. `storage.tables` checks each change of a state against it.

The first state of a machine is the one that a new row begins in. A state without successors is final.
"""

from __future__ import annotations

from collections.abc import Mapping

Machine = Mapping[str, frozenset[str]]


class IllegalTransition(ValueError):
    """A state was set that does not follow from the one before. A fault of the program, not of its user."""


def _machine(**states: str) -> Machine:
    machine = {name: frozenset(successors.split()) for name, successors in states.items()}
    unknown = {s for successors in machine.values() for s in successors} - machine.keys()
    assert not unknown, unknown
    return machine


MACHINES: Mapping[str, Machine] = {
    # `aborted` is concluded from a dead writer; a late end (a segment shipped out of order) is better evidence.
    "trajectory": _machine(running="completed raised aborted", aborted="completed raised", completed="", raised=""),
    "analysis": _machine(running="done failed interrupted", interrupted="running failed", done="", failed=""),
    "capability": _machine(
        candidate="selected dismissed",
        selected="trained candidate dismissed",
        trained="selected candidate dismissed",
        dismissed="candidate selected",
    ),
    # The latest admission decides: an environment may have been judged against the wrong tools.
    "environment": _machine(draft="admitted rejected", admitted="retired", rejected="admitted", retired="admitted"),
    "training_run": _machine(running="done failed interrupted", interrupted="running failed", done="", failed=""),
    # A version's weights never change; only who is served by it does. `retired` may be brought back by a rollback.
    "adapter": _machine(
        candidate="canary active rejected",
        canary="active rolled_back rejected",
        active="retired rolled_back",
        retired="active",
        rolled_back="",
        rejected="",
    ),
    "policy": _machine(
        candidate="canary active rejected",
        canary="active rolled_back rejected",
        active="retired rolled_back",
        retired="active",
        rolled_back="",
        rejected="",
    ),
    "evaluation": _machine(running="done failed interrupted", interrupted="running failed", done="", failed=""),
    "cycle": _machine(
        running="promoted held rejected failed interrupted",
        interrupted="running failed",
        promoted="",
        held="",
        rejected="",
        failed="",
    ),
}


def check(machine: str, old: str | None, new: str) -> None:
    """Raise IllegalTransition unless ``new`` may follow ``old`` (None: a new row). Setting the same state is legal."""
    states = MACHINES[machine]
    if new not in states:
        raise IllegalTransition(f"{machine}: {new!r} is not one of {', '.join(states)}")
    if old is not None and old != new and new not in states[old]:
        raise IllegalTransition(
            f"{machine}: {old} → {new} is not legal; from {old}: {', '.join(states[old]) or 'none'}"
        )
