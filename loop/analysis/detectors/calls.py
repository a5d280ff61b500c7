"""Calls that are right by themselves: well-formed, valid, grounded, not repeated."""

from __future__ import annotations

import re

from loop.analysis import lapses
from loop.analysis.labels import NA, Detector, Label
from loop.analysis.schema import fault
from loop.analysis.view import View

# A call that the agent wrote as text and that no server turned into a call.
_WRITTEN_CALL = re.compile(r'<tool_call>|<function=|\{\s*"name"\s*:\s*"\w+"\s*,\s*"(arguments|parameters)"\s*:')


def _well_formed(view: View) -> Label:
    for action in view.actions:
        if action.call.arguments is None:
            return Label("LACKING", action.index, action.position, f"{action.tool}: the arguments are not JSON")
        if view.book.facts and view.book.get(action.tool) is None:
            return Label("LACKING", action.index, action.position, f"there is no tool {action.tool}")
    for position, message in enumerate(view.messages):
        if message.role == "assistant" and not message.tool_calls and _WRITTEN_CALL.search(message.content):
            before = [a.index for a in view.actions if a.position < position]
            step = before[-1] if before else (0 if view.actions else None)
            return Label("LACKING", step, position, "a call stands in the text and was never made")
    return Label("PRESENT") if view.actions else NA


def _schema_valid(view: View) -> Label:
    checked = False
    for action in view.actions:
        facts = view.book.get(action.tool)
        if facts is None or facts.schema is None or action.call.arguments is None:
            continue
        checked = True
        found = fault(action.arguments, facts.schema)
        if found:
            return Label("LACKING", action.index, action.position, f"{action.tool}: {found}")
    return Label("PRESENT") if checked else NA


def _grounded(view: View) -> Label:
    checked = False
    for action in view.actions:
        for named in action.names:
            checked = True
            if not view.is_known(named.value, action.position):
                evidence = f"{action.tool}: {named.parameter}={named.value!r:.80} was neither said nor returned before"
                return Label("LACKING", action.index, action.position, evidence)
    return Label("PRESENT") if checked else NA


def _no_repeats(view: View) -> Label:
    if len(view.actions) < 2:
        return NA
    seen: dict[tuple[str, str], str | None] = {}
    for action in view.actions:
        if action.same in seen and seen[action.same] == action.result:
            evidence = f"{action.tool} was called again with the same arguments and answered the same"
            return Label("LACKING", action.index, action.position, evidence)
        if action.write and action.accepted:
            # The world has changed, so looking again is not a repetition.
            seen.clear()
        seen[action.same] = action.result
    return Label("PRESENT")


WELL_FORMED = Detector(
    id="well_formed_calls",
    name="Well-formed tool calls",
    description="Calls tools that exist, with arguments that parse, and makes the call instead of writing it as text.",
    hint="Call only the tools you are given, by their exact names, with arguments as one JSON object.",
    look=_well_formed,
    lapse=lapses.calls_unknown_tool,
)
SCHEMA_VALID = Detector(
    id="schema_valid_arguments",
    name="Arguments that fit the tool",
    description="Gives every required argument, of the declared type, and no argument that the tool doesn't have.",
    hint="Before calling a tool, check that every required argument is there, with the type that the tool asks for.",
    look=_schema_valid,
    lapse=lapses.drops_required_argument,
    needs_schemas=True,
)
GROUNDED = Detector(
    id="grounded_arguments",
    name="Arguments taken from the conversation",
    description="Uses only identifiers that the user gave or a tool returned, and never makes one up.",
    hint="Never make up an identifier: use one the user gave you or a tool returned, and look it up if you have none.",
    look=_grounded,
    lapse=lapses.invents_identifier,
)
NO_REPEATS = Detector(
    id="no_identical_repeats",
    name="No identical repeated calls",
    description="Does not make the same call again when it can only answer the same.",
    hint="Do not repeat a call with the same arguments: if it didn't help, change the arguments or use another tool.",
    look=_no_repeats,
    lapse=lapses.repeats_itself,
)
