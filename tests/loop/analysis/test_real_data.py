"""The analyses of docs/analysis.md, on trajectories that others recorded. Skipped where that data is absent."""

from __future__ import annotations

from pathlib import Path

import pytest

from loop.analysis.analyze import AnalysisReport, analyze_runs
from storage.importers import FORMATS, Options, read_file, read_tools
from storage.trajectory import Trajectory

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the recorded trajectories are not on this machine")


def analysis(format: str, pattern: str, tools: str | None = None) -> AnalysisReport:
    schemas = read_tools(DATA / "tau2" / "tools" / f"{tools}.agent.openai.json") if tools else ()
    options = Options(agent="real", tools=tuple(schemas))
    runs = [run for path in sorted(DATA.glob(pattern)) for run in read_file(FORMATS[format], path, options)]
    assert runs
    assert all(isinstance(run, Trajectory) for run in runs)
    return analyze_runs("real", [run for run in runs if isinstance(run, Trajectory)])


def test_airline_selects_nothing_and_failures_alone_would_have() -> None:
    report = analysis("tau-bench", "tau-bench/gpt-4o-airline.json", "airline")
    assert (report.counts["failed"], report.counts["succeeded"]) == (116, 84)
    assert not report.selected
    follow = next(f.contrast for f in report.findings if f.id == "follow_through")
    assert follow.coverage > 0.10
    assert follow.gap is not None
    assert follow.gap < 0
    assert follow.strata > 5


def test_retail_leaves_recovery_open() -> None:
    report = analysis("tau-bench", "tau-bench-agentverify/retail.json", "retail")
    recovery = next(f.contrast for f in report.findings if f.id == "recovery_after_error")
    assert not recovery.selected
    assert recovery.gap is not None
    assert recovery.gap > 0.20
    assert recovery.more_runs


@pytest.mark.parametrize("model", ["Meta-Llama-3-8B-Instruct", "Meta-Llama-3-70B-Instruct", "gpt-4-0613"])
def test_an_agent_that_writes_code_is_analysed_without_false_capabilities(model: str) -> None:
    report = analysis("mint", f"mint/{model}.alfworld.jsonl")
    assert sum(report.counts[k] for k in ("failed", "succeeded", "excluded")) == 134
    assert not report.selected


def test_bash_agents_that_fail_repeat_themselves() -> None:
    report = analysis("intercode", "intercode/*.json")
    assert {f.id for f in report.selected} == {"no_identical_repeats", "recovery_after_error"}
    for finding in report.selected:
        assert finding.to_json([r.id for r in report.runs], [not r.success for r in report.runs])["examples"]
