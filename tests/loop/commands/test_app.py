"""The command line as a whole: what it costs to start, and how it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from loop.commands.app import COMMANDS


def trace(*arguments: str, home, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loop.commands.app", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "TRACE_HOME": str(home), **environment},
    )


def test_the_overview_names_every_command(tmp_path):
    done = trace("--help", home=tmp_path)
    assert done.returncode == 0
    assert all(f"\n  {name} " in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_has_help(tmp_path, command):
    from typer.testing import CliRunner

    from loop.commands.app import app

    done = CliRunner().invoke(app, [command, "--help"])
    assert done.exit_code == 0, done.output
    assert "Usage" in done.output


@pytest.mark.parametrize("arguments", [["frobnicate"], ["status", "--frobnicate"], ["import"], ["evaluate"]])
def test_wrong_usage_exits_with_2(tmp_path, arguments):
    done = trace(*arguments, home=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_an_error_is_one_or_two_lines_and_exits_with_1(tmp_path):
    (tmp_path / "trace.db").write_bytes(b"this is not a database, it is a note" * 100)
    done = trace("status", home=tmp_path)
    assert done.returncode == 1
    lines = done.stderr.strip().splitlines()
    assert lines[0].startswith("error: ")
    assert len(lines) <= 2
    assert (tmp_path / "trace.db").read_bytes().startswith(b"this is not a database")


def test_a_model_that_is_not_there_is_said(tmp_path):
    missing = tmp_path / "no-model"
    done = trace("serve", "--model", str(missing), home=tmp_path)
    assert done.returncode == 1
    assert str(missing) in done.stderr
    assert "Traceback" not in done.stderr


def test_a_report_that_does_not_exist_is_said(tmp_path):
    done = trace("evaluate", "--report", home=tmp_path)
    assert done.returncode == 1
    assert "no cycle has a report yet" in done.stderr


def test_a_cycle_of_an_unknown_agent_is_said(tmp_path):
    done = trace("cycle", "--agent", "nobody", "--target", "a:b", "--model", str(tmp_path), home=tmp_path)
    assert done.returncode == 1
    assert "no runs of an agent called 'nobody'" in done.stderr


def test_doctor_prints_one_document(tmp_path):
    done = trace("doctor", "--json", home=tmp_path)
    document = json.loads(done.stdout)
    assert done.returncode == (0 if document["ready"] else 1)
    assert {check["id"] for check in document["checks"]} >= {"python", "vllm", "torchvision", "database", "sandbox"}
    assert all(check["fix"] for check in document["checks"] if check["level"] == "failure")


def test_doctor_says_what_is_wrong_with_a_database(tmp_path):
    (tmp_path / "trace.db").write_bytes(b"not a database" * 500)
    document = json.loads(trace("doctor", "--json", home=tmp_path).stdout)
    (database,) = [check for check in document["checks"] if check["id"] == "database"]
    assert database["level"] == "failure"
    assert database["fix"]
