"""What is in the wheels, and what importing the recorder costs the process it lives in."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def build_wheel(source: Path, out: Path) -> list[str]:
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)],
        check=True,
        capture_output=True,
        timeout=300,
        cwd=out,
    )
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def rooms(names: list[str]) -> set[str]:
    return {name.split("/")[0] for name in names if ".dist-info/" not in name}


@pytest.fixture
def copy(tmp_path):
    """The sources without what builds leave behind, so that a build here does not see an earlier one's."""
    import shutil

    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "dist")
    for room in ("trace_sdk", "storage", "harness", "loop"):
        shutil.copytree(ROOT / room, tmp_path / "src" / room, ignore=ignore)
    for file in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / file, tmp_path / "src" / file)
    (tmp_path / "out").mkdir()
    return tmp_path / "src"


def test_the_agents_wheel_holds_the_recorder_alone(copy, tmp_path):
    names = build_wheel(copy / "trace_sdk", tmp_path / "out")
    assert rooms(names) == {"trace_sdk"}
    assert "trace_sdk/runner.py" in names
    assert "trace_sdk/py.typed" in names


def test_the_workers_wheel_holds_the_other_rooms_and_their_data(copy, tmp_path):
    names = build_wheel(copy, tmp_path / "out")
    assert rooms(names) == {"storage", "harness", "loop"}
    assert "harness/chat_templates/tools.jinja" in names
    assert any(name.startswith("storage/migrations/versions/") for name in names)


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def test_importing_the_recorder_imports_nothing_but_the_standard_library():
    code = (
        "import sys; before = set(sys.modules); import trace_sdk; "
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before} - sys.stdlib_module_names))"
    )
    assert run(code) == "['trace_sdk']"


def test_the_recorder_imports_none_of_the_other_rooms_even_when_it_records(tmp_path):
    code = (
        "import os, sys; os.environ['TRACE_HOME'] = sys.argv[1] if len(sys.argv) > 1 else "
        f"{str(tmp_path)!r}\n"
        "import trace_sdk as trace\n"
        "@trace.agent(name='a')\n"
        "def handle(text): return text\n"
        "handle('x'); trace.flush(5)\n"
        "print(sorted({'storage', 'harness', 'loop'} & {m.split('.')[0] for m in sys.modules}))"
    )
    assert run(code) == "[]"
