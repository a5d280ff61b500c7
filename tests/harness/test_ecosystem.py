"""Our environments in other frameworks, each with the real package.

A package that clashes with ours is looked for in an environment of its own: TRACE_ECOSYSTEM names a folder that holds
`gymnasium/`, `openenv-core/` and `verifiers/`, made with `python -m venv` and pip.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.ecosystem import trl as adapter
from harness.ecosystem.seat import Seat, parse_act
from harness.environment import Act
from storage.errors import TraceError
from tests.harness.desk import TOOLS, LoanDesk
from tests.harness.ecosystem_checks import SEED, solution

ROOT = Path(__file__).resolve().parents[2]


def checked(name: str, distribution: str, package: str) -> dict[str, Any]:
    """What `ecosystem_checks` found, in this environment if it has the package, else in one of its own."""
    own = Path(os.environ.get("TRACE_ECOSYSTEM", "/nowhere")) / distribution / "bin" / "python"
    if importlib.util.find_spec(package) is not None:
        python = sys.executable
    elif own.exists():
        python = str(own)
    else:
        pytest.skip(f"{distribution} is not installed here; TRACE_ECOSYSTEM may name environments that have it")
    done = subprocess.run(
        [python, "-m", "tests.harness.ecosystem_checks", name],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def played(rewards: list[float]) -> float:
    """The solution's shaped score, and that every step of it brought something."""
    assert len(rewards) == len(solution())
    assert all(r >= 0 for r in rewards)
    return sum(rewards)


def test_gymnasium_checks_and_plays_it():
    found = checked("gymnasium", "gymnasium", "gymnasium")
    assert found["tools"] == list(TOOLS)
    assert found["first"] == [dict(m) for m in LoanDesk().reset(SEED).messages]
    assert played(found["rewards"]) > 0.9
    assert found["ended"] == [False, False, True]
    assert found["success"] is True
    assert found["cut"] == [False, False, False, True]
    assert found["again"] is True


def test_openenv_serves_it_to_its_own_client():
    found = checked("openenv", "openenv-core", "openenv")
    assert found["tools"] == list(TOOLS)
    assert found["first"] == [dict(m) for m in LoanDesk().reset(SEED).messages]
    assert played(found["rewards"]) > 0.9
    assert found["ended"] == [False, False, True]
    assert found["success"] is True
    assert "loans" in found["answer"]


def test_verifiers_runs_it_through_its_own_agent():
    found = checked("verifiers", "verifiers", "verifiers")
    assert found["errors"] == []
    assert found["tasks"] == [SEED, SEED + 1]
    assert found["tools"] == list(TOOLS)
    assert found["rewards"]["shaped"] > 0.9
    assert found["metrics"]["success"] == 1.0
    assert found["calls"] == len(solution())


def test_a_seat_is_scored_as_an_episode_is():
    seat = Seat(LoanDesk())
    with pytest.raises(TraceError, match="no episode"):
        seat.call("find_loans", {})
    seat.reset(SEED)
    idle = seat.score()
    for act in seat.env.reference():
        if act.tool:
            seat.call(act.tool, act.arguments)
        else:
            assert seat.say(act.text) is None
    assert seat.done
    assert (idle.success, seat.score().success, seat.score().total) == (False, True, 1.0)
    seat.reset(SEED)
    assert seat.messages == []


def test_an_act_is_told_from_its_text():
    assert parse_act('{"tool": "find_loans", "arguments": {"member": "M-1"}}') == Act("find_loans", {"member": "M-1"})
    assert parse_act('{"tool": "find_loans", "arguments": 3}') == Act("find_loans", {})
    for text in ("Hello.", "{", "3", '{"text": "x"}', '{"tool": 1}'):
        assert parse_act(text) == Act(text=text)


def test_trl_reads_the_agents_own_schemas_from_the_methods():
    pytest.importorskip("trl")
    from transformers.utils import get_json_schema

    env = adapter.environment_factory(LoanDesk)()
    tools = [get_json_schema(getattr(env, name)) for name in ("find_loans", "extend_loan")]
    for made, own in zip(tools, TOOLS, strict=True):
        function, wanted = made["function"], own["function"]
        assert (function["name"], function["description"]) == (wanted["name"], wanted["description"])
        assert function["parameters"]["required"] == wanted["parameters"]["required"]
        types = {name: inner["type"] for name, inner in function["parameters"]["properties"].items()}
        assert types == {name: inner["type"] for name, inner in wanted["parameters"]["properties"].items()}


def test_trl_trains_a_step_in_it(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("trl")
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer
    from trl.chat_template_utils import qwen3_chat_template

    tokenizer = AutoTokenizer.from_pretrained(tiny_model, padding_side="left")
    # TRL reads tool calls out of answers by a template that it knows, and of the tiny model's it knows nothing.
    tokenizer.chat_template = qwen3_chat_template
    rows = adapter.rows(LoanDesk, [SEED])
    trainer = GRPOTrainer(
        str(tiny_model),
        reward_funcs=adapter.reward,
        args=GRPOConfig(
            output_dir=str(tmp_path),
            max_steps=1,
            per_device_train_batch_size=2,
            num_generations=2,
            max_completion_length=4,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list(rows),
        environment_factory=adapter.environment_factory(LoanDesk),
        processing_class=tokenizer,
    )
    trainer.train()
    logged = [row for row in trainer.state.log_history if "reward" in row]
    assert logged, trainer.state.log_history
    assert 0.0 <= logged[0]["reward"] <= 1.0
    # A model of noise calls no tool; what TRL would do with its calls is done here with TRL's own objects.
    env = trainer.environments[0]
    env.reset(**rows[0])
    acts = solution()
    tools = trainer._sync_tool_dicts[0]
    answers = [tools[a["tool"]](**a["arguments"]) for a in acts if "tool" in a]
    assert "loans" in answers[0]
    closing = [{"role": "assistant", "content": acts[-1]["text"]}]
    assert adapter.reward([closing], [env])[0] > 0.9


def test_trl_needs_a_seed_in_the_row():
    with pytest.raises(TraceError, match="no seed"):
        adapter.environment_factory(LoanDesk)().reset(prompt=[])
