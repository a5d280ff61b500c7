"""The command line as a user calls it, on a home folder of the test's own: see the fixture `home` in conftest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from loop.commands.app import app
from tests.storage.importers.samples import SAMPLES


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def document(*arguments: object, exit_code: int = 0) -> Any:
    """What the command prints with --json."""
    result = run(*arguments, "--json")
    assert result.exit_code == exit_code, result.output
    return json.loads(result.stdout)


def sample(folder: Path, name: str) -> Path:
    """A file of the format ``name``."""
    path = folder / SAMPLES[name].file
    path.write_bytes(SAMPLES[name].data)
    return path
