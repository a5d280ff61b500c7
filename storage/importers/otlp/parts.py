"""What some of a trace's spans say of its run, and how two such parts become one.

Spans are exported when they end, in batches: the spans of one run reach a collector in several requests, its root
last. A part is a value that holds what is needed to go on; `merged` is a union, so that the order and the number of
the deliveries make no difference. In the database a part is a run whose ``metadata["otlp"]`` holds the rest of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from storage import codec
from storage.importers import fields
from storage.importers.otlp import spans as read
from storage.importers.otlp.wire import Span
from storage.importers.threads import Messages, Thread, ToolRun, missing_results, other_threads, unanswered, union
from storage.trajectory import Trajectory, message_from_dict

OURS = "trace_sdk."
"""Attributes that `storage.exporters.otlp` writes beside the conventions, for what these have no names for."""


@dataclass(frozen=True, slots=True)
class Part:
    """``agents`` maps how sure a name is (2: the root's, 1: a span's below it, 0: the service's) to when it was
    given and what it is. ``usage`` and ``tool_runs`` are by span, so that a span that comes twice counts once."""

    trace: str
    threads: tuple[Thread, ...] = ()
    tool_runs: tuple[ToolRun, ...] = ()
    agents: Mapping[int, tuple[float, str]] = field(default_factory=dict)
    usage: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    told: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of the run, each once it is known: session, user, version, task, tags, policy, …"""
    evaluations: tuple[Mapping[str, Any], ...] = ()
    started: float = 0.0
    ended: bool = False
    error: Mapping[str, Any] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing in it but that something ended."""
        return not (self.threads or self.tool_runs or self.usage or self.told or self.evaluations or self.agents)


def part(trace: str, spans: Sequence[Span]) -> Part:
    """What these spans of one trace say. Raises ValueError that names the span and the field."""
    threads: list[Thread] = []
    tool_runs: list[ToolRun] = []
    agents: dict[int, tuple[float, str]] = {}
    usage: dict[str, Mapping[str, int]] = {}
    told: dict[str, Any] = {}
    evaluations: list[Mapping[str, Any]] = []
    spoken = [span for span in _with_logs(spans) if read.is_about_models(span)]
    for span in sorted(spoken, key=lambda s: (s.started, s.id)):
        try:
            kind = read.kind(span)
            if kind == "tool":
                run = read.tool(span)
                tool_runs += [run] if run else []
            elif kind == "model" and (said := read.thread(span)):
                threads.append(said)
            if kind == "model" and (used := read.usage(span)):
                usage[span.id] = used
            evaluations += read.evaluations(span)
        except ValueError as error:
            raise ValueError(f"span {span.id}: {error}") from None
        if name := read.agent(span):
            sure = 2 if span.is_root else 1
            agents.setdefault(sure, (span.started, name))
        told.setdefault("session", read.session(span))
        told.setdefault("user", read.user(span))
        told = {k: v for k, v in told.items() if v is not None} | _ours(span)
        version = fields.label(span.attributes.get("gen_ai.agent.version", span.resource.get("service.version")))
        if version is not None:
            told.setdefault("version", version)
        service = fields.label(span.resource.get("service.name"))
        if service and not service.startswith("unknown_service"):
            agents.setdefault(0, (span.started, service))
    if not threads:
        threads += _of_agents(spoken)
    roots = [span for span in spans if span.is_root]
    failed = next((span for span in roots if span.failed), None)
    return Part(
        trace,
        union(threads),
        tuple(tool_runs),
        agents,
        usage,
        {k: v for k, v in told.items() if v is not None},
        tuple(evaluations),
        min((span.started for span in spans if span.started), default=0.0),
        bool(roots),
        _error(failed) if failed else None,
    )


def merged(one: Part, two: Part) -> Part:
    """Both parts of one trace as one."""
    evaluations = [*one.evaluations, *(e for e in two.evaluations if e not in one.evaluations)]
    agents = {
        sure: min(found[sure] for found in (one.agents, two.agents) if sure in found)
        for sure in {*one.agents, *two.agents}
    }
    return Part(
        one.trace,
        union([*one.threads, *two.threads]),
        tuple({run.span: run for run in (*one.tool_runs, *two.tool_runs)}.values()),
        agents,
        {**one.usage, **two.usage},
        {**two.told, **one.told},
        tuple(evaluations),
        min((t for t in (one.started, two.started) if t), default=0.0),
        one.ended or two.ended,
        one.error or two.error,
    )


def run_of(part: Part, *, complete: bool = False) -> dict[str, Any]:
    """The fields of a trajectory. ``complete``: there is nothing more to come, whatever is missing."""
    main = part.threads[0] if part.threads else Thread(())
    added = missing_results(main.messages, part.tool_runs)
    messages = (*main.messages, *added)
    told = dict(part.told)
    outcome = _outcome(told, part.evaluations)
    state: dict[str, Any] = {"trace": part.trace, "main": {"at": main.at, "added": len(added), "model": main.model}}
    kept = {
        "other_threads": other_threads(main, part.threads[1:]),
        "tool_runs": [_as_dict(run) for run in unanswered(main.messages, part.tool_runs)],
        "usage": dict(part.usage),
        "told": {k: v for k, v in told.items() if k != "metadata"},
        "evaluations": [dict(e) for e in part.evaluations],
        "agents": {str(sure): list(found) for sure, found in part.agents.items()},
        "ended": part.ended,
        "error": part.error,
    }
    state |= {k: v for k, v in kept.items() if v}
    ended = complete or part.ended
    status = told.get("status") if told.get("status") in ("completed", "raised", "aborted", "running") else None
    found = {k: told[k] for k in ("session", "user", "version", "task", "policy") if isinstance(told.get(k), str)}
    metadata = dict(told["metadata"]) if isinstance(told.get("metadata"), dict) else {}
    # What an exported run had known of its own spans: its other threads, for one.
    before = metadata.pop("otlp", None)
    state = {**before, **state} if isinstance(before, dict) else state
    return {
        "messages": messages,
        "agent": part.agents[max(part.agents)][1] if part.agents else None,
        "model": main.model,
        "tools": main.tools,
        "tags": tuple(sorted({t for t in _list(told.get("tags")) if isinstance(t, str)})),
        "trainable": told.get("trainable") is not False,
        "status": status or (("raised" if part.error else "completed") if ended else "running"),
        # A run that we exported says what it knew of its error; a span's status can say no more.
        "error": told.get("error") if isinstance(told.get("error"), dict) else None if status else part.error,
        "started_at": part.started,
        "metadata": {**metadata, "otlp": state},
        **found,
        **outcome,
    }


def from_run(run: Trajectory) -> Part | None:
    """The part that a stored run holds; None if it was not made of spans."""
    state = run.metadata.get("otlp")
    try:
        return _restored(run, state) if isinstance(state, dict) else None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        # Somebody else's metadata under the same name.
        return None


def _restored(run: Trajectory, state: Mapping[str, Any]) -> Part:
    main = state.get("main") or {}
    messages = run.messages[: len(run.messages) - int(main.get("added") or 0)]
    threads = [Thread(messages, float(main.get("at") or 0.0), run.model, run.tools)] if messages else []
    for other in state.get("other_threads") or []:
        rest: Messages = tuple(message_from_dict(m) for m in other["messages"])
        threads.append(Thread((*messages[: other["shared"]], *rest), other.get("at") or 0.0, other.get("model")))
    told = dict(state.get("told") or {})
    rest_of = {k: v for k, v in run.metadata.items() if k != "otlp"}
    if rest_of:
        told["metadata"] = rest_of
    return Part(
        state["trace"],
        tuple(threads),
        tuple(ToolRun(**raw) for raw in state.get("tool_runs") or []),
        {int(sure): (found[0], found[1]) for sure, found in (state.get("agents") or {}).items()},
        state.get("usage") or {},
        told,
        tuple(state.get("evaluations") or ()),
        run.started_at,
        bool(state.get("ended")),
        state.get("error"),
    )


def _with_logs(spans: Sequence[Span]) -> list[Span]:
    """Spans with the events that came as log records; records of a span that is elsewhere stand for it."""
    logged: dict[str, list[Span]] = {}
    for span in spans:
        if span.logged:
            logged.setdefault(span.id, []).append(span)
    found = [
        replace(span, events=(*span.events, *(e for record in logged.pop(span.id, ()) for e in record.events)))
        for span in spans
        if not span.logged
    ]
    for records in logged.values():
        events = tuple(event for record in records for event in record.events)
        found.append(replace(records[0], events=events, started=min(record.started for record in records)))
    return found


def _of_agents(spans: Iterable[Span]) -> list[Thread]:
    """Where no model call holds messages, what the agents' own spans say went in and came out."""
    found: list[Thread] = []
    for span in spans:
        if read.kind(span) == "agent":
            try:
                said = read.thread(span)
            except ValueError as error:
                raise ValueError(f"span {span.id}: {error}") from None
            found += [said] if said else []
    return found


def _ours(span: Span) -> dict[str, Any]:
    found = {k.removeprefix(OURS): v for k, v in span.attributes.items() if k.startswith(OURS)}
    for name in ("metadata", "error"):
        if isinstance(found.get(name), str):
            try:
                found[name] = codec.strict_loads(found[name])
            except ValueError:
                raise ValueError(f"span {span.id}: {OURS}{name} is not JSON") from None
    return found


def _outcome(told: Mapping[str, Any], evaluations: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    success, score = told.get("outcome"), told.get("score")
    if isinstance(success, bool) or isinstance(score, int | float):
        return {
            "success": success if isinstance(success, bool) else None,
            "score": float(score) if isinstance(score, int | float) and not isinstance(score, bool) else None,
        }
    return fields.verdict_of({e["name"]: e.get("score", e.get("label")) for e in evaluations})


def _error(span: Span) -> dict[str, Any]:
    caught = next((e.attributes for e in span.events if e.name == "exception"), {})
    kind = fields.label(span.attributes.get("error.type")) or fields.label(caught.get("exception.type")) or "Error"
    message = span.message or fields.label(caught.get("exception.message")) or ""
    return {"type": kind, "message": message, "boundary": "unknown"}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _as_dict(run: ToolRun) -> dict[str, Any]:
    return {name: getattr(run, name) for name in ("span", "id", "name", "arguments", "result", "at")}
