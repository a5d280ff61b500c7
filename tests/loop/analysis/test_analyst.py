"""The LLM analyst against models that tell the truth, err, ramble, answer garbage, or have no key."""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest

from harness.environment import Act
from loop.analysis import history
from loop.analysis.analyst import Analyst, LiteLLMClient, Reply
from loop.analysis.analyst.client import BudgetSpent
from loop.analysis.analyst.transcript import render
from loop.analysis.analyze import analyze, analyze_runs
from loop.analysis.contrast import Thresholds
from loop.analysis.view import View
from storage.database import open_database
from storage.errors import TraceError
from storage.trajectories import save
from storage.trajectory import Message, ToolCall, Trajectory
from tests.loop.analysis.shop import Shop, play
from tests.loop.analysis.test_analyze import florist

NAME = "Asking who the customer is"


class Scripted:
    """A model that proposes one capability and says LACKING where the run cancels without `find_bouquets`."""

    model = "scripted"

    def __init__(self, *, step: object = 0, garbage_until: int = 0, price: float = 0.0, name: str = NAME) -> None:
        self.prompts: list[str] = []
        self.name = name
        self.step = step
        self.garbage_until = garbage_until
        self.price = price

    def worst_cost(self, system: str, user: str) -> float:
        return self.price

    async def complete(self, system: str, user: str) -> Reply:
        self.prompts.append(system + user)
        if len(self.prompts) <= self.garbage_until:
            return Reply("I would rather not say.", 10, 5, self.price)
        if "Propose capabilities" in system:
            rows = [
                {"name": self.name, "description": "Finds the customer before acting.", "hint": "Find the customer."}
            ]
            return Reply("```json\n" + json.dumps({"capabilities": rows}) + "\n```", 10, 5, self.price)
        asked = re.findall(r"^(c\d+) ", user, re.M)
        lacking = "call cancel_bouquet" in user and "call find_bouquets" not in user
        value = "LACKING" if lacking else "PRESENT" if "call find_bouquets" in user else "NA"
        rows = [{"capability": c, "label": value, "step": self.step, "evidence": "x"} for c in asked]
        return Reply(json.dumps({"labels": rows}), 10, 5, self.price)


def views(n: int = 60) -> tuple[list[View], np.ndarray]:
    runs = florist(n)
    return [View.of(run) for run in runs], np.array([bool(run.success) for run in runs])


def test_what_the_analyst_labels_is_contrasted_like_the_rest(tmp_path: Path) -> None:
    report = analyze_runs("florist", florist(), analyst=Analyst(Scripted(), tmp_path))
    found = next(f for f in report.findings if f.candidate.source == "llm")
    assert found.candidate.detector.name == NAME
    assert found.contrast.gap == pytest.approx(1.0)
    assert any("the analyst read" in note for note in report.notes)


def test_passes_stop_when_the_verdict_cannot_change(tmp_path: Path) -> None:
    seen, success = views()
    found = Analyst(Scripted(), tmp_path).candidates(seen, success, Thresholds())
    # Kept in 8 of 8 passes settles "kept in 8 of 10".
    assert found[0].codes.shape[0] == 8


def test_a_citation_that_does_not_exist_voids_the_label_and_is_counted(tmp_path: Path) -> None:
    seen, success = views()
    analyst = Analyst(Scripted(step=99), tmp_path)
    found = analyst.candidates(seen, success, Thresholds.of(passes=1))[0]
    assert not (found.codes == 2).any()
    assert analyst.voided == sum("cancel" in "".join(a.tool for a in v.actions) for v in seen) - sum(
        any(a.tool == "find_bouquets" for a in v.actions) for v in seen
    )


def test_a_malformed_answer_is_mended_and_garbage_is_a_clear_error(tmp_path: Path) -> None:
    seen, success = views(20)
    analyst = Analyst(Scripted(garbage_until=2), tmp_path / "a", concurrency=1)
    assert analyst.candidates(seen, success, Thresholds.of(passes=1))
    assert analyst.malformed == 0
    with pytest.raises(TraceError, match="did not answer"):
        Analyst(Scripted(garbage_until=10**6), tmp_path / "b").candidates(seen, success, Thresholds())


def test_an_interrupted_analysis_goes_on_without_asking_again(tmp_path: Path) -> None:
    seen, success = views(20)
    first = Scripted()
    before = Analyst(first, tmp_path).candidates(seen, success, Thresholds.of(passes=2))
    second = Scripted()
    again = Analyst(second, tmp_path).candidates(seen, success, Thresholds.of(passes=2))
    assert first.prompts
    assert not second.prompts
    assert (again[0].codes == before[0].codes).all()


def test_the_budget_is_never_exceeded_with_many_calls_at_once(tmp_path: Path) -> None:
    seen, success = views(60)
    analyst = Analyst(Scripted(price=0.01), tmp_path, budget=0.25, concurrency=16)
    with pytest.raises(BudgetSpent, match="budget"):
        analyst.candidates(seen, success, Thresholds())
    assert analyst.ledger.spent <= 0.25 + 1e-9
    assert analyst.ledger.calls >= 20


def test_nothing_that_reveals_the_outcome_is_sent(tmp_path: Path) -> None:
    runs = florist(30)
    told = [Trajectory(**{**_fields(r), "score": 0.123456, "metadata": {"reward": "zzz"}}) for r in runs]
    client = Scripted()
    analyze_runs("florist", told, analyst=Analyst(client, tmp_path), thresholds=Thresholds.of(passes=1))
    sent = "\n".join(client.prompts)
    assert "0.123456" not in sent
    assert "zzz" not in sent
    assert not any(run.id in sent for run in told)


def _fields(run: Trajectory) -> dict[str, object]:
    return {name: getattr(run, name) for name in Trajectory.__slots__}


def test_a_long_run_is_shortened_without_losing_calls_errors_and_changes() -> None:
    messages = [Message("system", "rules " * 5000), Message("user", "cancel")]
    for index in range(60):
        tool = "cancel_bouquet" if index % 10 == 0 else "get_bouquet"
        result = "Error: no such bouquet" if index % 7 == 0 else json.dumps({"text": "long " * 800})
        call = ToolCall.parse(f"c{index}", tool, json.dumps({"bouquet_id": f"BQ-{index}"}))
        messages += [Message("assistant", "thinking " * 300, (call,)), Message("tool", result, tool_call_id=call.id)]
    text = render(View.of(Trajectory("r", "a", tuple(messages))), 24_000)
    assert len(text) < 26_000
    for index in range(60):
        assert f"BQ-{index}" in text
    assert text.count("refused: Error: no such bouquet") == 9


def test_history_keeps_every_pass_and_the_next_analysis_labels_it_again(tmp_path: Path) -> None:
    with open_database(home=tmp_path) as db:
        save(db, florist(60), "import:test")
        first = analyze(db, "florist", analyst=Analyst(Scripted(), tmp_path / "a"))
        found = next(f for f in first.findings if f.candidate.source == "llm")
        known = history.proposals(db, "florist")
        save(db, florist(20, seed=3), "import:more")
        assert [p.name for p in known] == [NAME]
        again = analyze(db, "florist", analyst=Analyst(Scripted(), tmp_path / "b", known=known))
        assert next(f for f in again.findings if f.candidate.source == "llm").id == found.id
        assert len(history.show(db, history.find(db, NAME))["history"]) == 2


def test_a_failing_analyst_leaves_nothing_half_written(tmp_path: Path) -> None:
    with open_database(home=tmp_path) as db:
        save(db, florist(30), "import:test")
        with pytest.raises(TraceError):
            analyze(db, "florist", analyst=Analyst(Scripted(garbage_until=10**6), tmp_path / "a"))
        assert history.capabilities(db) == []


def test_a_provider_without_a_key_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(TraceError, match="no key") as raised:
        LiteLLMClient("gpt-4o-mini")
    assert "OPENAI_API_KEY" in raised.value.where


class Provider(HTTPServer):
    """An OpenAI-compatible server on loopback. ``refusals``: what it answers first, as (status, headers)."""

    def __init__(self, *refusals: tuple[int, dict[str, str]]) -> None:
        self.asked: list[dict[str, object]] = []
        self.refusals = list(refusals)
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def __enter__(self) -> Provider:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Provider

    def do_POST(self) -> None:
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        status, headers = self.server.refusals.pop(0) if self.server.refusals else (200, {})
        message = {"role": "assistant", "content": '{"capabilities": []}'}
        body = {
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
        }
        data = json.dumps(body if status == 200 else {"error": {"message": "slow down"}}).encode()
        self.send_response(status)
        for name, value in {**headers, "content-type": "application/json", "content-length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


def ask(provider: Provider, folder: Path) -> Analyst:
    """An analyst that has read one run through LiteLLM."""
    analyst = Analyst(LiteLLMClient("openai/local", api_base=provider.base), folder)
    run = play(Shop(1), [Act(text="Hello.")], success=False)
    assert analyst.candidates([View.of(run)], np.array([False]), Thresholds()) == []
    return analyst


def test_litellm_reaches_a_server_of_ones_own(tmp_path: Path) -> None:
    with Provider() as provider:
        analyst = ask(provider, tmp_path)
    assert len(provider.asked) == 1
    assert analyst.ledger.prompt_tokens == 7


def test_a_rate_limit_is_waited_for_as_long_as_the_provider_says(tmp_path: Path) -> None:
    with Provider(*[(429, {"retry-after": "0"})] * 4) as provider:
        analyst = ask(provider, tmp_path)
    assert len(provider.asked) == 5
    assert analyst.ledger.calls == 1


def test_a_refusal_that_no_retry_mends_is_a_clear_error(tmp_path: Path) -> None:
    with Provider((401, {})) as provider, pytest.raises(TraceError, match="did not answer"):
        ask(provider, tmp_path)
    assert len(provider.asked) == 1


def test_what_is_set_aside_for_a_call_covers_any_script() -> None:
    client = LiteLLMClient("gpt-4o-mini", api_base="http://127.0.0.1:9/v1")
    words = "機場" * 100
    price = client.worst_cost("", "x" * 1000) - client.worst_cost("", "x" * 100)
    assert client.worst_cost("", words) - client.worst_cost("", "") == pytest.approx(price / 900 * len(words.encode()))
