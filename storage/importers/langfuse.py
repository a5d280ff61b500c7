"""Langfuse: traces with their observations and scores, as its API and its page export them.

Read are: `TraceWithFullDetails` (``GET /api/public/traces/ID``, one, a list, or a page's ``data``), the page's
download of a trace (`{"trace", "observations"}`, inputs and outputs as JSON text), and rows of observations
(``GET /api/public/v2/observations``, or the table's export), which are put together by ``traceId``; each as JSON or
JSON lines. Looked up in langfuse/langfuse, fern/apis/server/definition/commons.yml (`Trace`, `ObservationsView`,
`Score`), and in Langfuse's pages on exporting (2026).

The run's messages are those of its longest GENERATION; a trace without any is its own input and output. A score
named like a verdict (outcome, success, resolved, passed, reward) is the outcome; all scores are in the metadata.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from storage import codec
from storage.importers import chat, documents, fields
from storage.importers.contract import Format, Raw, Source
from storage.importers.threads import Thread, ToolRun, run_of, tool_run

_CALLS = ("GENERATION",)


def split(source: Source) -> Iterator[Raw]:
    """Traces; observations that stand for themselves are gathered under the place of the first of their trace."""
    gathered: dict[str, list[Any]] = {}
    places: dict[str, str] = {}
    for raw in documents.records(source, ("data", "traces")):
        value = raw.value
        if isinstance(value, dict) and "observations" not in value and isinstance(value.get("traceId"), str):
            gathered.setdefault(value["traceId"], []).append(value)
            places.setdefault(value["traceId"], raw.position)
        elif isinstance(value, dict) and isinstance(value.get("trace"), dict):
            inner = {k: v for k, v in value.items() if k != "trace"}
            yield Raw(raw.position, {**value["trace"], **inner})
        else:
            yield raw
    for trace, rows in gathered.items():
        yield Raw(f"{places[trace]} (trace {trace})", {"id": trace, "observations": rows})


def build(raw: Raw, _file: str) -> dict[str, Any]:
    """The fields of one trace's run."""
    trace = fields.mapping(raw.value, "the trace")
    listed = fields.items(trace.get("observations") or [], "observations")
    if listed and all(isinstance(item, str) for item in listed):
        raise ValueError("observations are ids only; export whole traces, or observations with their inputs")
    observations = [fields.mapping(item, f"observations[{i}]") for i, item in enumerate(listed)]
    observations.sort(key=lambda o: fields.epoch(o.get("startTime")))
    threads: list[Thread] = []
    executed: list[ToolRun] = []
    usage: dict[str, Mapping[str, int]] = {}
    for index, observation in enumerate(observations):
        id = fields.label(observation.get("id")) or str(index)
        kind = str(observation.get("type")).upper()
        if kind in _CALLS:
            thread = _thread(observation, f"observation {id}")
            threads += [thread] if thread.messages else []
            if used := _usage(observation):
                usage[id] = used
        elif kind == "TOOL":
            executed += _tool(observation, id)
    if not threads:
        threads.append(_thread(trace, "the trace"))
    found = run_of(threads, executed, usage)
    if not found["messages"]:
        raise ValueError("neither an observation nor the trace has an input")
    ids = {fields.label(o.get("id")) for o in observations} - {None}
    roots = [o for o in observations if fields.label(o.get("parentObservationId")) not in ids]
    failed = next((o for o in roots if o.get("level") == "ERROR"), None)
    scores = _scores(trace)
    times = [t for o in (trace, *observations) if (t := fields.epoch(o.get("timestamp", o.get("startTime"))))]
    first: Mapping[str, Any] = roots[0] if roots else {}
    return {
        **found,
        "agent": fields.label(trace.get("name")) or fields.label(first.get("traceName", first.get("name"))),
        "version": fields.label(trace.get("version")) or fields.label(trace.get("release")),
        "session": fields.label(trace.get("sessionId", first.get("sessionId"))),
        "user": fields.label(trace.get("userId", first.get("userId"))),
        "tags": tuple(t for t in trace.get("tags") or () if isinstance(t, str)) if _is_list(trace.get("tags")) else (),
        "status": "raised" if failed else "completed",
        "error": _error(failed) if failed else None,
        "started_at": min(times, default=0.0),
        "metadata": {
            **found["metadata"],
            **({"scores": scores} if scores else {}),
            **{k: trace[k] for k in ("id", "environment", "metadata") if trace.get(k) not in (None, {}, "")},
        },
        **fields.verdict_of({s["name"]: s["value"] for s in scores}),
    }


def _thread(holder: Mapping[str, Any], name: str) -> Thread:
    asked = _decoded(holder.get("input"))
    messages = (
        *chat.conversation(asked, f"{name}, input"),
        *chat.conversation(_decoded(holder.get("output")), f"{name}, output", "assistant"),
    )
    tools = chat.tools(asked.get("tools"), f"{name}, input.tools") if isinstance(asked, dict) else ()
    at = fields.epoch(holder.get("startTime", holder.get("timestamp")))
    return Thread(messages, at, fields.label(holder.get("model", holder.get("providedModelName"))), tools)


def _tool(observation: Mapping[str, Any], id: str) -> list[ToolRun]:
    name, output = fields.label(observation.get("name")), observation.get("output")
    if name is None or output is None:
        return []
    said = _decoded(output)
    metadata = observation.get("metadata")
    call: Any = metadata.get("tool_call_id") if isinstance(metadata, dict) else None
    if isinstance(said, dict) and "content" in said and ("tool_call_id" in said or said.get("type") == "tool"):
        call, output = said.get("tool_call_id", call), said["content"]
    return [tool_run(id, call, name, observation.get("input"), output, fields.epoch(observation.get("startTime")))]


def _usage(observation: Mapping[str, Any]) -> dict[str, int]:
    details = observation.get("usageDetails") or observation.get("usage")
    if not isinstance(details, dict):
        return {}
    given = {"prompt_tokens": details.get("input"), "completion_tokens": details.get("output")}
    return {k: v for k, v in given.items() if isinstance(v, int) and not isinstance(v, bool)}


def _scores(trace: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for index, score in enumerate(fields.items(trace.get("scores") or [], "scores")):
        if isinstance(score, str):
            continue  # an id
        score = fields.mapping(score, f"scores[{index}]")
        name = fields.text(score.get("name"), f"scores[{index}].name")
        value = score.get("value")
        value = value if value is not None else score.get("stringValue")
        if score.get("dataType") == "BOOLEAN" and isinstance(value, int | float):
            value = bool(value)
        found.append({"name": name, "value": value, **({"comment": c} if (c := score.get("comment")) else {})})
    return found


def _error(observation: Mapping[str, Any]) -> dict[str, Any]:
    message = fields.label(observation.get("statusMessage")) or ""
    return {"type": "Error", "message": message, "boundary": "unknown"}


def _decoded(value: object) -> Any:
    """Inputs and outputs, of which some exports make text."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return codec.strict_loads(value)
        except ValueError:
            return value
    return value


def _is_list(value: object) -> bool:
    return isinstance(value, list)


FORMAT = Format("langfuse", "traces of Langfuse with their observations (JSON or JSON lines)", split, build)
