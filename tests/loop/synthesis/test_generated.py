"""A model writes environments, at first badly: each fault is named by its check and goes back, until one is good."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import structlog
from sqlmodel import select
from typer.testing import CliRunner

from harness import admission
from harness.admission import Thresholds
from harness.sandbox.host import Limits, containment
from loop.analysis.analyst import LiteLLMClient
from loop.analysis.detectors import find
from loop.commands.app import app
from loop.commands.logs import to_stderr
from loop.synthesis.generated import brief_of, work
from loop.synthesis.generated.module import code_in
from storage import tables
from storage.database import Database, open_database
from storage.errors import TraceError
from storage.trajectories import save
from tests.loop.synthesis import toy
from tests.loop.synthesis.written import FAULTY, GOOD

FEW = Thresholds(seeds=10, distinct_seeds=24, faults=2)
QUICK = Limits(seconds=2, load_seconds=4)
KEY = "lookup_before_change"
pytestmark = pytest.mark.skipif(not containment().enforced, reason=f"no sandbox here: {containment().missing}")


class Provider:
    """An OpenAI-compatible server on loopback that answers with ``answers`` in turn; None is a refused request."""

    def __init__(self, answers: Sequence[str | None]) -> None:
        self.answers = list(answers)
        self.requests: list[str] = []
        self.url = ""

    def reply(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.requests.append("\n".join(m["content"] for m in body["messages"]))
        answer = self.answers.pop(0)
        if answer is None:
            return 400, {"error": {"message": "out of credit", "type": "invalid_request_error"}}
        fenced = f"Here it is.\n```python\n{answer}\n```" if "def " in answer else answer
        choice = {"index": 0, "message": {"role": "assistant", "content": fenced}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        return 200, {
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": "m",
            "choices": [choice],
            "usage": usage,
        }


@contextmanager
def provider(*answers: str | None) -> Iterator[Provider]:
    scripted = Provider(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status, body = scripted.reply(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    scripted.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield scripted
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with open_database(home=tmp_path) as opened:
        save(opened, toy.runs(toy.library_renewal, 8) + toy.runs(toy.library_failure, 3), "test")
        yield opened


def write(db: Database, home: Path, scripted: Provider, key: str = KEY, **options: Any) -> work.Outcome:
    client = LiteLLMClient("openai/local", api_base=scripted.url, as_json=False, max_tokens=4000)
    target = work.wanted(db, "library", key)
    return work.write_environment(db, "library", target, client, home, thresholds=FEW, limits=QUICK, **options)


def rows(db: Database) -> list[tables.Environment]:
    with db.session() as session:
        query = select(tables.Environment).where(tables.Environment.kind == "generated")
        return sorted(session.exec(query), key=lambda row: row.evidence["round"])


def test_each_fault_is_named_by_its_check_and_goes_back_until_one_is_admitted(db: Database, tmp_path: Path):
    heard: list[list[str]] = []
    with provider(*(answer for answer, _ in FAULTY.values()), GOOD) as scripted:
        made = write(
            db, tmp_path, scripted, rounds=len(FAULTY) + 1, on_round=lambda attempt: heard.append(attempt.failed)
        )
    assert made.attempt.report.admitted, made.attempt.report.lines()
    for (fault, (answer, check)), failed, following in zip(FAULTY.items(), heard, scripted.requests[1:], strict=False):
        assert check in failed, (fault, failed)
        assert f"- {check}: measured" in following, fault
        assert all(f"- {name}: measured" in following for name in failed)
        assert (answer.strip() in following) == (check != "answer"), fault
    kept = rows(db)
    assert [row.state for row in kept] == ["rejected"] * len(FAULTY) + ["admitted"]
    assert kept[-1].id == made.id
    with db.session() as session:
        for row, failed in zip(kept, heard, strict=True):
            query = select(tables.AdmissionCheck).where(tables.AdmissionCheck.environment == row.id)
            assert sorted(c.name for c in session.exec(query) if not c.passed) == sorted(failed)
    names = {c.name for c in made.attempt.report.checks}
    assert {"loads", "system_prompt", "deterministic", "lapse", "agreement", "unspoiled", "runs"} <= names
    first = scripted.requests[0]
    assert json.dumps(toy.LIBRARY_TOOLS[0]) in first
    assert toy.Library.system in first
    assert '{"error": "unknown card"}' in first
    assert "cannot be renewed" in first


def test_rounds_end_and_the_next_call_begins_anew(db: Database, tmp_path: Path):
    bad, check = FAULTY["unsolvable"]
    with provider(bad, bad, bad) as scripted:
        made = write(db, tmp_path, scripted, rounds=2)
        assert not made.attempt.report.admitted
        assert check in made.attempt.failed
        assert len(scripted.requests) == 2
        write(db, tmp_path, scripted, rounds=1)
        assert len(scripted.requests) == 3, "a finished series is not answered from what is remembered"
    assert [(row.evidence["generation"], row.evidence["round"]) for row in rows(db)] == [(1, 1), (2, 1), (1, 2)]
    assert len({row.evidence["file"] for row in rows(db)}) == 3


def test_interrupted_rounds_go_on_where_they_were(db: Database, tmp_path: Path):
    with provider(FAULTY["wrong schema"][0], None, GOOD) as scripted:
        with pytest.raises(TraceError, match="out of credit"):
            write(db, tmp_path, scripted, rounds=3)
        assert [row.state for row in rows(db)] == ["rejected"]
        made = write(db, tmp_path, scripted, rounds=3)
    assert made.attempt.report.admitted, made.attempt.report.lines()
    assert made.attempt.number == 2
    assert "- interface: measured" in scripted.requests[2]
    assert [row.state for row in rows(db)] == ["rejected", "admitted"]


def _card(run: Any) -> str:
    return str(next(step.call.arguments["card"] for step in run.steps()))


def test_gate_and_report_tasks_are_neither_shown_nor_posed(db: Database, tmp_path: Path):
    measured, similar = toy.library_renewal(0), toy.library_renewal(1)
    with db.transaction() as session:
        session.add(tables.Evaluation(id="e", arm="base", split="gate"))
        session.flush()
        session.add(tables.EvaluationEpisode(evaluation="e", task="t", trajectory=measured.id, success=True))
    asked = next(m.content for m in similar.messages if m.role == "user")
    with provider(GOOD) as scripted:
        made = write(db, tmp_path, scripted, rounds=1, held_out=[asked])
    assert _card(measured) not in scripted.requests[0]
    assert _card(similar) not in scripted.requests[0]
    assert _card(toy.library_renewal(2)) in scripted.requests[0]
    assert "held_out_near" in {c.name for c in made.attempt.report.checks}


def test_a_capability_that_a_model_found_is_shown_by_its_labels_and_has_no_lapse(db: Database, tmp_path: Path):
    with db.transaction() as session:
        session.add(tables.Capability(id="c", agent="library", name="Keeping track", description="…", source="llm"))
        session.add(tables.Analysis(id="a", agent="library"))
        session.flush()
        for number in range(3):
            for id, value in (("renew-2", "PRESENT"), ("fail-0", "LACKING"), ("renew-5", "NA")):
                row = {"analysis": "a", "capability": "c", "trajectory": id, "pass_number": number}
                session.add(tables.Label(**row, value=value if number else "NA"))
    with provider(GOOD) as scripted:
        made = write(db, tmp_path, scripted, "Keeping track", rounds=1)
    shown = scripted.requests[0].partition("needed and shown")[2]
    assert _card(toy.library_renewal(2)) in shown
    assert _card(toy.library_renewal(5)) not in shown
    assert made.attempt.report.admitted
    assert "lapse" not in {c.name for c in made.attempt.report.checks}


def test_evidence_that_is_too_thin_is_said_before_anything_is_asked():
    runs = toy.runs(toy.library_renewal, 3)
    with pytest.raises(TraceError, match="no usable run of library has a label"):
        brief_of(runs, {}, "Telepathy", "…")
    with pytest.raises(TraceError, match="no tool schemas"):
        brief_of(runs, {runs[0].id: "PRESENT"}, "Telepathy", "…", tools=[])
    with pytest.raises(TraceError, match="no run"):
        brief_of([], {}, "Telepathy", "…")


def test_code_is_found_among_words():
    assert code_in("Sure.\n```python\ndef make(): ...\n```\nDone.") == "def make(): ...\n"
    assert code_in("```\ndef make(): ...") == "def make(): ...\n"
    assert code_in("def make(): ...") == "def make(): ...\n"
    assert code_in("```python\nx = 1\n```\nNo more.") is None


def run(*arguments: object, typed: str | None = None) -> Any:
    return CliRunner().invoke(app, ["environments", *(str(a) for a in arguments)], input=typed)


@pytest.fixture
def commands(tmp_path: Path, db: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRACE_HOME", str(tmp_path))
    monkeypatch.delenv("TRACE_DATABASE_URL", raising=False)
    monkeypatch.setattr(admission, "Thresholds", lambda: FEW)
    to_stderr()
    yield
    structlog.reset_defaults()


@pytest.mark.usefixtures("commands")
def test_the_command_writes_admits_lists_shows_and_plays(tmp_path: Path):
    out = tmp_path / "mine.py"
    options = ("synthesize", "--agent", "library", "--capability", KEY, "--generated", "--model", "openai/local")
    with provider(FAULTY["unsolvable"][0], GOOD) as scripted:
        made = run(*options, "--api-base", scripted.url, "--out", out)
    assert made.exit_code == 0, made.output
    assert "round 1 of 5: not admitted: reference" in made.stdout
    assert "round 2 of 5: admitted" in made.stdout
    assert GOOD.strip() in out.read_text()
    listed = json.loads(run("list", "--json").stdout)["environments"]
    assert [(row["kind"], row["state"]) for row in listed] == [("generated", "admitted"), ("generated", "rejected")]
    id = listed[0]["id"]
    assert "written by openai/local, round 2 of 5" in run("show", id).stdout
    again = run("admit", id, "--agent", "library", "--json")
    assert json.loads(again.stdout)["admitted"] is True, again.output
    assert "not solved" in run("play", id, "--seed", 3, typed="no idea\n").stdout


@pytest.mark.usefixtures("commands")
def test_the_command_ends_with_status_1_when_nothing_is_admitted():
    options = ("synthesize", "--agent", "library", "--capability", KEY, "--generated", "--model", "openai/local")
    with provider(FAULTY["no code"][0]) as scripted:
        made = run(*options, "--api-base", scripted.url, "--rounds", 1, "--json")
    assert made.exit_code == 1
    assert json.loads(made.stdout)["admitted"] is False


@pytest.mark.usefixtures("commands")
def test_wrong_use_and_a_missing_key_are_clear_errors(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    base = ("synthesize", "--agent", "library")
    assert run(*base, "--generated").exit_code == 2
    assert run(*base, "--model", "gpt-4o-mini").exit_code == 2
    assert run(*base, "--generated", "--model", "gpt-4o-mini").exit_code == 2
    full = (*base, "--generated", "--model", "gpt-4o-mini", "--capability")
    missing = run(*full, KEY)
    assert isinstance(missing.exception, TraceError)
    assert "OPENAI_API_KEY" in str(missing.exception)
    unknown = run(*full, "telepathy")
    assert isinstance(unknown.exception, TraceError)
    assert "no capability" in str(unknown.exception)


def test_the_detector_tells_examples_apart(db: Database):
    detector = find(KEY)
    assert detector is not None
    runs = toy.runs(toy.library_renewal, 3) + toy.runs(toy.library_failure, 3)
    labels = {r.id: detector.label(r).value for r in runs}
    brief = brief_of(runs, labels, detector.name, detector.description)
    assert brief.present
    assert brief.lacking
    assert all("renew_loan" in text for text in brief.present)
    assert "L1" in brief.lacking[0]
