"""`trace-sdk train` and `adapters`: what was trained is a row with its history, and wrong input is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from loop.commands.adapters import app as adapters_app
from loop.commands.train import train
from loop.training import grpo
from loop.training.single import SingleSettings, reference_dialogues, train_single
from loop.training.steps import GRPOSettings
from storage import tables
from storage.database import open_database
from storage.errors import TraceError
from tests.harness.desk import LoanDesk
from tests.harness.toy import CoinEnvironment
from tests.loop.test_grpo import FakeServer, fake_collect


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRACE_HOME", str(tmp_path))
    monkeypatch.delenv("TRACE_DATABASE_URL", raising=False)
    return tmp_path


@pytest.fixture
def environment(home: Path) -> tables.Environment:
    with open_database(home=home) as db, db.transaction() as session:
        session.add(tables.Agent(name="desk"))
        session.flush()
        row = tables.Environment(name="Looks before it leaps", agent="desk", spec={}, state="draft")
        session.add(row)
    return row


def run(*arguments: str) -> Result:
    return CliRunner().invoke(adapters_app, arguments)


def show(name: str) -> dict[str, Any]:
    done = run("show", name, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_an_empty_home_lists_no_adapters(home: Path) -> None:
    assert json.loads(run("list", "--json").stdout) == {"adapters": []}
    assert "no adapters" in run("list").stdout


def test_history_and_lineage_are_shown(home: Path, environment: tables.Environment) -> None:
    with open_database(home=home) as db, db.transaction() as session:
        common = {"path": "p", "base": "b", "environment": environment.id}
        session.add(tables.Adapter(id="W", name="look-warm", version=1, sha256="aa", **common))
        for version, sha in ((1, "bb"), (2, "cc")):
            row = tables.Adapter(
                id=f"A{version}", name="look", version=version, sha256=sha, parent_sha256="aa", **common
            )
            session.add(row)
        session.flush()
        session.add(tables.TrainingRun(id="R", kind="grpo", adapter="A2", environment=environment.id))
        session.flush()
        session.add(tables.TrainingStep(run="R", step=1, reward=0.25, seconds=3.0, metrics={"success": 0.125}))
        session.add(tables.GateDecision(adapter="A2", verdict="hold", reason="too few tasks"))
    assert {row["id"] for row in json.loads(run("list", "--json").stdout)["adapters"]} == {"W", "A1", "A2"}
    assert json.loads(run("list", "--state", "active", "--json").stdout) == {"adapters": []}
    found = show("look")
    assert found["adapter"] == "look@2"
    assert found["lineage"] == [{"adapter": "look-warm@1", "sha256": "aa"}]
    assert found["training"][0]["steps"][0]["success"] == 0.125
    assert found["decisions"][0]["verdict"] == "hold"
    assert show("look@1")["id"] == show("A1")["id"] == "A1"
    assert "too few tasks" in run("show", "look@2").stdout
    with pytest.raises(TraceError, match="no adapter is called"):
        CliRunner().invoke(adapters_app, ["show", "nobody"], catch_exceptions=False)


def test_training_needs_an_admitted_environment_and_a_model(home: Path, environment: tables.Environment) -> None:
    import typer

    app = typer.Typer()
    app.command()(train)

    def call(*arguments: str) -> None:
        CliRunner().invoke(app, ["--model", str(home / "no-model"), *arguments], catch_exceptions=False)

    with pytest.raises(TraceError, match="no environment is called 'nothing'"):
        call("--environment", "nothing")
    with pytest.raises(TraceError, match="is draft, not admitted"):
        call("--environment", environment.id)


def test_only_solved_reference_solutions_become_dialogues() -> None:
    dialogues = reference_dialogues(LoanDesk, range(4))
    assert len(dialogues) == 4
    assert all(d.messages[-1]["role"] == "assistant" for d in dialogues)
    assert reference_dialogues(CoinEnvironment, range(4)) == []


@pytest.mark.heavy
def test_an_interrupted_training_is_gone_on_with_and_becomes_one_adapter(
    home: Path, environment: tables.Environment, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def dies_once(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return fake_collect(*args)

    monkeypatch.setattr(grpo, "collect", dies_once)
    small = GRPOSettings(steps=2, groups_per_step=2, group_size=4, learning_rate=1e-2, rank=4, threads=1)
    settings = SingleSettings(warm_start=2, warm_steps=1, warm_batch=2, grpo=small)
    said: list[str] = []
    steps: list[int] = []

    def once() -> tables.Adapter:
        return train_single(
            db,
            home,
            FakeServer(),
            tiny_model,
            environment,
            LoanDesk,
            settings,
            say=said.append,
            on_step=lambda step: steps.append(step.step),
        )

    with open_database(home=home) as db:
        with pytest.raises(KeyboardInterrupt):
            once()
        adapter = once()
    assert steps == [1, 2]
    assert len(said) == 1  # one warm start
    found = show(adapter.id)
    assert found["adapter"] == "looks-before-it-leaps@1"
    assert found["state"] == "candidate"
    assert [ancestor["adapter"] for ancestor in found["lineage"]] == ["looks-before-it-leaps-warm@1"]
    assert [step["step"] for step in found["training"][0]["steps"]] == [1, 2]
    assert found["training"][0]["state"] == "done"
    assert found["sha256"] != found["parent_sha256"]
