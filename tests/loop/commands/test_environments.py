"""`environments`: synthesized from imported runs, admitted, listed, shown and played; bad input is said clearly."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from typer.testing import CliRunner, Result

from harness import admission
from harness.sandbox.host import containment
from loop.commands.app import app
from loop.commands.logs import to_stderr
from storage.database import open_database
from storage.errors import TraceError
from storage.trajectories import save
from tests.harness import desk
from tests.loop.synthesis import toy

FEW = admission.Thresholds(seeds=10, distinct_seeds=20)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TRACE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TRACE_DATABASE_URL", raising=False)
    monkeypatch.setattr(admission, "Thresholds", lambda: FEW)
    to_stderr()
    with open_database(home=tmp_path / "home") as db:
        save(db, toy.runs(toy.library_renewal, 14) + toy.runs(toy.library_failure, 3), "test")
    yield tmp_path / "home"
    structlog.reset_defaults()


def run(*arguments: object, typed: str | None = None) -> Result:
    return CliRunner().invoke(app, ["environments", *(str(a) for a in arguments)], input=typed)


def document(*arguments: object, exit_code: int = 0) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == exit_code, result.output
    return json.loads(result.stdout)


def test_an_environment_goes_from_runs_to_an_admission_in_the_database(tmp_path: Path):
    out = tmp_path / "spec.json"
    made = document("synthesize", "--agent", "library", "--capability", "lookup_before_change", "--out", out)
    assert made["evidence"]["usable"] is True
    assert [(r["id"], r["state"]) for r in document("list")["environments"]] == [(made["id"], "draft")]

    verdict = document("admit", made["id"], "--agent", "library")
    assert verdict["admitted"] is True, verdict
    assert {"interface", "deterministic", "lapse", "agreement"} <= {c["name"] for c in verdict["checks"]}

    shown = document("show", made["id"])
    assert shown["state"] == "admitted"
    assert len(shown["checks"]) == len(verdict["checks"])
    assert shown["evidence"]["types"]["loan"] > 10
    assert "admitted" in run("list").stdout
    assert "renew_loan" in run("show", made["id"]).stdout

    from_file = document("admit", out, "--agent", "library", "--capability", "lookup_before_change")
    assert from_file["admitted"] is True
    # The same content is the same environment, admitted once more.
    assert from_file["id"] == made["id"]
    assert len(document("list")["environments"]) == 1
    assert {c["attempt"] for c in document("show", made["id"])["checks"]} == {shown["checks"][0]["attempt"] + 1}


def test_thin_evidence_ends_with_status_1_and_says_why():
    result = run("synthesize", "--agent", "library", "--capability", "recovery_after_error")
    assert result.exit_code == 1
    assert "good runs show the capability" in result.stdout
    assert document("list") == {"environments": []}


def test_a_module_is_admitted_in_the_sandbox_and_one_that_needs_more_only_without(tmp_path: Path):
    module = tmp_path / "mine.py"
    module.write_text("from tests.harness.desk import LoanDesk\n\nmake = LoanDesk\n")
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps(desk.TOOLS))
    refused = run("admit", module, "--agent", "library", "--tools", tools)
    assert isinstance(refused.exception, TraceError)
    # Where nothing can be contained, the refusal is another one, and as clear.
    assert "No module named 'tests'" in str(refused.exception) or "cannot be contained" in str(refused.exception)
    verdict = document("admit", module, "--agent", "library", "--tools", tools, "--allow-weaker-sandbox")
    assert verdict["admitted"] is True, verdict
    stored = document("show", verdict["id"])
    assert (stored["kind"], stored["state"], len(stored["checks"])) == ("module", "admitted", len(verdict["checks"]))
    again = document("admit", verdict["id"], "--agent", "library", "--tools", tools, "--allow-weaker-sandbox")
    assert (again["id"], again["admitted"]) == (verdict["id"], True)
    other = document("admit", module, "--agent", "library", "--allow-weaker-sandbox", exit_code=1)
    assert [c["name"] for c in other["checks"] if not c["passed"]] == ["interface"]
    # The latest admission decides, in both directions.
    assert document("show", other["id"])["state"] == "retired"
    document("admit", module, "--agent", "library", "--tools", tools, "--allow-weaker-sandbox")
    assert document("show", other["id"])["state"] == "admitted"

    if containment().enforced:
        # It imports the contract, and nothing else of the project.
        module.write_text(f"{inspect.getsource(desk)}\n\nmake = LoanDesk\n")
        verdict = document("admit", module, "--agent", "library", "--tools", tools)
        assert verdict["admitted"] is True, verdict


def test_a_person_can_take_the_agents_seat(tmp_path: Path):
    spec = tmp_path / "spec.json"
    document("synthesize", "--agent", "library", "--out", spec)
    from loop.synthesis.loading import load_environment

    env = load_environment(spec)()
    env.reset(5)
    typed = [f"{a.tool} {json.dumps(dict(a.arguments))}" if a.tool else a.text for a in env.reference()]
    won = run("play", spec, "--seed", 5, typed="\n".join(typed) + "\n")
    assert "solved, total 1.00" in won.stdout
    assert "not solved" in run("play", spec, "--seed", 5, typed="no idea\n").stdout
    assert "not JSON" in run("play", spec, "--seed", 5, typed='find_member {"card": }\n').stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show", "nothing"), "no such environment"),
        (("play", "missing.json"), "no such environment file"),
        (("admit", "missing.py", "--agent", "library"), "no such environment file"),
        (("admit", "broken.json", "--agent", "library"), "cannot be read"),
        (("admit", "other.json", "--agent", "library"), "not an induced environment"),
        (("admit", "other.json", "--agent", "nobody"), "no tool schemas"),
        (("synthesize", "--agent", "nobody"), "no recorded runs"),
        (("synthesize", "--agent", "library", "--capability", "telepathy"), "no capability"),
        (("synthesize", "--agent", "library", "--tools", "broken.json"), "cannot be read"),
    ],
)
def test_bad_input_is_a_clear_error(
    arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "other.json").write_text('{"some": "thing"}')
    result = run(*arguments)
    assert isinstance(result.exception, TraceError), result.output
    assert said in str(result.exception)
