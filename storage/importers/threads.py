"""From the model calls of a trace to the messages of a run.

Each call of an agent's model repeats what was said before, so that the longest one holds the run. Calls that are no
beginning of it (a sub-agent, a branch, a summary) are threads of their own, and are kept beside it. A tool's last
result, which no further call repeats, comes from the tool's own span. All of it is a union: the same calls give the
same run, in whatever order and how often they arrive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from storage.importers.chat import as_text
from storage.trajectory import Message, message_to_dict

Messages = tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Thread:
    """What one call, or a chain of calls, has said. ``at`` is when it began, in seconds since the epoch."""

    messages: Messages
    at: float = 0.0
    model: str | None = None
    tools: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class ToolRun:
    """A tool's own span: what it was asked and what it gave. ``id`` is the call's, where the span says it."""

    span: str
    id: str | None
    name: str
    arguments: str
    result: str
    at: float = 0.0


def union(threads: Iterable[Thread]) -> tuple[Thread, ...]:
    """The threads that are no beginning of another, longest first (of equal ones the later)."""
    found: list[Thread] = []
    for thread in sorted((t for t in threads if t.messages), key=_rank, reverse=True):
        for index, longer in enumerate(found):
            if _begins(thread.messages, longer.messages):
                found[index] = _with_details(longer, thread)
                break
        else:
            found.append(thread)
    return tuple(found)


def missing_results(messages: Sequence[Message], executed: Iterable[ToolRun]) -> Messages:
    """Tool messages for those calls at the end of the messages that no message answers."""
    last = next((i for i in range(len(messages) - 1, -1, -1) if messages[i].role == "assistant"), None)
    if last is None or any(m.role != "tool" for m in messages[last + 1 :]):
        return ()
    answered = {m.tool_call_id for m in messages[last + 1 :]}
    unused = sorted(executed, key=lambda run: (run.at, run.span))
    results: list[Message] = []
    for call in messages[last].tool_calls:
        if call.id in answered:
            continue
        run = next((r for r in unused if r.id is not None and r.id == call.id), None)
        run = run or next((r for r in unused if r.id is None and r.name == call.name), None)
        if run is not None:
            unused.remove(run)
            results.append(Message("tool", run.result, (), call.id))
    return tuple(results)


def unanswered(messages: Sequence[Message], executed: Iterable[ToolRun]) -> tuple[ToolRun, ...]:
    """The tool spans whose call no message answers: they may yet be needed, and are kept."""
    answered = {m.tool_call_id for m in messages if m.role == "tool" and m.tool_call_id}
    return tuple(run for run in executed if run.id is None or run.id not in answered)


def run_of(
    threads: Iterable[Thread], executed: Iterable[ToolRun], usage: Mapping[str, Mapping[str, int]]
) -> dict[str, Any]:
    """Messages, model, tools and metadata of a run of which all calls are known."""
    found = union(threads)
    main = found[0] if found else Thread(())
    runs = tuple(executed)
    messages = (*main.messages, *missing_results(main.messages, runs))
    kept = {"other_threads": other_threads(main, found[1:]), "usage": dict(usage)}
    return {
        "messages": messages,
        "model": main.model or next((t.model for t in found if t.model), None),
        "tools": main.tools,
        "metadata": {key: value for key, value in kept.items() if value},
    }


def other_threads(main: Thread, others: Iterable[Thread]) -> list[dict[str, Any]]:
    """Threads beside the main one, for a run's metadata: how many messages they share with it, and the rest."""
    found: list[dict[str, Any]] = []
    for other in others:
        shared = 0
        for one, two in zip(main.messages, other.messages, strict=False):
            if one != two:
                break
            shared += 1
        found.append(
            {
                "shared": shared,
                "messages": [message_to_dict(m) for m in other.messages[shared:]],
                "at": other.at,
                **({"model": other.model} if other.model else {}),
            }
        )
    return found


def tool_run(span: str, id: object, name: str, arguments: object, result: object, at: float) -> ToolRun:
    """A tool span's fields, as text."""
    known = str(id) if isinstance(id, str | int) and not isinstance(id, bool) and id != "" else None
    return ToolRun(span, known, name, as_text(arguments), as_text(result), at)


def _rank(thread: Thread) -> tuple[Any, ...]:
    return len(thread.messages), thread.at, [(m.role, m.content) for m in thread.messages]


def _begins(short: Messages, long: Messages) -> bool:
    return len(short) <= len(long) and all(_key(a) == _key(b) for a, b in zip(short, long, strict=False))


def _key(message: Message) -> tuple[Any, ...]:
    # Reasoning and the like is in an answer and not in the next request; names are left out by some clients.
    calls = tuple(
        (c.id, c.name, c.arguments if c.arguments is not None else c.raw_arguments) for c in message.tool_calls
    )
    return message.role, message.content, calls, message.tool_call_id if message.role == "tool" else None


def _with_details(longer: Thread, shorter: Thread) -> Thread:
    """The longer thread, with parts and names that only the shorter one has."""
    ahead = list(longer.messages)
    for index, message in enumerate(shorter.messages):
        kept = ahead[index]
        if (message.parts and not kept.parts) or (message.name and not kept.name):
            ahead[index] = replace(kept, parts=kept.parts or message.parts, name=kept.name or message.name)
    return replace(
        longer, messages=tuple(ahead), model=longer.model or shorter.model, tools=longer.tools or shorter.tools
    )
