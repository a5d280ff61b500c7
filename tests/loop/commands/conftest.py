from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from loop.commands.logs import to_stderr


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home folder that does not exist yet, as the environment names it to the commands; logs go to stderr."""
    monkeypatch.setenv("TRACE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TRACE_DATABASE_URL", raising=False)
    to_stderr()
    yield tmp_path / "home"
    structlog.reset_defaults()
