"""Environments from files: our own JSON spec, or a Python module that exposes ``make()``.

A module runs in the sandbox, see `harness.sandbox.host`. A spec is data, and is played in this process.

python -m loop.synthesis.loading SPEC SEED…     prints one fingerprint a line, for `elsewhere` of admission
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.environment import Environment
from harness.sandbox.host import open_module
from storage.errors import TraceError

Make = Callable[[], Environment]


def load_environment(path: Path, *, allow_weaker: bool = False) -> Make:
    """A factory of the environment in ``path``.

    A module (.py) is code of someone else: it runs in the sandbox, or with ``allow_weaker`` in a plain process of its
    own, with this user's rights. Raises TraceError for a file that is missing or broken, or that cannot be contained.
    """
    if not path.is_file():
        raise TraceError("there is no such environment file", where=str(path), fix="Name a .json spec or a .py module.")
    if path.suffix == ".py":
        return open_module(path, allow_weaker=allow_weaker)
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, UnicodeDecodeError) as error:
        raise TraceError(f"the environment file cannot be read: {error}", where=str(path)) from error
    return from_spec(raw, str(path))


def from_spec(raw: Any, where: str = "") -> Make:
    """A factory from a spec. Raises TraceError when it is none."""
    from loop.synthesis.generated import FORMAT, open_spec
    from loop.synthesis.induced import InducedEnvironment

    if isinstance(raw, dict) and raw.get("format") == FORMAT:
        return open_spec(raw, where=where)
    try:
        first = InducedEnvironment.from_json(raw)
    except (ValueError, AttributeError) as error:
        fix = "Make it anew with `trace-sdk environments synthesize`."
        raise TraceError(str(error) or "not an environment", where=where, fix=fix) from error
    return first.copy


def fingerprint_elsewhere(path: Path, seeds: Sequence[int], *, allow_weaker: bool = False) -> list[str]:
    """Fingerprints of seeds, made in a new process with another hash seed. Raises TraceError when that fails.

    A module's new process is one more sandbox: Python draws a hash seed for each.
    """
    if path.suffix == ".py":
        from harness.admission import fingerprint

        env = open_module(path, allow_weaker=allow_weaker)()
        return [fingerprint(env, seed) for seed in seeds]
    command = [sys.executable, "-m", "loop.synthesis.loading", str(path.resolve()), *map(str, seeds)]
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONHASHSEED": "4242", "PYTHONPATH": root}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise TraceError(f"the environment fails in another process: {last}", where=str(path))
    return done.stdout.split()


def main(arguments: Sequence[str]) -> None:
    """Print a fingerprint for each seed."""
    from harness.admission import fingerprint

    env = load_environment(Path(arguments[0]))()
    for seed in arguments[1:]:
        print(fingerprint(env, int(seed)))


if __name__ == "__main__":
    main(sys.argv[1:])
