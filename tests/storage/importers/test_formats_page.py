"""Every command and snippet of docs/formats.md runs as it stands, and the page names every format."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loop.commands.app import app
from storage.importers import FORMATS
from tests.storage.importers.samples import SAMPLES

PAGE = (Path(__file__).resolve().parents[3] / "docs/formats.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE, re.S | re.M)
COMMANDS = [line for block in re.findall(r"^```console\n(.*?)^```", PAGE, re.S | re.M) for line in block.splitlines()]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRACE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TRACE_DATABASE_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("snippet", SNIPPETS, ids=[str(n) for n in range(len(SNIPPETS))])
def test_the_pages_snippets_run(snippet: str, folder: Path) -> None:
    exec(compile(snippet, "docs/formats.md", "exec"), {"__name__": "snippet"})


def test_the_pages_commands_run(folder: Path) -> None:
    assert len(COMMANDS) > 5
    (folder / "tools.json").write_text(json.dumps([{"type": "function", "function": {"name": "find"}}]))
    for line in COMMANDS:
        program, command, *rest = shlex.split(line)
        assert program == "trace-sdk"
        if command == "import":
            (folder / rest[1]).write_bytes(SAMPLES[rest[0]].data)
        result = CliRunner().invoke(app, [command, *rest])
        assert result.exit_code == 0, (line, result.output, result.exception)


def test_the_page_names_every_format() -> None:
    assert set(re.findall(r"^\| `([a-z0-9-]+)` \|", PAGE, re.M)) >= set(FORMATS)
