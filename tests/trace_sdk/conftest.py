from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import trace_sdk as trace


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home of its own for the process's recorder, flushed before and after."""
    for name in ("TRACE_GATEWAY", "TRACE_DISABLED", "TRACE_HOME"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "home"
    trace.init(home=folder)
    yield folder
    trace.init(home=tmp_path / "after")
