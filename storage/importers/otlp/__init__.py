"""OpenTelemetry traces: a trace is a run. What is read of a request is in `wire`, of a span in `spans`.

**A run in parts.** Spans are sent when they end, so the spans of one trace may stand in several requests, in any
order and more than once. The id of a run follows from its trace's id alone, so all parts have it. `records` gives
what one request says of each trace in it; `receive` unites that with what is stored: the longest thread of messages
so far, a tool's result where no later call repeats it, and the root's name, error and verdict once it has come.
Until then the run's status is "running". A file is taken as whole: nothing is running when it has been read; but
importing a further file with spans of the same trace completes the run in the same way.

Two things are lost between requests: log records of one model call that are split over two requests are two
threads, and a run whose root span no one sends stays "running".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from storage.database import Database
from storage.errors import TraceError
from storage.importers.contract import BrokenRecord, Format, Options, Raw, Source, named_id
from storage.importers.otlp import parts, store, wire
from storage.importers.otlp.spans import is_about_models
from storage.importers.otlp.wire import BrokenSpan, Signal, Span
from storage.trajectories import SaveReport
from storage.trajectory import Trajectory

__all__ = ["FORMAT", "receive", "records", "save"]

_NO_CONTENT = (
    "no message was captured in its spans; instrumentation leaves content out unless told otherwise "
    "(OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT, TRACELOOP_TRACE_CONTENT)"
)

save = store.save


def records(
    payload: bytes, content_type: str = "application/json", *, signal: Signal = "traces", options: Options | None = None
) -> Iterator[Trajectory | BrokenRecord]:
    """The runs, or parts of runs, in the body of one OTLP/HTTP request (already decompressed).

    ``content_type`` is the request's header: JSON where it says json, protobuf where it says protobuf. ``signal``
    says to which address it was sent, ``/v1/traces`` or ``/v1/logs``. Traces without a word about models are left
    out. A trace with a span that can't be read is a broken record, whole; the others are read. Raises TraceError
    if the body is no OTLP request, or if it is protobuf and the package opentelemetry-proto is missing.
    """
    known = options or Options()
    for trace, found in _traces(payload, content_type, signal):
        if isinstance(found, BrokenRecord):
            yield found
        elif any(map(is_about_models, found)):
            yield from _record(trace, found, known)


def receive(
    db: Database,
    payload: bytes,
    content_type: str = "application/json",
    *,
    signal: Signal = "traces",
    options: Options | None = None,
) -> tuple[SaveReport, list[BrokenRecord]]:
    """Store what one request says, united with what earlier ones said. The same request again changes nothing.

    Returns how many runs were new and how many grew or were there, and the traces that couldn't be read.
    """
    known = options or Options()
    runs: list[Trajectory] = []
    broken: list[BrokenRecord] = []
    closing: list[Trajectory] = []
    for trace, found in _traces(payload, content_type, signal):
        if isinstance(found, BrokenRecord):
            broken.append(found)
            continue
        about = any(map(is_about_models, found))
        for record in _record(trace, found, known):
            if isinstance(record, BrokenRecord):
                broken.append(record)
            elif about:
                runs.append(record)
            elif record.status != "running":
                # A root that is no model's, of a trace that may have had some: a web server's, for one.
                closing.append(record)
    return store.save(db, runs, "import:otlp", closing=closing), broken


def _record(trace: str, spans: list[Span], options: Options) -> Iterator[Trajectory | BrokenRecord]:
    try:
        fields = parts.run_of(parts.part(trace, spans))
    except ValueError as error:
        yield BrokenRecord("the request", f"trace {trace}", str(error))
        return
    agent = options.agent or fields.pop("agent") or FORMAT.name
    fields.pop("agent", None)
    run = Trajectory(named_id(FORMAT.name, options.agent, trace), agent, reference=options.reference, **fields)
    yield replace(run, model=options.model or run.model, tools=run.tools or options.tools)


def _traces(payload: bytes, content_type: str, signal: Signal) -> Iterator[tuple[str, list[Span] | BrokenRecord]]:
    """The request's spans by trace; broken ones stand for their whole trace."""
    kind = content_type.partition(";")[0].strip().lower()
    try:
        if "json" in kind:
            document = wire.json_text(payload)
        elif "protobuf" in kind or kind == "application/octet-stream":
            document = wire.from_protobuf(payload, signal)
        else:
            raise ValueError(f"the content type {kind or 'is missing'!r} is neither JSON nor protobuf")
        found, broken = _by_trace(wire.read_json(document))
    except ValueError as error:
        fix = "Send OTLP/HTTP as application/json or application/x-protobuf to /v1/traces or /v1/logs."
        raise TraceError(f"not an OTLP request: {error}", where="the request's body", fix=fix) from error
    for item in broken:
        name = f"trace {item.trace}, {item.position}" if item.trace else item.position
        yield item.trace or "", BrokenRecord("the request", name, item.reason)
    yield from found.items()


def _by_trace(items: Iterator[Span | BrokenSpan]) -> tuple[dict[str, list[Span]], list[BrokenSpan]]:
    """Spans of the traces that can be read whole, and what can't be."""
    found: dict[str, list[Span]] = {}
    broken: list[BrokenSpan] = []
    for item in items:
        if isinstance(item, BrokenSpan):
            broken.append(item)
        else:
            found.setdefault(item.trace, []).append(item)
    for item in broken:
        found.pop(item.trace or "", None)
    return found, broken


def split(source: Source) -> Iterator[Raw]:
    """The traces of a file. Raises ValueError if it is no OTLP, or says nothing of models."""
    items: list[Span | BrokenSpan] = []
    broken_lines: list[Raw] = []
    for where, document in _documents(source.data):
        if isinstance(document, ValueError):
            broken_lines.append(Raw(where, document))
            continue
        try:
            items += wire.read_json(document, f"{where}, " if where else "")
        except ValueError as error:
            if not where:
                raise
            broken_lines.append(Raw(where, error))
    found, broken = _by_trace(iter(items))
    yield from broken_lines
    for item in broken:
        yield Raw(f"trace {item.trace}, {item.position}" if item.trace else item.position, ValueError(item.reason))
    spoken = {trace: spans for trace, spans in found.items() if any(map(is_about_models, spans))}
    if not (spoken or broken or broken_lines):
        raise ValueError("no span in it is about a model (gen_ai.*, llm.*, openinference.*, traceloop.*)")
    for trace, spans in spoken.items():
        yield Raw(f"trace {trace}", spans, name=trace)


def build(raw: Raw, _file: str) -> dict[str, Any]:
    """The fields of one trace's run."""
    found = parts.run_of(parts.part(raw.name or "", raw.value), complete=True)
    if not found["messages"]:
        raise ValueError(_NO_CONTENT)
    return found


def _documents(data: bytes) -> Iterator[tuple[str, Any]]:
    """The requests in a file, with the line or number of each where there are several."""
    if not data.strip():
        raise ValueError("the file is empty")
    if not wire.is_json(data):
        for index, message in enumerate(wire.protobuf_messages(data)):
            yield f"message {index}", wire.from_protobuf(message)
        return
    lines = [(number, line) for number, line in enumerate(data.split(b"\n"), 1) if line.strip()]
    if len(lines) < 2 or not _is_request(lines[0][1]):
        document = wire.json_text(data)
        listed = isinstance(document, list) and document
        yield from ((f"[{i}]", item) for i, item in enumerate(document)) if listed else iter([("", document)])
        return
    for number, line in lines:
        try:
            yield f"line {number}", wire.json_text(line)
        except ValueError as error:
            yield f"line {number}", ValueError(f"not JSON: {error}")


def _is_request(line: bytes) -> bool:
    try:
        return isinstance(wire.json_text(line), Mapping)
    except ValueError:
        return False


FORMAT = Format("otlp", "OpenTelemetry traces (OTLP as JSON, JSON lines or protobuf)", split, build, save=store.save)
