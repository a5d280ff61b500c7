"""A thousand broken files for each importer: never a traceback, never half a run."""

from __future__ import annotations

import base64
import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest

from storage import trajectories
from storage.database import open_database
from storage.importers import FORMATS, otlp
from storage.importers.contract import BrokenRecord, Options, Source, read
from storage.importers.otlp import parts
from storage.trajectory import Trajectory
from tests.storage.importers.fuzz import fuzz, mutate, scratch
from tests.storage.importers.samples import SAMPLES

_RECORDS: dict[str, Any] = {
    "openai": lambda document: document,
    "tau-bench": lambda document: document,
    "mint": lambda document: document,
    "intercode": lambda document: list(document.values()),
    "tau2": lambda document: document["simulations"],
    "langfuse": lambda document: document,
}
"""Where the records of a file that has several stand."""


@pytest.mark.parametrize("name", list(FORMATS))
def test_no_mutation_of_a_file_breaks_its_importer(name: str, tmp_path: Path) -> None:
    runs, seen = fuzz(name, 1000)
    assert seen["runs"]
    assert seen["broken"] + seen["refused"]
    # What was read can also be stored, and comes back whole.
    kept = list({t.id: t for t in runs}.values())[:400]
    with open_database(home=tmp_path) as db:
        assert trajectories.save(db, kept, "import").added == len(kept)
        stored = {t.id: t for t in trajectories.load(db)}
    for run in kept:
        assert stored[run.id].messages == run.messages
        assert stored[run.id].success == run.success


@pytest.mark.parametrize("name", list(_RECORDS))
def test_a_broken_record_leaves_the_others_as_they_were(name: str) -> None:
    sample, chance = SAMPLES[name], random.Random(f"one of {name}")
    good = [r for r in read(FORMATS[name], Source(sample.file, sample.data), Options()) if isinstance(r, Trajectory)]
    missing = 0
    for _ in range(100):
        document = json.loads(json.dumps(sample.document))
        hit = chance.randrange(sample.runs)
        record = _RECORDS[name](document)[hit]
        mutate(record, chance)
        data = b"\n".join(json.dumps(x).encode() for x in document) if sample.lines else json.dumps(document).encode()
        found = list(read(FORMATS[name], Source(sample.file, data), Options()))
        runs = {r.id: r for r in found if isinstance(r, Trajectory)}
        assert [runs.get(t.id) for i, t in enumerate(good) if i != hit] == [t for i, t in enumerate(good) if i != hit]
        assert len(found) == len(good)
        missing += sum(isinstance(r, BrokenRecord) for r in found)
    assert missing


def test_no_mutation_of_a_protobuf_request_breaks_its_importer() -> None:
    data = protobuf()
    chance = random.Random("protobuf")
    seen = {Trajectory: 0, BrokenRecord: 0, otlp.TraceError: 0}
    for _ in range(500):
        changed = scratch(scratch(data, chance), chance)
        try:
            for record in otlp.records(changed, "application/x-protobuf"):
                seen[type(record)] += 1
        except otlp.TraceError:
            seen[otlp.TraceError] += 1
    assert all(seen.values()), seen


def protobuf() -> bytes:
    """The sample of OTLP in protobuf."""
    trace_service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    json_format = pytest.importorskip("google.protobuf.json_format")
    document = copy.deepcopy(SAMPLES["otlp"].document)
    # Protobuf's own JSON has ids in base64, OTLP's in hexadecimal.
    for span in document["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        for key in ("traceId", "spanId", "parentSpanId"):
            if key in span:
                span[key] = base64.b64encode(bytes.fromhex(span[key])).decode()
    return json_format.ParseDict(document, trace_service.ExportTraceServiceRequest()).SerializeToString()


def test_stored_state_of_somebody_else_is_no_part() -> None:
    for state in ({}, {"trace": 1}, {"trace": "t", "main": []}, {"trace": "t", "tool_runs": [{}]}, []):
        run = Trajectory("x", "a", (), metadata={"otlp": state})
        part = parts.from_run(run)
        assert part is None or part.trace
