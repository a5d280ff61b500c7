"""What docs/environments.md says of trajectories that others recorded. Skipped where that data is absent."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.admission import Thresholds, admit
from loop.analysis.detectors import find
from loop.synthesis.induced import EvidenceReport, InducedEnvironment, induce
from loop.synthesis.labels import labeler
from storage.importers import FORMATS, Options, read_file, read_tools
from storage.trajectory import Trajectory

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the recorded trajectories are not on this machine")


def recorded(file: str, tools: str) -> list[Trajectory]:
    options = Options(agent=tools, tools=tuple(read_tools(DATA / "tau2" / "tools" / f"{tools}.agent.openai.json")))
    found = read_file(FORMATS["tau-bench"], DATA / file, options)
    return [run for run in found if isinstance(run, Trajectory)]


def admitted(file: str, tools: str, few: Thresholds) -> InducedEnvironment:
    """The environment of `lookup_before_change` that these runs give, after it passed admission."""
    runs = recorded(file, tools)
    detector = find("lookup_before_change")
    assert detector is not None
    made = induce(runs, detector)
    assert isinstance(made, InducedEnvironment), made.reasons
    report = admit(made.copy, runs[0].tools, lapse=detector.lapse, label=labeler(detector), thresholds=few)
    assert report.admitted, report.lines()
    return made


def test_retail_order_looked_up_then_changed_is_admitted() -> None:
    # `ordered` has one known exception in many (docs), which a small sample would make too much of.
    few = Thresholds(seeds=12, distinct_seeds=40, ordered=0.8)
    made = admitted("tau-bench-agentverify/retail.json", "retail", few)
    said = {t.name: t.behaviour for t in made.evidence.tools}
    assert "status ← const cancelled" in said["cancel_pending_order"]
    assert "refuses by status (accepts pending)" in said["cancel_pending_order"]
    assert "zip = address.zip" in said["find_user_id_by_name_zip"]


def test_airline_coverage_names_each_tool_and_what_was_not_inferred() -> None:
    made = induce(recorded("tau-bench/gpt-4o-airline.json", "airline"), min_cases=200)
    assert isinstance(made, EvidenceReport)
    tools = {t.name: t for t in made.tools}
    assert (tools["get_reservation_details"].calls, tools["update_reservation_flights"].errors) == (377, 42)
    assert "recorded calls only" in tools["search_direct_flight"].behaviour
    assert tools["search_direct_flight"].notes
    assert any("200 are needed" in reason for reason in made.reasons)


def test_airline_look_up_before_a_change_is_admitted() -> None:
    # Calls that no rule explains are answered as recorded, and any other is refused: `runs` counts what is raised.
    admitted("tau-bench/gpt-4o-airline.json", "airline", Thresholds(seeds=12, distinct_seeds=40))
