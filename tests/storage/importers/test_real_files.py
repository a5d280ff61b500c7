"""Published files are imported with the counts that their publishers give."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage import trajectories
from storage.database import open_database
from storage.importers import FORMATS, read_file, read_tools
from storage.importers.contract import Options
from storage.trajectory import Trajectory

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the published trajectories (../shared/data) are not here")


def imported(format: str, *files: str, tools: str | None = None) -> list[Trajectory]:
    options = Options(agent="a", tools=read_tools(DATA / tools) if tools else ())
    records = [r for file in files for r in read_file(FORMATS[format], DATA / file, options)]
    runs = [r for r in records if isinstance(r, Trajectory)]
    assert len(runs) == len(records)
    return runs


def passed(runs: list[Trajectory]) -> tuple[int, int]:
    assert all(t.success is not None for t in runs)
    return len(runs), sum(t.success is True for t in runs)


def test_tau_bench_airline() -> None:
    runs = imported("tau-bench", "tau-bench/gpt-4o-airline.json", tools="tau2/tools/airline.agent.openai.json")
    assert passed(runs) == (200, 84)
    assert len({t.task for t in runs}) == 50
    assert all(step.result is not None for t in runs for step in t.steps())
    called = {step.call.name for t in runs for step in t.steps()}
    assert all(runs[0].tool_schema(name) for name in called)


def test_tau_bench_agentverify_retail() -> None:
    runs = imported("tau-bench", "tau-bench-agentverify/retail.json", tools="tau2/tools/retail.agent.openai.json")
    assert passed(runs) == (100, 73)


@pytest.mark.parametrize(
    ("tasks", "runs", "succeeded"), [("alfworld", 134, (50, 112, 113)), ("hotpotqa", 43, (10, 19, 20))]
)
def test_mint(tasks: str, runs: int, succeeded: tuple[int, ...]) -> None:
    models = ("Meta-Llama-3-8B-Instruct", "Meta-Llama-3-70B-Instruct", "gpt-4-0613")
    for model, count in zip(models, succeeded, strict=True):
        found = imported("mint", f"mint/{model}.{tasks}.jsonl")
        assert passed(found) == (runs, count)
        assert {t.model for t in found} == {model}
        assert all(t.messages[0].role == "system" for t in found)


def test_intercode() -> None:
    runs = imported("intercode", *(f"intercode/ic_bash_multiturn_gpt-4_10_turns_fs_{n}.json" for n in range(1, 5)))
    assert passed(runs) == (200, 97)
    assert {t.model for t in runs} == {"gpt-4"}
    assert len({t.task for t in runs}) == 200


def test_all_of_them_are_stored_once_and_come_back(tmp_path: Path) -> None:
    runs = [
        *imported("tau-bench", "tau-bench/gpt-4o-airline.json"),
        *imported("tau-bench", "tau-bench-agentverify/retail.json"),
        *(run for path in sorted((DATA / "mint").glob("*.jsonl")) for run in imported("mint", f"mint/{path.name}")),
        *(
            run
            for p in sorted((DATA / "intercode").glob("*.json"))
            for run in imported("intercode", f"intercode/{p.name}")
        ),
    ]
    with open_database(home=tmp_path) as db:
        assert trajectories.save(db, runs, "import").added == len(runs) == 200 + 100 + 3 * (134 + 43) + 200
        assert trajectories.save(db, runs, "import").added == 0
        stored = {t.id: t for t in trajectories.load(db)}
    assert all(stored[run.id].messages == run.messages for run in runs)
