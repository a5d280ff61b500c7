"""Environments from files: our own JSON spec, or a Python module that exposes ``make()``.

python -m loop.synthesis.loading FILE SEED…     prints one fingerprint a line, for `elsewhere` of admission
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.environment import Environment
from storage.errors import TraceError

Make = Callable[[], Environment]


def load_environment(path: Path, *, trust_module: bool = False) -> Make:
    """A factory of the environment in ``path``.

    A module is code of someone else and runs in this process, so it is only loaded when ``trust_module`` says so.
    Raises TraceError for a file that is missing, broken, or not trusted.
    """
    if not path.is_file():
        raise TraceError("there is no such environment file", where=str(path), fix="Name a .json spec or a .py module.")
    if path.suffix == ".py":
        if not trust_module:
            raise TraceError(
                "this is a Python module, and there is no sandbox to run it in",
                where=str(path),
                fix="Read it, and pass --allow-weaker-sandbox to run it with this process's rights.",
            )
        return _module(path)
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, UnicodeDecodeError) as error:
        raise TraceError(f"the environment file cannot be read: {error}", where=str(path)) from error
    return from_spec(raw, str(path))


def from_spec(raw: Any, where: str = "") -> Make:
    """A factory from a spec. Raises TraceError when it is none."""
    from loop.synthesis.induced import InducedEnvironment

    try:
        first = InducedEnvironment.from_json(raw)
    except (ValueError, AttributeError) as error:
        fix = "Make it anew with `trace-sdk environments synthesize`."
        raise TraceError(str(error) or "not an environment", where=where, fix=fix) from error
    return first.copy


def _module(path: Path) -> Make:
    spec = importlib.util.spec_from_file_location(f"environment_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise TraceError("the module cannot be loaded", where=str(path))
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise TraceError(f"the module raises {type(error).__name__}: {error}", where=str(path)) from error
    make = getattr(module, "make", None)
    if not callable(make):
        raise TraceError("the module has no function make()", where=str(path), fix="Let make() return an environment.")
    return make  # type: ignore[return-value]  # the conformance of what it makes is what admission checks


def fingerprint_elsewhere(path: Path, seeds: Sequence[int]) -> list[str]:
    """Fingerprints of seeds, made in a new process with another hash seed. Raises TraceError when that fails."""
    command = [sys.executable, "-m", "loop.synthesis.loading", str(path.resolve()), *map(str, seeds)]
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONHASHSEED": "4242", "PYTHONPATH": root}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise TraceError(f"the environment fails in another process: {last}", where=str(path))
    return done.stdout.split()


def main(arguments: Sequence[str]) -> None:
    """Print a fingerprint for each seed. The caller has decided to trust the file before."""
    from harness.admission import fingerprint

    env = load_environment(Path(arguments[0]), trust_module=True)()
    for seed in arguments[1:]:
        print(fingerprint(env, int(seed)))


if __name__ == "__main__":
    main(sys.argv[1:])
