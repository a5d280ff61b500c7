"""Attacks need a machine that can contain them; elsewhere the refusal is tested (tests/harness/test_sandbox.py)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.sandbox.host import ModuleFactory, containment, open_module
from tests.attacks.arena import GOOD, Arena


@pytest.fixture(scope="session")
def bystander(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleFactory]:
    """A good module in a process of its own, the same one beside all attacks."""
    if not containment().enforced:
        pytest.skip(f"nothing can be contained here: {containment().missing}")
    path = tmp_path_factory.mktemp("bystander") / "lever.py"
    path.write_text(GOOD)
    make = open_module(path)
    pids = make.pids
    yield make
    assert make.pids == pids  # none of the attacks ended it
    make.close()


@pytest.fixture
def arena(tmp_path: Path, bystander: ModuleFactory) -> Arena:
    return Arena(tmp_path, bystander)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file that holds `SECRET`."""
    path = tmp_path / "key.txt"
    path.write_text(SECRET)
    return path


SECRET = "sk-attack-4711"
