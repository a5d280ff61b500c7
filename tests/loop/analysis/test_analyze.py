"""From recorded runs to named capabilities, through a real database."""

from __future__ import annotations

import dataclasses
import json
import random
import time
from pathlib import Path

import pytest
import typer

from harness.environment import Act
from harness.serving.policy import policy_label
from loop.analysis import history
from loop.analysis.analyze import analyze, analyze_runs, lacking_runs
from loop.analysis.contrast import Thresholds
from loop.analysis.identity import Known, match
from loop.commands.analyze import render
from storage.database import Database, open_database
from storage.errors import TraceError
from storage.trajectories import save
from storage.trajectory import Trajectory
from tests.loop.analysis.shop import Shop, play


def florist(n: int = 150, *, seed: int = 0, model: str = "m", start: float = 1000.0) -> list[Trajectory]:
    """An agent that solves a third: it mostly skips the look-up, then is refused, repeats itself or gives up."""
    draw = random.Random(seed)
    runs: list[Trajectory] = []
    for index in range(n):
        shop = Shop(seed * 1000 + index)
        lapse = Act("cancel_bouquet", {"bouquet_id": shop.email})
        kind = draw.random()
        if kind < 0.2:
            acts, success = shop.reference(), True
        elif kind < 0.35:
            shop.request = f"Where is {shop.open_id}?"
            acts = [Act("get_bouquet", {"bouquet_id": shop.open_id}), Act(text=f"{shop.open_id} is open.")]
            success = True
        elif kind < 0.5:
            shop.request = f"Where is {shop.open_id}?"
            acts, success = [Act("get_bouquet", {"bouquet_id": shop.open_id}), Act(text="It was delivered.")], False
        elif kind < 0.7:
            acts, success = [lapse, lapse, Act(text="Your bouquet has been cancelled.")], False
        elif kind < 0.9:
            acts, success = [lapse, Act(text="I could not do that.")], False
        else:
            acts, success = [Act(text="Done, it is cancelled.")], False
        fields = {"model": model, "task": f"{seed}-{index}", "started_at": start + index}
        runs.append(play(shop, acts, id=f"{model}-{seed}-{index}", success=success, **fields))
    return runs


@pytest.fixture
def db(tmp_path: Path) -> Database:
    return open_database(home=tmp_path)


def test_the_look_up_that_failures_skip_is_selected_with_its_gap() -> None:
    report = analyze_runs("florist", florist())
    found = next(f for f in report.selected if f.id == "lookup_before_change")
    assert found.contrast.gap is not None
    assert found.contrast.gap > 0.8
    assert found.contrast.coverage > 0.4
    assert report.selected[0] is found
    evidence = lacking_runs(found, report.runs)
    assert evidence
    assert all(run.success is False for run in evidence)


def test_its_consequences_in_the_same_runs_are_merged_into_it() -> None:
    report = analyze_runs("florist", florist())
    recovery = next(f for f in report.findings if f.id == "recovery_after_error")
    assert not recovery.contrast.selected
    if not recovery.contrast.undecided:
        assert recovery.merged_into == "lookup_before_change"


def test_the_json_form_is_the_documented_one(db: Database) -> None:
    save(db, florist(), "import:test")
    document = json.loads(json.dumps(analyze(db, "florist").to_json()))
    assert set(document["trajectories"]) == {"failed", "succeeded", "unknown", "excluded", "reference"}
    assert sum(document["trajectories"].values()) == 150
    assert document["thresholds"] == {"gap": 0.2, "coverage": 0.1, "passes_kept": 8}
    assert document["passes"] == 10
    assert document["conclusion"].startswith("lacks: Look-up before a change")
    row = document["capabilities"][0]
    expected = (
        "id name description source coverage gap gap_ci stratified_gap lacking_failed present_failed na_failed "
        "lacking_succeeded present_succeeded na_succeeded passes_kept selected undecided reason examples"
    )
    assert set(expected.split()) <= set(row)
    assert row["selected"]
    assert row["examples"]
    for row in document["capabilities"]:
        failed = row["lacking_failed"] + row["present_failed"] + row["na_failed"]
        assert failed <= document["trajectories"]["failed"]
        for example in row["examples"]:
            assert set(example) >= {"trajectory", "step"}


def test_references_and_unknown_outcomes_are_never_contrasted() -> None:
    runs = florist()
    for index in range(40):
        shop = Shop(5000 + index)
        runs.append(play(shop, shop.reference(), id=f"ref{index}", success=True, reference=True, model="m"))
        runs.append(play(Shop(6000 + index), [], id=f"open{index}", model="m"))
    report = analyze_runs("florist", runs)
    plain = analyze_runs("florist", florist())
    assert report.counts == {**plain.counts, "reference": 40, "unknown": 40}
    gaps = {f.id: f.contrast.gap for f in plain.findings}
    assert all(gaps.get(f.id, f.contrast.gap) == f.contrast.gap for f in report.findings if ":" not in f.id)


def test_models_are_never_mixed_and_it_is_said_which_was_analysed() -> None:
    runs = [*florist(150, model="big"), *florist(60, seed=1, model="small", start=9000.0)]
    report = analyze_runs("florist", runs)
    assert report.group.model == "big"
    assert report.counts["excluded"] == 60
    assert any("60 runs" in note for note in report.notes)


def test_the_routes_of_one_policy_are_contrasted_together_and_apart_from_the_next_policy() -> None:
    routed = [
        dataclasses.replace(run, policy=policy_label("1", ("base", "lookup@1", "a@1+b/2")[n % 3]))
        for n, run in enumerate(florist(150))
    ]
    later = [dataclasses.replace(run, policy=policy_label("2", "base")) for run in florist(60, seed=1, start=9000.0)]
    report = analyze_runs("florist", [*routed, *later])
    assert report.group.policy == "1"
    assert len(report.runs) + report.counts["excluded"] == 210
    assert report.counts["failed"] + report.counts["succeeded"] == 150


def test_filters_choose_another_group(db: Database) -> None:
    save(db, [*florist(150, model="big"), *florist(60, seed=1, model="small")], "import:test")
    report = analyze(db, "florist", model="small", save=False)
    assert report.group.model == "small"
    assert report.counts["excluded"] == 150
    with pytest.raises(TraceError):
        analyze(db, "florist", model="none")


def test_harness_problems_are_reported_apart_and_not_contrasted() -> None:
    runs = florist()
    for index in range(30):
        error = {"type": "RateLimitError", "message": "429", "boundary": "provider"}
        fields = {"model": "m", "error": error, "status": "raised", "task": f"x{index}"}
        runs.append(play(Shop(index), [], id=f"down{index}", success=False, **fields))
    report = analyze_runs("florist", runs)
    assert report.counts["excluded"] == 30
    assert report.problems[0].boundary == "provider"
    assert not any(run.id.startswith("down") for run in report.runs)


def test_an_unknown_agent_and_an_empty_database_are_clear_errors(db: Database) -> None:
    with pytest.raises(TraceError, match="no runs"):
        analyze(db, "florist")
    save(db, florist(5), "import:test")
    with pytest.raises(TraceError) as raised:
        analyze(db, "baker")
    assert "florist" in raised.value.fix


@pytest.mark.parametrize("success", [True, False, None])
def test_one_sided_outcomes_conclude_nothing_and_say_why(success: bool | None) -> None:
    runs = [dataclasses.replace(run, success=success) for run in florist(30)]
    report = analyze_runs("florist", runs)
    assert not report.selected
    text = render(report)
    assert "nothing selected" in text
    assert all(f.contrast.undecided for f in report.findings)


def test_history_goes_on_under_one_name(db: Database) -> None:
    save(db, florist(150, model="v1"), "import:test")
    first = analyze(db, "florist")
    save(db, florist(200, seed=2, model="v2"), "import:test")
    second = analyze(db, "florist")
    ids = {f.candidate.detector.id: f.id for f in first.findings}
    assert all(ids.get(f.candidate.detector.id, f.id) == f.id for f in second.findings)
    capability = history.find(db, "Look-up before a change")
    shown = history.show(db, capability)
    assert [e["model"] for e in shown["history"]] == ["v1", "v2"]
    assert shown["selected"]
    assert shown["state"] == "selected"
    assert history.capabilities(db)[0]["selected_since"] == shown["selected_since"]
    with pytest.raises(TraceError, match="there is no capability"):
        history.find(db, "juggling")


def test_the_same_analysis_again_is_not_a_second_one(db: Database) -> None:
    """As after a kill between storing an analysis and noting that it was stored."""
    save(db, florist(), "import:test")
    first = analyze(db, "florist")
    again = analyze(db, "florist")
    assert again.analysis == first.analysis
    assert again.to_json() == first.to_json()
    assert len(history.show(db, history.find(db, "lookup_before_change"))["history"]) == 1
    save(db, [dataclasses.replace(run, id=f"late-{run.id}") for run in florist(20, seed=7)], "import:more")
    assert analyze(db, "florist").analysis != first.analysis
    stricter = analyze(db, "florist", thresholds=Thresholds.of(gap=0.9))
    assert len(history.show(db, history.find(db, "lookup_before_change"))["history"]) == 3
    assert stricter.thresholds.gap == 0.9


def test_adapters_decisions_and_promotions_stand_between_the_analyses(db: Database) -> None:
    from storage import tables

    save(db, florist(), "import:test")
    analyze(db, "florist")
    capability = history.find(db, "lookup_before_change")
    now = time.time()
    with db.transaction() as session:
        adapter = tables.Adapter(
            name="lookup", version=1, capability=capability.id, path="x", sha256="0", base="b", created_at=now + 10
        )
        session.add(adapter)
        session.flush()
        session.add(tables.GateDecision(adapter=adapter.id, verdict="promote", reason="wins", at=now + 20))
        for version, names, at in ((1, ["lookup@1"], now + 30), (2, ["other@1"], now + 40), (3, ["lookup@1"], None)):
            session.add(tables.Policy(version=version, base="b", adapters=names, activated_at=at))
    save(db, florist(60, seed=3), "import:more")
    shown = history.show(db, capability)
    assert [event["event"] for event in shown["history"]] == ["analysis", "adapter", "gate", "promotion"]
    assert shown["history"][-1]["adapters"] == ["lookup@1"]


def test_a_model_that_names_its_finding_like_a_detector_gets_one_of_its_own(db: Database, tmp_path: Path) -> None:
    from loop.analysis.analyst import Analyst
    from tests.loop.analysis.test_analyst import Scripted

    save(db, florist(60), "import:test")
    for number in range(2):
        client = Scripted(name="Look-up before a change")
        analyze(db, "florist", analyst=Analyst(client, tmp_path / str(number), known=history.proposals(db, "florist")))
        save(db, florist(20, seed=number + 5), f"import:{number}")
    sources = {row["source"]: row for row in history.capabilities(db) if row["name"].startswith("Look-up before")}
    assert sources.keys() == {"detector", "llm"}
    assert all(row["analyses"] == 2 for row in sources.values())


def test_a_served_model_is_asked_whether_it_has_the_lack_too(db: Database) -> None:
    from loop.analysis import served
    from storage import tables

    save(db, florist(), "import:test")
    analyze(db, "florist")
    capability = history.find(db, "lookup_before_change")
    # The served model always looks first, and fails for other reasons.
    runs: list[Trajectory] = []
    for index in range(40):
        shop = Shop(9000 + index)
        runs.append(play(shop, shop.reference(), id=f"served{index}", model="small", policy="measured-1/base"))
    save(db, runs, "import:served")
    with db.transaction() as session:
        session.add(tables.Evaluation(id="e", arm="base", split="gate", policy="p", model="small"))
        session.flush()
        for index, run in enumerate(runs):
            episode = tables.EvaluationEpisode(
                evaluation="e", task=str(index), trajectory=run.id, success=index % 2 == 0
            )
            session.add(episode)
    row = served.lack(db, capability, "e")
    assert row["id"] == capability.id
    assert (row["gap"], row["coverage"], row["selected"]) == (0.0, 0.0, False)
    assert row["trajectories"]["failed"] == row["trajectories"]["succeeded"] == 20
    with pytest.raises(TraceError, match="were not recorded"):
        served.lack(db, capability, "none")


def test_what_cannot_be_measured_is_said_before_anything_is_started(home: Path) -> None:
    from typer.testing import CliRunner

    from loop.commands.app import app

    with open_database(home=home) as opened:
        save(opened, florist(), "import:test")
    options = ["--agent", "florist", "--target", "a:b", "--model", str(home), "--capability", "juggling"]
    done = CliRunner().invoke(app, ["evaluate", *options])
    assert isinstance(done.exception, TraceError)
    assert "juggling" in str(done.exception)


def test_labels_are_kept_with_their_evidence(db: Database) -> None:
    from sqlmodel import col, select

    from storage import tables

    save(db, florist(), "import:test")
    report = analyze(db, "florist")
    with db.session() as session:
        labels = list(session.exec(select(tables.Label).where(col(tables.Label.value) == "LACKING")))
    assert len(labels) == sum(f.contrast.lacking_failed + f.contrast.lacking_succeeded for f in report.findings)
    assert all(label.evidence for label in labels)


def test_a_candidate_of_a_model_is_matched_by_words() -> None:
    known = [Known("1", "Payment arithmetic", "Adds up prices and splits payments over methods", None)]
    assert match("Arithmetic of payments", "Splits a payment, adds prices", None, known) == known[0]
    assert match("Policy enforcement", "Refuses what the rules forbid", None, known) is None
    assert match("Anything", "", "some_detector", known) is None


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRACE_HOME", str(tmp_path))
    monkeypatch.delenv("TRACE_DATABASE_URL", raising=False)
    return tmp_path


def test_the_command_prints_one_json_document_and_history_lists_it(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from typer.testing import CliRunner

    from loop.commands.app import app

    with open_database(home=home) as opened:
        save(opened, florist(), "import:test")
    runner = CliRunner()
    done = runner.invoke(app, ["analyze", "--agent", "florist", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["capabilities"][0]["selected"]
    text = runner.invoke(app, ["analyze", "--agent", "florist"])
    assert "lacks: Look-up before a change" in text.stdout
    listed = json.loads(runner.invoke(app, ["capabilities", "list", "--json"]).stdout)["capabilities"]
    assert listed[0]["name"] == "Look-up before a change"
    shown = runner.invoke(app, ["capabilities", "show", listed[0]["id"]])
    assert "selected" in shown.stdout
    assert runner.invoke(app, ["analyze", "--agent", "florist", "--bogus"]).exit_code == 2
    assert runner.invoke(app, ["analyze", "--agent", "florist", "--passes", "5", "--passes-kept", "6"]).exit_code == 2
    kept = runner.invoke(app, ["analyze", "--agent", "florist", "--passes-kept", "10", "--json"])
    assert json.loads(kept.stdout)["thresholds"]["passes_kept"] == 10
    failed = runner.invoke(app, ["analyze", "--agent", "baker"])
    assert isinstance(failed.exception, TraceError | typer.Exit)
