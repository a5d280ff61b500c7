"""The graph with real checkpoints on disk; the work of the stages is written to a file, so that it can be counted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from loop.cycle.graph import STAGES, run_graph
from storage.errors import TraceError

SCRIPT = textwrap.dedent(
    """
    import os, signal, sys
    from pathlib import Path
    from loop.cycle.graph import STAGES, run_graph

    folder, dies_in = Path(sys.argv[1]), sys.argv[2]

    class Work:
        def __getattr__(self, name):
            def stage(state):
                with (folder / "stages").open("a") as file:
                    file.write(f"{name} {state['capability']}\\n")
                    file.flush()
                    os.fsync(file.fileno())
                if name == dies_in:
                    os.kill(os.getpid(), signal.SIGKILL)
                changes = {
                    "analyze": {"analysis": "a", "pending": ["one", "two"]},
                    "choose": {"capability": (state["pending"] or [""])[0], "pending": state["pending"][1:]},
                    "synthesize": {"environment": "e"},
                    "warm_start": {"warm_start": "w"},
                    "train": {"adapter": "t"},
                    "gate": {"verdict": "promote" if state["capability"] == "one" else "hold"},
                    "promote": {"promoted": [*state["promoted"], state["capability"]]},
                }
                return changes.get(name, {})
            return stage

    state = run_graph(Work(), "c1", folder / "cycles.db")
    print(state["promoted"])
    """
)
WHOLE = [
    "analyze ",
    "choose ",
    *(f"{s} one" for s in ("synthesize", "admit", "warm_start", "calibrate", "train", "fit_router", "gate", "promote")),
    "choose one",
    *(f"{s} two" for s in ("synthesize", "admit", "warm_start", "calibrate", "train", "fit_router", "gate")),
    "choose two",
    "finish ",
]


def run(folder: Path, dies_in: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), dies_in], capture_output=True, text=True, timeout=120, check=False
    )


def ran(folder: Path) -> list[str]:
    return (folder / "stages").read_text().splitlines()


def test_each_capability_goes_through_all_stages_in_order(tmp_path):
    assert run(tmp_path).stdout.strip() == "['one']"
    assert ran(tmp_path) == WHOLE


@pytest.mark.parametrize("stage", ["analyze", "train", "promote"])
def test_a_killed_cycle_resumes_in_the_stage_it_was_in(tmp_path, stage):
    killed = run(tmp_path, dies_in=stage)
    assert killed.returncode == -signal.SIGKILL
    before = ran(tmp_path)
    assert before[-1].startswith(stage)

    assert run(tmp_path).stdout.strip() == "['one']"
    # The stage that was killed runs again, and no other.
    assert before + ran(tmp_path)[len(before) + 1 :] == WHOLE
    assert ran(tmp_path)[len(before)] == before[-1]


def test_a_finished_cycle_is_not_run_again(tmp_path):
    run(tmp_path)
    assert run(tmp_path).stdout.strip() == "['one']"
    assert ran(tmp_path) == WHOLE


def test_a_file_that_holds_no_checkpoints_is_said(tmp_path):
    (tmp_path / "cycles.db").write_bytes(os.urandom(4096))
    with pytest.raises(TraceError, match="the checkpoints cannot be read"):
        run_graph(object(), "c1", tmp_path / "cycles.db")  # type: ignore[arg-type]


def test_every_stage_is_in_the_whole_run():
    assert {line.split()[0] for line in WHOLE} == set(STAGES)
