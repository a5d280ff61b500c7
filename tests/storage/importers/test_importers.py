"""Every importer: what a good file becomes, that identity is content and place, and that nothing breaks one."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from storage import trajectories
from storage.database import open_database
from storage.errors import TraceError
from storage.exporters import atif
from storage.importers import FORMATS, fields, read_file, read_tools
from storage.importers.contract import BrokenRecord, Options, Source, read
from storage.trajectory import Trajectory
from tests.storage.importers.samples import SAMPLES

ALL = pytest.mark.parametrize("name", list(FORMATS))


def runs(name: str, data: bytes | None = None, **options: Any) -> list[Trajectory]:
    sample = SAMPLES[name]
    found = list(read(FORMATS[name], Source(sample.file, sample.data if data is None else data), Options(**options)))
    assert not [r for r in found if isinstance(r, BrokenRecord)], found
    return [r for r in found if isinstance(r, Trajectory)]


@ALL
def test_a_good_file_gives_all_its_runs_with_their_outcomes(name: str) -> None:
    found = runs(name)
    assert len(found) == len({t.id for t in found}) == SAMPLES[name].runs
    assert sum(t.success is True for t in found) == SAMPLES[name].succeeded


@ALL
def test_identity_is_content_place_and_agent(name: str) -> None:
    ids = [t.id for t in runs(name)]
    assert ids == [t.id for t in runs(name)]
    # A trace has a name of its own for all the world; other records are known by their place and content.
    assert ids == sorted(ids) or name == "otlp"
    assert not set(ids) & {t.id for t in runs(name, agent="other")}
    assert [t.id for t in runs(name, reference=True)] == ids


@ALL
def test_what_a_person_says_of_a_file_is_taken(name: str) -> None:
    tools = ({"type": "function", "function": {"name": "mine"}},)
    for run in runs(name, agent="desk", model="small", reference=True, tools=tools):
        assert (run.agent, run.model, run.reference) == ("desk", "small", True)
        assert run.tools


@ALL
def test_importing_again_adds_none(name: str, tmp_path: Path) -> None:
    with open_database(home=tmp_path) as db:
        assert FORMATS[name].save(db, runs(name), "import").added == SAMPLES[name].runs
        before = list(trajectories.load(db))
        assert FORMATS[name].save(db, runs(name), "import") == trajectories.SaveReport(0, SAMPLES[name].runs)
        assert list(trajectories.load(db)) == before
        assert sorted(t.id for t in before) == sorted(t.id for t in runs(name))


def test_openai_lines_decide_by_outcome_then_by_reward() -> None:
    assert [(t.success, t.score) for t in runs("openai")] == [(True, None), (False, 0.5), (None, None), (True, 1.0)]
    first, _, third, _ = runs("openai")
    assert (first.task, first.model, first.session, third.task) == ("1", "m", "s", "1")
    assert [s.result for s in first.steps()] == ['{"copies": 2}']
    assert third.messages[0].content == "é"


def test_tau_bench_keeps_a_crash_apart_from_a_failure_and_knows_the_tool_think() -> None:
    tools = ({"type": "function", "function": {"name": "find"}},)
    good, bad, crashed = runs("tau-bench", tools=tools)
    assert [t["function"]["name"] for t in good.tools] == ["find", "think"]
    assert runs("tau-bench")[0].tools == ()
    assert (good.success, bad.success, bad.error) == (True, False, None)
    assert (crashed.status, crashed.messages) == ("raised", ())
    assert crashed.error == {"type": "Error", "message": "RateLimitError", "boundary": "unknown"}


def test_mint_code_becomes_calls_and_the_shared_instructions_the_system_prompt() -> None:
    run = runs("mint")[0]
    assert [m.role for m in run.messages] == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert run.messages[1].content == "Put a cup away."
    (step,) = run.steps()
    assert step.call.arguments == {"code": "print(look())"}
    assert step.result == "a cup\nYou have 2 steps left."
    assert run.messages[2].content == "Let me look."
    assert (run.model, run.task) == ("some-model-8b", "rooms/0")


def test_intercode_actions_and_observations_are_aligned() -> None:
    run = runs("intercode")[0]
    assert [(s.call.name, s.call.arguments, s.result) for s in run.steps()] == [
        ("bash", {"command": "ls"}, "a b"),
        ("bash", {"command": "ls | wc -l"}, "2"),
    ]
    assert (run.model, run.task) == ("some-model", "shell_fs_1/0")


def test_tau2_shows_what_the_agent_saw_and_who_broke_off() -> None:
    good, limit, broken = runs("tau2")
    assert [m.role for m in good.messages] == ["system", "assistant", "user", "assistant", "tool", "tool", "assistant"]
    assert [s.result for s in good.steps()] == ["2", "0"]
    assert (good.agent, good.model, good.messages[0].content) == ("library", "some-model", "Be kind.")
    assert good.metadata["user_tool_messages"] == 2
    assert good.started_at == 1767323045.0
    assert (limit.status, limit.success, limit.error) == ("completed", False, None)
    assert (broken.status, broken.success) == ("raised", None)
    assert broken.error is not None
    assert broken.error["boundary"] == "infrastructure"


def test_tau2_reads_the_folder_layout_too(tmp_path: Path) -> None:
    document = copy.deepcopy(SAMPLES["tau2"].document)
    simulations = document.pop("simulations")
    (tmp_path / "results.json").write_text(json.dumps(document))
    (tmp_path / "simulations").mkdir()
    for simulation in simulations:
        (tmp_path / "simulations" / f"{simulation['id']}.json").write_text(json.dumps(simulation))
    for path in (tmp_path, tmp_path / "results.json"):
        found = [t for t in read_file(FORMATS["tau2"], path, Options()) if isinstance(t, Trajectory)]
        assert [(t.messages, t.success, t.model) for t in found] == [
            (t.messages, t.success, t.model) for t in runs("tau2")
        ]


def test_mini_swe_agent_blocks_and_tool_calls_become_steps() -> None:
    (run,) = runs("mini-swe-agent")
    assert [(s.call.arguments, s.result) for s in run.steps()] == [
        ({"command": "ls"}, "<returncode>0</returncode>"),
        ({"command": "submit"}, "bye"),
    ]
    assert (run.task, run.model, run.version) == ("library__desk-7", "some-model", "1.0")


def test_mini_swe_agent_reads_the_responses_api() -> None:
    document = copy.deepcopy(SAMPLES["mini-swe-agent"].document)
    document["messages"][2:] = [
        {
            "object": "response",
            "output": [
                {"type": "message", "content": [{"type": "output_text", "text": "Look."}]},
                {"type": "function_call", "call_id": "c", "name": "bash", "arguments": '{"command": "ls"}'},
            ],
        },
        {"type": "function_call_output", "call_id": "c", "output": "a b"},
    ]
    (run,) = runs("mini-swe-agent", json.dumps(document).encode())
    assert [(s.call.arguments, s.result) for s in run.steps()] == [({"command": "ls"}, "a b")]


def test_atif_steps_become_messages_without_copied_context() -> None:
    (run,) = runs("atif")
    assert [m.content for m in run.messages] == ["Is Emma in?", "", "2", "Two."]
    assert [(s.call.name, s.result) for s in run.steps()] == [("find", "2")]
    assert (run.agent, run.session, run.task, run.started_at) == ("desk", "s", "t", 1767323045.0)


def test_broken_records_are_named_and_the_others_are_read() -> None:
    lines = SAMPLES["openai"].data.splitlines(keepends=True)
    bad = [b"{not json\n", b'{"messages": []}\n', b'{"messages": [{"role": "king", "content": ""}]}\n', b"7\n", b"\n"]
    data = b"".join([lines[0], *bad, lines[1], b'{"messages": [{"role": "user"}], "reward": NaN}'])
    found = list(read(FORMATS["openai"], Source("x.jsonl", data), Options()))
    assert [type(r) for r in found] == [Trajectory, *[BrokenRecord] * 4, Trajectory, BrokenRecord]
    assert [str(r) for r in found[1:5]] == [
        "x.jsonl, line 2: not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        "x.jsonl, line 3: messages is empty",
        "x.jsonl, line 4: messages[0]: message role 'king' is not system, user, assistant or tool",
        "x.jsonl, line 5: the line is a number, not an object",
    ]


@ALL
def test_a_file_that_cannot_be_read_is_one_clear_error(name: str, tmp_path: Path) -> None:
    contents: dict[str, bytes | None] = {"missing": None, "empty": b"", "folder/": None}
    if not SAMPLES[name].lines:
        contents |= {"cut": SAMPLES[name].data[:-7], "number": b"7", "latin": b"\xff\xfe{}", "deep": b"[" * 99_999}
    for file, content in contents.items():
        path = tmp_path / file
        if file.endswith("/"):
            path.mkdir()
        elif content is not None:
            path.write_bytes(content)
        with pytest.raises(TraceError) as caught:
            list(read_file(FORMATS[name], path, Options()))
        assert caught.value.where == str(path)


def calls_in(run: Trajectory) -> list[Any]:
    return [(c.id, c.name, c.arguments or c.raw_arguments) for m in run.messages for c in m.tool_calls]


@ALL
def test_what_any_format_brought_in_goes_out_as_atif_and_comes_back(name: str) -> None:
    for run in (run for run in runs(name) if run.messages):
        (back,) = runs("atif", atif.document(run).encode())
        assert [m.content for m in back.messages] == [m.content for m in run.messages]
        # The format holds arguments as objects, so the spaces between them are not part of it.
        assert calls_in(back) == calls_in(run)
        assert (back.agent, back.tools, back.success, back.score) == (run.agent, run.tools, run.success, run.score)
        assert (back.task, back.model, back.session) == (run.task, run.model, run.session)


def test_tool_files_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps([{"type": "function", "function": {"name": "find"}}]))
    assert read_tools(path)[0]["function"]["name"] == "find"
    for wrong in ("{}", "[1]", '[{"type": "function", "function": {}}]', "[", ""):
        path.write_text(wrong)
        with pytest.raises(TraceError):
            read_tools(path)
    with pytest.raises(TraceError, match="cannot read the tools"):
        read_tools(tmp_path / "missing.json")


@pytest.mark.parametrize("reward", [10**400, -(10**400), float("nan"), float("inf")])
def test_a_reward_that_is_no_finite_number_is_no_verdict(reward: float) -> None:
    assert fields.verdict_of({"reward": reward}) == {"success": None, "score": None}
    assert fields.verdict_of({"outcome": reward, "passed": 1}) == {"success": True, "score": 1.0}
