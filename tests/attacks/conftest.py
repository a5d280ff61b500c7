"""Attacks need a machine that can contain them; elsewhere the refusal is tested (tests/harness/test_sandbox.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.sandbox.host import containment
from tests.attacks.arena import Arena


@pytest.fixture
def arena(tmp_path: Path) -> Arena:
    if not containment().enforced:
        pytest.skip(f"nothing can be contained here: {containment().missing}")
    return Arena(tmp_path)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file that holds `SECRET`."""
    path = tmp_path / "key.txt"
    path.write_text(SECRET)
    return path


SECRET = "sk-attack-4711"
