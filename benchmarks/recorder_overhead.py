"""What the recorder costs the agent, beside OpenTelemetry's SDK, Langfuse and MLflow, in one run on one machine.

    .venv/bin/python benchmarks/recorder_overhead.py [--quick]

Every recorder decorates the same two functions that do nothing: one takes a short question, one a conversation
of 16 KB. Calls are made in rounds; the time of a round is the time the caller waits, less that of the bare
function, and what is queued after a round is flushed outside of it, so that each round starts alike and nothing
is dropped. Recorders take turns, round by round. The figure is the median over the rounds, in microseconds a
call. `*_sustained_us` includes the writing: calls and flush together. A recorder that is not installed is left
out, and its figure with it.

`chunk_us`: what the tee adds to a chunk of a streamed reply. `rss_growth`: resident memory after 200,000 runs of
16 KB against that after 20,000, minus one.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trace_sdk as trace
from trace_sdk._recorder import recorder

QUESTION = "Where is my order 1234?"
CONVERSATION = [{"role": "user" if n % 2 == 0 else "assistant", "content": f"{n} " + "word " * 270} for n in range(12)]
TARGETS: dict[str, list[Any]] = {
    "small_us": ["<=", 10.0],
    "large_us": ["<=", 60.0],
    "langfuse_ratio": [">=", 10.0],
    "chunk_us": ["<=", 5.0],
    "rss_growth": ["<=", 0.10],
    "dropped": ["<=", 0],
}


def bare(payload: Any) -> Any:
    return payload


class Contestant:
    def __init__(self, name: str, decorated: Callable[[Any], Any], flush: Callable[[], object]) -> None:
        self.name = name
        self.decorated = decorated
        self.flush = flush
        self.rounds: dict[str, list[float]] = {}
        self.sustained: dict[str, list[float]] = {}

    def round(self, size: str, payload: Any, calls: int) -> None:
        plain = _time(bare, payload, calls)
        started = time.perf_counter()
        took = _time(self.decorated, payload, calls)
        self.flush()
        whole = time.perf_counter() - started
        self.rounds.setdefault(size, []).append((took - plain) / calls * 1e6)
        self.sustained.setdefault(size, []).append((whole - plain) / calls * 1e6)

    def median(self, size: str) -> float:
        return statistics.median(self.rounds[size])


def _time(function: Callable[[Any], Any], payload: Any, calls: int) -> float:
    started = time.perf_counter()
    for _ in range(calls):
        function(payload)
    return time.perf_counter() - started


def ours() -> Contestant:
    return Contestant("trace", trace.agent(name="noop")(bare), lambda: trace.flush(30))


def opentelemetry(folder: Path) -> Contestant | None:
    """A span a call with input and output as attributes, batched and exported to a file, as JSON."""
    try:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
    except ImportError:
        return None
    out = (folder / "otel.jsonl").open("w")
    provider = TracerProvider()
    exporter = ConsoleSpanExporter(out=out, formatter=lambda span: span.to_json(indent=None) + "\n")
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=100_000))
    tracer = provider.get_tracer("benchmark")

    def decorated(payload: Any) -> Any:
        with tracer.start_as_current_span("noop") as span:
            span.set_attribute("input", json.dumps(payload))
            result = bare(payload)
            span.set_attribute("output", json.dumps(result))
            return result

    return Contestant("otel", decorated, provider.force_flush)


def langfuse() -> Contestant | None:
    try:
        from langfuse import Langfuse, observe  # type: ignore[import-not-found]
        from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    except ImportError:
        return None

    class Nowhere(SpanExporter):
        """Its own path up to the network, and no network."""

        def export(self, spans: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    client = Langfuse(public_key="pk", secret_key="sk", host="http://127.0.0.1:9", span_exporter=Nowhere())
    return Contestant("langfuse", observe(name="noop")(bare), client.flush)


def mlflow(folder: Path) -> Contestant | None:
    try:
        import mlflow as library  # type: ignore[import-not-found]
    except ImportError:
        return None
    os.environ["MLFLOW_ENABLE_ASYNC_TRACE_LOGGING"] = "true"
    library.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    return Contestant("mlflow", library.trace(name="noop")(bare), library.flush_trace_async_logging)


def chunk_cost(chunks: int) -> float:
    """Microseconds that the tee adds to one chunk, from the same stream read with and without it."""
    import httpx

    class Chunks(httpx.SyncByteStream):
        def __iter__(self) -> Any:
            piece = b'data: {"choices": [{"delta": {"content": "word"}}]}\n\n'
            for _ in range(chunks):
                yield piece

    class Scripted(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Chunks())

    def read() -> float:
        with httpx.Client(transport=Scripted()) as client:
            body = {"model": "m", "messages": []}
            with client.stream("POST", "http://server/v1/chat/completions", json=body) as response:
                started = time.perf_counter()
                for _ in response.iter_raw():
                    pass
                return time.perf_counter() - started

    recorded = trace.agent(name="streams")(read)
    added: list[float] = []
    for _ in range(15):
        plain = read()
        added.append((recorded() - plain) / chunks * 1e6)
        trace.flush(30)
    return statistics.median(added)


def resident_mb() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def memory_growth(home: Path, early: int, late: int) -> tuple[float, int]:
    """Growth of resident memory from run ``early`` to run ``late``, and how many runs are missing in the spool."""
    noop = trace.agent(name="memory")(bare)
    at_early = 0.0
    for number in range(1, late + 1):
        noop(CONVERSATION)
        if number % 100 == 0:
            trace.flush(30)
            # The disk is not what is measured, and 200,000 runs of 16 KB twice are six gigabytes.
            _forget_full_segments(home)
        if number == early:
            at_early = resident_mb()
    trace.flush(30)
    return resident_mb() / at_early - 1.0, recorder.dropped


def _forget_full_segments(home: Path) -> None:
    for segment in sorted((home / "spool").glob("*.jsonl"))[:-1]:
        segment.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under a minute, smaller")
    parser.add_argument("--memory", nargs=3, metavar=("HOME", "EARLY", "LATE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        home, early, late = Path(options.memory[0]), int(options.memory[1]), int(options.memory[2])
        trace.init(home=home)
        print(json.dumps(memory_growth(home, early, late)))
        return 0
    quick = options.quick
    rounds, calls = (61, 100) if quick else (301, 200)
    early, late = (2_000, 8_000) if quick else (20_000, 200_000)

    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        trace.init(home=home)
        found = [ours(), opentelemetry(Path(folder)), langfuse(), mlflow(Path(folder))]
        contestants = [contestant for contestant in found if contestant is not None]
        for size, payload, share in (("small", QUESTION, 1), ("large", CONVERSATION, 2)):
            for number in range(rounds + 2):
                for contestant in contestants:
                    contestant.round(size, payload, calls // share)
                    if number < 2:  # the first rounds import and open things
                        contestant.rounds[size].clear()
                        contestant.sustained[size].clear()
        figures: dict[str, float] = {}
        for contestant in contestants:
            prefix = "" if contestant.name == "trace" else f"{contestant.name}_"
            for size in ("small", "large"):
                figures[f"{prefix}{size}_us"] = round(contestant.median(size), 2)
                figures[f"{prefix}{size}_sustained_us"] = round(statistics.median(contestant.sustained[size]), 2)
            if prefix:
                figures[f"{contestant.name}_ratio"] = round(
                    contestant.median("small") / contestants[0].median("small"), 1
                )
        figures["chunk_us"] = round(chunk_cost(2000 if quick else 10_000), 2)
        # In a process of its own: the other recorders' memory would hide ours, or be taken for it.
        command = [sys.executable, __file__, "--memory", str(home), str(early), str(late)]
        measured = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        figures["rss_growth"], figures["dropped"] = round(measured[0], 4), measured[1]

    targets = {name: target for name, target in TARGETS.items() if name in figures}
    for name in TARGETS.keys() - figures.keys():
        print(f"{name}: not measured, its recorder is not installed", file=sys.stderr)
    for name, value in figures.items():
        wanted = f"   (target {targets[name][0]} {targets[name][1]})" if name in targets else ""
        print(f"{name:26} {value:10}{wanted}")
    met = all(figures[n] <= t if how == "<=" else figures[n] >= t for n, (how, t) in targets.items())
    print(json.dumps({"benchmark": "recorder_overhead", "figures": figures, "targets": targets, "met": met}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
