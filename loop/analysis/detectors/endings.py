"""How a run ends: it is finished, its answer rests on what tools returned, and it looked before it answered."""

from __future__ import annotations

import re

from harness.tool_kinds import WRITE_VERBS, is_handover
from loop.analysis import lapses
from loop.analysis.labels import NA, Detector, Label
from loop.analysis.view import View

_ANNOUNCES = re.compile(
    r"\b(i('| wi)ll (now|then|go|check|look|proceed|take|do|get|try|need)|let me (?!know)|i am going to|i'm going to|"
    r"one moment|please (wait|hold)|hold on|next,? i)\b",
    re.I,
)
_ASKS = re.compile(r"\?\s*$|\blet me know\b|\bplease (provide|confirm|tell|share|reply|specify)\b", re.I)
# Reference numbers (letters with digits) and numbers too long to be a count.
_TOKEN = re.compile(r"(?<![\w.@/-])(?=[\w-]*\d)(?:[A-Za-z]+[-_#]?\d[\w-]{2,}|\d{5,}|[A-Z]{1,3}-\d{2,})(?![\w@])")
_PARTICIPLES = "|".join(
    sorted({re.escape(v[:-1] if v.endswith("e") else v) + r"\w?ed" for v in WRITE_VERBS if v.isalpha()} | {"sent"})
)
_CLAIM = re.compile(rf"\b(has|have) (now |already |successfully )*been (successfully )?({_PARTICIPLES})\b", re.I)


def _complete_ending(view: View) -> Label:
    last = view.last_agent_message
    if last is None:
        return NA
    message = view.messages[last]
    final_step = len(view.actions) - 1 if view.actions else None
    if message.tool_calls:
        if any(is_handover(call.name) for call in message.tool_calls):
            return Label("PRESENT")
        if not any(a.error for a in view.actions if a.position == last):
            # Where the world ends the run (a goal reached, a form submitted) nothing is left to say.
            return NA
        return Label("LACKING", final_step, last, "the run ends on a call that was refused")
    text = message.content.strip()
    if not text:
        return Label("LACKING", final_step, last, "the last answer is empty")
    if _ANNOUNCES.search(text[-200:]) and not _ASKS.search(text[-200:]):
        return Label("LACKING", final_step, last, f"ends by announcing more: {text[-80:]!r}")
    return Label("PRESENT")


def _grounded_answer(view: View) -> Label:
    last, text = view.last_agent_message, view.final_text
    if last is None or not text:
        return NA
    step = len(view.actions) - 1 if view.actions else None
    tokens = _TOKEN.findall(text[:4000])
    for token in tokens:
        if not view.is_known(token, last):
            return Label("LACKING", step, last, f"the answer mentions {token!r:.60}, which nothing returned")
    claim = _CLAIM.search(text)
    # Only where tools can change things is a claim of a change checkable.
    if claim and any(f.write for f in view.book.facts.values()):
        if not any(a.write and a.accepted for a in view.actions) and not view.was_returned(claim[4], last):
            return Label("LACKING", step, last, f"the answer says {claim[0]!r:.60}, and no change was made")
        return Label("PRESENT")
    return Label("PRESENT") if tokens else NA


def _consults_tools(view: View) -> Label:
    if not view.book.facts or view.last_agent_message is None:
        return NA
    if any(a.accepted for a in view.actions):
        return Label("PRESENT")
    if view.actions:
        # It asked and was refused: what it made of that is not this capability.
        return NA
    return Label("LACKING", None, view.last_agent_message, "answered without having called any tool")


COMPLETE_ENDING = Detector(
    id="complete_ending",
    name="Finishing the task",
    description="Ends with an answer, not in the middle of the work and not with an announcement of what comes next.",
    hint="Do not stop before the task is done: make the calls that are left, then tell the user what you did.",
    look=_complete_ending,
    lapse=lapses.stops_early,
)
GROUNDED_ANSWER = Detector(
    id="grounded_answer",
    name="Answers that rest on tool results",
    description="Tells the user only numbers, references and completed changes that tool results show.",
    hint="Tell the user only what the tools returned, and say that a change is made only after its call succeeded.",
    look=_grounded_answer,
    lapse=lapses.claims_undone,
)
CONSULTS_TOOLS = Detector(
    id="consults_tools",
    name="Consulting tools before answering",
    description="Calls a tool before answering a request, instead of answering from memory.",
    hint="Use the tools to find out before you answer: do not answer from memory.",
    look=_consults_tools,
    lapse=lapses.answers_without_looking,
)
