"""Changing the world: look first, do what was asked, mend what was refused, respect what was read."""

from __future__ import annotations

import re

from harness.tool_kinds import is_handover
from loop.analysis import lapses
from loop.analysis.labels import NA, Detector, Label
from loop.analysis.values import is_wrong_kind
from loop.analysis.view import Action, View


def _lexicon(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _was_looked_up(view: View, value: str, action: Action) -> bool:
    """Whether a tool showed this record before: it returned the value, or answered a look-up by it."""
    return view.was_returned(value, action.position) or any(
        not a.write and a.accepted and a.position < action.position and any(n.value == value for n in a.names)
        for a in view.actions[: action.index]
    )


def _looked_up(view: View, action: Action) -> bool:
    return all(_was_looked_up(view, named.value, action) for named in action.names)


def _lookup_before_change(view: View) -> Label:
    looked = False
    for action in view.actions:
        if not action.write or not action.names:
            continue
        if _looked_up(view, action):
            looked = True
            continue
        for named in action.names:
            if _was_looked_up(view, named.value, action):
                continue
            if is_wrong_kind(named.parameter, named.value):
                return _unlooked(action, f"{named.parameter}={named.value!r:.80} is not an id, and none was looked up")
            if not view.is_known(named.value, action.position):
                return _unlooked(action, f"{named.parameter}={named.value!r:.80} was never looked up")
            if action.error:
                return _unlooked(action, f"{named.parameter}={named.value!r:.80} was not looked up, and refused")
    # A record that the user named correctly and that the tool accepted needed no look: it shows nothing.
    return Label("PRESENT") if looked else NA


def _unlooked(action: Action, evidence: str) -> Label:
    return Label("LACKING", action.index, action.position, f"{action.tool}: {evidence}")


def _follow_through(view: View) -> Label:
    changing = [f for f in view.book.facts.values() if f.write and f.verbs]
    if not changing or any(a.accepted and is_handover(a.tool) for a in view.actions):
        # Handed to a person: whether that was right is not seen here.
        return NA
    spoken = view.user_text
    asked = sorted(verb for verb in frozenset[str]().union(*(f.verbs for f in changing)) if _asks(spoken, verb))
    if not asked:
        return NA
    changes = [action for action in view.actions if action.write]
    if changes:
        # Why every change was refused is what other detectors look at; trying was not lacking.
        return Label("PRESENT") if any(action.accepted for action in changes) else NA
    step = len(view.actions) - 1 if view.actions else None
    evidence = f"the user asked to {' or '.join(asked[:3])}, and no call that changes anything was made"
    return Label("LACKING", step, view.last_agent_message, evidence)


# Before a form in -ing these make a noun or a time of it: "my booking", "after booking".
_NAMES_IT = _lexicon(
    "a an the this that my your our his her their its original current existing new after before when since while"
)
# Before a form in -ed these ask for it: "I want it cancelled", "it has to be changed".
_WANTS_IT = re.compile(r"\b(be|get|getting|want|need|like)( (it|this|that|them|these|those|my|the)( \w+)?)?\s*$")
# Before the plain form these make an adjective of it: "is that correct?", "we are all set".
_DESCRIBES = _lexicon("is are was were be been am all the that that's it's everything's looks seems")


def _asks(text: str, verb: str) -> bool:
    """Whether the user asks for the verb: cancel, cancelling, "want it cancelled"; not "I booked" or "my booking"."""
    stem = verb.removesuffix("e")
    if stem not in text:
        return False
    forms = re.finditer(rf"\b{re.escape(stem)}(e|s|es|ed|ing|\wed|\wing)?\b", text)
    return any(_is_request(text[max(0, m.start() - 40) : m.start()], m[1] or "") for m in forms)


def _is_request(before: str, ending: str) -> bool:
    last = next(iter(re.findall(r"[\w']+", before.replace("’", "'"))[-1:]), "")
    if ending.endswith("ed"):
        return bool(_WANTS_IT.search(before))
    return last not in (_NAMES_IT if ending.endswith("ing") else _DESCRIBES if ending in ("", "e") else ())


def _recovery(view: View) -> Label:
    failures = [a for a in view.actions if a.error]
    if not failures:
        return NA
    for failure in failures:
        later = view.actions[failure.index + 1 :]
        mended = any(
            a.accepted and a.same != failure.same and (a.tool == failure.tool or a.write or not failure.write)
            for a in later
        )
        if not mended:
            again = sum(a.same == failure.same for a in later)
            how = f"and the same call was made {again} more times" if again else "and nothing mended it"
            evidence = f"{failure.tool} was refused ({(failure.result or '')[:80]!r}), {how}"
            return Label("LACKING", failure.index, failure.position, evidence)
    return Label("PRESENT")


def _respects_results(view: View) -> Label:
    respected = False
    refused: set[tuple[str, frozenset[str]]] = set()
    for action in view.actions:
        if not action.write or not action.names:
            continue
        target = (action.tool, frozenset(n.value for n in action.names))
        if action.error and (target in refused or _looked_up(view, action)):
            ruled_out = "had been refused before" if target in refused else "what was read of the record ruled it out"
            return Label("LACKING", action.index, action.position, f"{action.tool} was refused: {ruled_out}")
        if action.error:
            refused.add(target)
        respected = respected or action.accepted
    return Label("PRESENT") if respected else NA


LOOKUP_BEFORE_CHANGE = Detector(
    id="lookup_before_change",
    name="Look-up before a change",
    description="Looks up the record and its identifier with a reading tool before calling a tool that changes it.",
    hint="Before any call that changes something, look the record up first and use the exact id which that returned.",
    look=_lookup_before_change,
    lapse=lapses.changes_without_look,
)
FOLLOW_THROUGH = Detector(
    id="follow_through",
    name="Carrying out the requested change",
    description="When the user asks for a change that a tool can make, makes it, instead of only talking about it.",
    hint="When the user asks for a change, make it with the tool that makes it before you answer.",
    look=_follow_through,
    lapse=lapses.never_changes,
    needs_schemas=True,
)
RECOVERY = Detector(
    id="recovery_after_error",
    name="Recovery after a tool error",
    description="After a call is refused, finds out why and reaches the aim with another call.",
    hint="When a call is refused, read why, get what is missing with another tool, and then try again.",
    look=_recovery,
    lapse=lapses.gives_up_after_error,
)
RESPECTS_RESULTS = Detector(
    id="respects_results",
    name="Acting within what results allow",
    description="Does not attempt a change that a record it has read, or an earlier refusal, already ruled out.",
    hint="Check in what the tools returned that a change is possible before you make it, and never retry a refusal.",
    look=_respects_results,
    lapse=lapses.ignores_refusal,
)
