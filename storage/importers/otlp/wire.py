"""OTLP as it travels, JSON or protobuf, as plain spans.

Read are `ExportTraceServiceRequest` (= `TracesData`) and, for instrumentation that keeps messages in events of the
logs signal, `ExportLogsServiceRequest`, as of opentelemetry-proto 1.x: in OTLP's JSON encoding (ids in hexadecimal,
64-bit numbers as text, enumerations as numbers; names of enumerations, base64 ids and snake_case names, which
protobuf's own JSON printers write, are understood too), one document or one a line, and in protobuf, one message or
messages that each follow their length in four big-endian bytes, as the collector's file exporter writes them.
Looked up in the OTLP specification (opentelemetry.io: "JSON Protobuf Encoding", "OpenTelemetry Protocol File
Exporter"), in the descriptors of the package opentelemetry-proto and in the collector's file exporter.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from storage import codec
from storage.errors import TraceError
from storage.importers import fields

Signal = Literal["traces", "logs"]

_HEX = re.compile(r"[0-9a-fA-F]+")
_REMOTE_PARENT = 0x200
_KEYS: Mapping[Signal, tuple[str, str, str]] = {
    "traces": ("resourceSpans", "scopeSpans", "spans"),
    "logs": ("resourceLogs", "scopeLogs", "logRecords"),
}


@dataclass(frozen=True, slots=True)
class Happened:
    """An event of a span: its name, and what it says."""

    name: str
    attributes: Mapping[str, Any]
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Span:
    """One span, or what a log record adds to one (``logged``). Times are seconds since the epoch, 0.0 if unknown."""

    trace: str
    id: str
    parent: str | None
    name: str
    attributes: Mapping[str, Any]
    resource: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[Happened, ...] = ()
    started: float = 0.0
    ended: float = 0.0
    failed: bool = False
    message: str = ""
    remote_parent: bool = False
    logged: bool = False

    @property
    def is_root(self) -> bool:
        """Whether the run begins here: nothing above it, or only another process."""
        return not self.logged and (self.parent is None or self.remote_parent)


@dataclass(frozen=True, slots=True)
class BrokenSpan:
    """A span that can't be read. ``trace`` is the trace it belongs to, where that much is known."""

    position: str
    reason: str
    trace: str | None = None


def read_json(document: object, where: str = "") -> Iterator[Span | BrokenSpan]:
    """Spans of one request. Raises ValueError if it is no OTLP request at all."""
    request = fields.mapping(document, "the request")
    found = False
    for signal, (outer, middle, inner) in _KEYS.items():
        resources = _get(request, outer)
        if resources is None:
            continue
        found = True
        for i, resource in enumerate(fields.items(resources, outer)):
            resource = fields.mapping(resource, f"{outer}[{i}]")
            about = _attributes(_get(_optional(resource, "resource"), "attributes"))
            for j, scope in enumerate(fields.items(_get(resource, middle) or [], f"{outer}[{i}].{middle}")):
                scope = fields.mapping(scope, f"{outer}[{i}].{middle}[{j}]")
                for k, item in enumerate(fields.items(_get(scope, inner) or [], f"{outer}[{i}].{middle}[{j}].{inner}")):
                    yield from _one(signal, item, f"{where}{outer}[{i}].{middle}[{j}].{inner}[{k}]", about)
    if not found:
        raise ValueError("neither resourceSpans nor resourceLogs is there")


def from_protobuf(data: bytes, signal: Signal = "traces") -> Any:
    """The JSON form of one request in protobuf. Raises ValueError if it is none, TraceError without the package."""
    try:
        from google.protobuf.json_format import Error, MessageToDict
        from google.protobuf.message import DecodeError
        from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    except ImportError as error:
        fix = "pip install 'trace-sdk-worker[otel]' (the package opentelemetry-proto), or send OTLP as JSON."
        raise TraceError(f"OTLP in protobuf cannot be read here: {error}", fix=fix) from error
    request = ExportLogsServiceRequest() if signal == "logs" else ExportTraceServiceRequest()
    try:
        request.ParseFromString(data)
        return {_KEYS[signal][0]: [], **MessageToDict(request, use_integers_for_enums=True)}
    except (DecodeError, Error, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"not OTLP in protobuf: {error}") from None


def protobuf_messages(data: bytes) -> Iterator[bytes]:
    """The messages of a protobuf file: one, or each after its length."""
    # A message's first byte names a field; none has the number 0, and no length here begins with anything else.
    if data[:1] != b"\x00":
        yield data
        return
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4])
        chunk = data[at + 4 : at + 4 + size]
        if at + 4 > len(data) or len(chunk) < size:
            raise ValueError(f"the message at byte {at} is cut off")
        yield chunk
        at += 4 + size


def is_json(data: bytes) -> bool:
    """Whether the bytes begin as JSON does."""
    if data[:1] == b"\n":
        # A line's end is also the first byte of every protobuf request.
        return b'"resource' in data[:400]
    return data.lstrip(b"\xef\xbb\xbf \t\r")[:1] in (b"{", b"[", b"", b"\n") or data[:1].isalnum()


def _one(signal: Signal, item: object, position: str, resource: Mapping[str, Any]) -> Iterator[Span | BrokenSpan]:
    trace = None
    try:
        raw = fields.mapping(item, "it")
        trace = _id(_get(raw, "traceId"), 16)
        if signal == "logs":
            # A log record outside of any trace is nobody's.
            if trace is not None:
                yield _record(raw, trace, resource)
        elif trace is None:
            raise ValueError("traceId is missing")
        else:
            yield _span(raw, trace, resource)
    except ValueError as error:
        yield BrokenSpan(position, str(error), trace)


def _span(raw: Mapping[str, Any], trace: str, resource: Mapping[str, Any]) -> Span:
    id = _id(_get(raw, "spanId"), 8)
    if id is None:
        raise ValueError("spanId is missing")
    status = _optional(raw, "status")
    events = []
    for index, event in enumerate(fields.items(_get(raw, "events") or [], "events")):
        event = fields.mapping(event, f"events[{index}]")
        said = _attributes(_get(event, "attributes"))
        events.append(Happened(str(_get(event, "name") or ""), said, _seconds(_get(event, "timeUnixNano"))))
    return Span(
        trace,
        id,
        _id(_get(raw, "parentSpanId"), 8),
        fields.label(_get(raw, "name")) or "",
        _attributes(_get(raw, "attributes")),
        resource,
        tuple(events),
        _seconds(_get(raw, "startTimeUnixNano")),
        _seconds(_get(raw, "endTimeUnixNano")),
        _get(status, "code") in (2, "2", "STATUS_CODE_ERROR", "ERROR"),
        fields.label(_get(status, "message")) or "",
        bool(_integer(_get(raw, "flags")) & _REMOTE_PARENT),
    )


def _record(raw: Mapping[str, Any], trace: str, resource: Mapping[str, Any]) -> Span:
    said = _attributes(_get(raw, "attributes"))
    body = _value(_get(raw, "body"))
    name = str(_get(raw, "eventName") or said.get("event.name") or "")
    told = {**said, **body} if isinstance(body, dict) else {**said, "content": body}
    at = _seconds(_get(raw, "timeUnixNano")) or _seconds(_get(raw, "observedTimeUnixNano"))
    id = _id(_get(raw, "spanId"), 8) or "none"
    return Span(trace, id, None, "", {}, resource, (Happened(name, told, at),), at, logged=True)


def _attributes(value: object) -> dict[str, Any]:
    if value is None:
        return {}
    if isinstance(value, dict):
        return dict(value)
    found: dict[str, Any] = {}
    for index, pair in enumerate(fields.items(value, "attributes")):
        pair = fields.mapping(pair, f"attributes[{index}]")
        found[fields.text(pair.get("key"), f"attributes[{index}].key")] = _value(pair.get("value"))
    return found


def _value(value: object, depth: int = 0) -> Any:
    """OTLP's AnyValue as a value. Raises ValueError for what is none."""
    if value is None:
        return None
    if depth > 100:
        raise ValueError("a value is nested too deeply")
    raw = fields.mapping(value, "an attribute's value")
    for key in raw:
        held = raw[key]
        match key:
            case "stringValue" | "string_value":
                return fields.text(held, key)
            case "boolValue" | "bool_value":
                return held in (True, "true")
            case "intValue" | "int_value":
                return _integer(held)
            case "doubleValue" | "double_value":
                return _double(held)
            case "arrayValue" | "array_value":
                return [_value(v, depth + 1) for v in fields.items(_get(_mapping_or_empty(held), "values") or [], key)]
            case "kvlistValue" | "kvlist_value":
                pairs = fields.items(_get(_mapping_or_empty(held), "values") or [], key)
                listed = [fields.mapping(pair, key) for pair in pairs]
                return {str(pair.get("key")): _value(pair.get("value"), depth + 1) for pair in listed}
            case "bytesValue" | "bytes_value":
                return held if isinstance(held, str) else None
    return None


def _integer(value: object) -> int:
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str) and len(value) <= 20 and value.lstrip("+-").isdecimal() and value.isascii():
        return int(value)
    if value is None:
        return 0
    raise ValueError(f"{str(value)[:40]!r} is not a whole number")


def _double(value: object) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise ValueError(f"{value[:40]!r} is not a number") from None
    try:
        return fields.number(value, "doubleValue")
    except ValueError:
        if isinstance(value, float):
            return None  # NaN and infinities are no JSON.
        raise


def _seconds(value: object) -> float:
    nanoseconds = _integer(value)
    # Beyond what a date can be, it is no time.
    return nanoseconds / 10**9 if 0 < nanoseconds < 1 << 63 else 0.0


def _id(value: object, size: int) -> str | None:
    """An id in hexadecimal; None where it is missing, empty or all zeros. Raises ValueError for anything else."""
    if value is None or value == "":
        return None
    text = fields.text(value, "an id")
    if len(text) != size * 2 or not _HEX.fullmatch(text):
        try:
            raw = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raw = b""
        if len(raw) != size:
            raise ValueError(f"{text[:40]!r} is not an id of {size} bytes")
        text = raw.hex()
    text = text.lower()
    return None if set(text) == {"0"} else text


def _get(raw: Mapping[str, Any], key: str) -> Any:
    if key in raw:
        return raw[key]
    return raw.get(re.sub(r"[A-Z]", lambda match: f"_{match[0].lower()}", key))


def _optional(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = _get(raw, key)
    return {} if value is None else fields.mapping(value, key)


def _mapping_or_empty(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def json_text(data: bytes) -> Any:
    """The JSON value of a request body. Raises ValueError."""
    if not data.strip():
        raise ValueError("it is empty")
    return codec.strict_loads(data.decode("utf-8-sig"))
