"""What kind of tool this is, told from its name, its schema and what it answered. The one place that decides it.

Detectors, induced environments and sequence rules all need to know which calls change the world, and whether an
answer is a refusal. Nothing here knows a domain: an explicit annotation decides, then the verb in the tool's name,
then the verb that opens its description, then the wording of its answers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any


def _lexicon(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text))


READ_VERBS = _lexicon("""
    ask browse calculate cat check compare compute count describe detect display estimate examine explain fetch
    find get grep has head inspect is list load look lookup ls measure monitor open_file peek preview print
    query quote read recall recommend retrieve review scan search see select show stat status summarize tail
    test think track validate verify view wait which
""")
WRITE_VERBS = _lexicon("""
    accept activate add adjust apply approve archive assign authorize block book buy cancel change charge clean
    clear close commit confirm cool copy correct create deactivate delete deposit disable discard disconnect
    drop edit enable exchange extend file fix grant heat insert install invite issue kill lock make mark merge
    modify move mute order patch pause pay place post publish purchase push put reboot refuel refund register
    reject remove rename renew replace reply reschedule reserve reset restart resume return revoke save schedule
    sell send set share ship start stop submit subscribe suspend swap switch take terminate toggle transfer turn
    unblock uninstall unlock unsubscribe update upgrade upload use void withdraw write
""")
# Groups of verbs that people use for one another when they ask; a request names the deed, rarely the tool.
SYNONYMS: tuple[frozenset[str], ...] = (
    frozenset({"change", "modify", "update", "edit", "set", "switch", "correct", "adjust", "move", "replace"}),
    frozenset({"cancel", "void", "terminate"}),
    frozenset({"buy", "book", "purchase", "reserve"}),
    frozenset({"delete", "remove", "discard"}),
    frozenset({"create", "add", "register", "open"}),
    frozenset({"refund", "reimburse", "money back"}),
    frozenset({"return", "send back"}),
    frozenset({"exchange", "swap"}),
    frozenset({"schedule", "reschedule"}),
)
_HANDOVER = re.compile(r"escalate|hand_?(off|over)|transfer_.*(human|agent|representative|person|operator)", re.I)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_DONE = re.compile(
    r"\b(success(fully)?|has been|have been|was|now|is now)\b.{0,40}?\b\w+(ed|t|ld|en)\b|^(ok|done|success|true)\b",
    re.I,
)
_SYSTEM_FAULT = re.compile(
    r"time[d ]?-?\s?out|unavailable|connection (refused|reset|error|aborted)|internal (server )?error|bad gateway|"
    r"traceback \(most recent|database is locked|no space left|out of memory|rate limit|too many requests|"
    r"\b(50[0234]|429)\b|name resolution|ssl|unauthori[sz]ed|api key",
    re.I,
)
_ERROR_KEY = re.compile(
    r'^\s*\{\s*"(error|errors|exception|error_message|error_code)"\s*:(?!\s*(null|""|\[\]|\{\}|false|0))|'
    r'"(success|ok|succeeded)"\s*:\s*false|"status"\s*:\s*"(error|failed|failure|rejected|invalid)"|"is_?[eE]rror"\s*:\s*true'
)
_ERROR_START = re.compile(
    r"^\W*(error|fail(ed|ure)?\b|exception|traceback|invalid|unknown|cannot|can't|could not|couldn't|unable|no such|"
    r"not (found|allowed|permitted|authori[sz]ed|possible|eligible)|denied|rejected|refused|forbidden|"
    r"[A-Z]\w*(Error|Exception)\b)",
    re.I,
)
_ERROR_ANYWHERE = re.compile(
    r"not found|no such|does(n't| not) exist|is (invalid|not valid|not allowed)|command not found|syntax error|"
    r"permission denied|is required|missing required|not recognized|no \w+ (with|matches|found)|\w+Error:",
    re.I,
)


def words(name: str) -> list[str]:
    """The words of a tool or parameter name in lower case: snake, camel, dotted and dashed names alike."""
    return [word.lower() for word in _WORD.findall(name)]


def is_handover(tool_name: str) -> bool:
    """Whether the tool gives the conversation to a person: it ends the agent's part and changes no record."""
    return bool(_HANDOVER.search(tool_name))


def is_write(tool_name: str, schema: Mapping[str, Any] | None = None, evidence: Iterable[str] = ()) -> bool | None:
    """Whether calling the tool changes the world. None: nothing tells.

    ``schema`` is the OpenAI form of the tool (or its ``function`` part); ``evidence`` are answers that it gave.
    """
    function = (schema or {}).get("function", schema or {})
    declared = _declared(schema or {}, function)
    if declared is not None:
        return declared
    by_name = _by_name(tool_name)
    if by_name is not None:
        return by_name
    by_description = _by_description(str(function.get("description") or ""))
    if by_description is not None:
        return by_description
    answers = [answer for answer in evidence if answer and not is_error(answer)]
    if not answers:
        return None
    if all(answer.lstrip()[:1] in "[{" for answer in answers):
        return False
    done = sum(bool(_DONE.search(answer[:200])) for answer in answers)
    return True if done * 2 > len(answers) else None


def verbs(tool_name: str) -> frozenset[str]:
    """How a person may ask for what a changing tool does: its verb and that verb's synonyms."""
    verb = next((word for word in words(tool_name) if word in WRITE_VERBS), None)
    if verb is None:
        return frozenset()
    return frozenset({verb}).union(*(group for group in SYNONYMS if verb in group))


def is_error(result: str | None) -> bool:
    """Whether a tool's answer says that the call was refused or failed. An answer that never came is not an error."""
    return bool(result) and _opens_with_error(result[:400], len(result) < 300)


@lru_cache(maxsize=1024)
def _opens_with_error(text: str, is_short: bool) -> bool:
    if text.lstrip()[:1] in ("{", "["):
        # A record may well contain the word "error"; only the keys that report one count.
        return bool(_ERROR_KEY.search(text))
    return bool(_ERROR_START.match(text)) or (is_short and bool(_ERROR_ANYWHERE.search(text)))


def is_system_fault(result: str | None) -> bool:
    """Whether an error names a fault of the machinery (time-out, connection, crash), not of the call."""
    return bool(result) and bool(_SYSTEM_FAULT.search((result or "")[:400]))


def _declared(schema: Mapping[str, Any], function: Mapping[str, Any]) -> bool | None:
    for holder in (function, schema):
        annotations = holder.get("annotations")
        hints = annotations if isinstance(annotations, Mapping) else {}
        for source in (hints, holder):
            if isinstance(source.get("readOnlyHint"), bool):
                return not source["readOnlyHint"]
            if isinstance(source.get("mutates_state"), bool):
                return bool(source["mutates_state"])
    return None


@lru_cache(maxsize=4096)
def _by_name(tool_name: str) -> bool | None:
    if is_handover(tool_name):
        return False
    parts = words(tool_name)
    # The verb usually opens the name; a name like `order_cancel` or `db.orders.update` ends with it.
    for part in [*parts[:1], *parts[-1:]]:
        if part in READ_VERBS:
            return False
        if part in WRITE_VERBS and not (part == "order" and len(parts) > 1):
            return True
    return None


@lru_cache(maxsize=4096)
def _by_description(description: str) -> bool | None:
    first = next(iter(words(description[:60])), "")
    # "Returns the balance" describes a look-up, although one can also return goods.
    if first in ("returns", "return", "gets"):
        return False
    for form in {first, first.removesuffix("s"), first.removesuffix("es")}:
        if form in READ_VERBS:
            return False
        if form in WRITE_VERBS:
            return True
    return None
