"""The spool read by a process of its own, one reading ahead of the process that writes it.

    python -m storage.read_ahead < plan.json     # [[path, position], …] and the bytes of a reading, as JSON

It answers with pickles of (path, position, `storage.reading.Reading`), and ends with the plan, or with its reader. What
it says is a help and no more: whatever it does not deliver is read by the writer itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from storage.collecting import collector_paused
from storage.reading import Reading, read, whole_lines

Plan = Sequence[tuple[Path, int]]

# Sixteen times the usual: each time that a pipe is full or empty, one of the two processes has to be woken.
_PIPE_BYTES = 1 << 20


class ReadAhead:
    """Starts the process. ``plan``: segments in the order in which `readings` will ask for them, and from which byte
    each is to be read; nothing is started for an empty one."""

    def __init__(self, plan: Plan, size: int) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._kept: tuple[str, int, Reading] | None = None
        self._fault = ""
        self._over = not plan
        if plan:
            self._start(json.dumps({"plan": [(str(path), position) for path, position in plan], "size": size}))

    def readings(self, path: Path) -> Iterator[tuple[int, Reading]]:
        """What the process has read of a segment, each with the position where it begins; none if it failed."""
        while (received := self._received()) is not None:
            if received[0] != str(path):
                self._kept = received
                return
            yield received[1:]

    def skip(self, path: Path) -> None:
        """Throw away what is left of a segment."""
        for _ in self.readings(path):
            pass

    def close(self) -> str:
        """End the process. Returns what went wrong with it before, empty if nothing."""
        failed = self._failure()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
        return failed

    def _failure(self) -> str:
        if self._fault or self._process is None:
            return self._fault
        code = self._process.poll()
        return f"it ended with status {code}" if code else ""

    def _start(self, plan: str) -> None:
        # It imports what this process would.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        try:
            self._process = subprocess.Popen(
                # -P: the folder it is started in may hold a `storage` of somebody else's.
                [sys.executable, "-P", "-m", "storage.read_ahead"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pipesize=_PIPE_BYTES,
                env=environment,
            )
            assert self._process.stdin is not None
            with self._process.stdin as to:
                to.write(plan.encode())
        except OSError as error:
            self._fault, self._over = f"it cannot be started: {error}", True

    def _received(self) -> tuple[str, int, Reading] | None:
        if self._kept is not None:
            kept, self._kept = self._kept, None
            return kept
        if self._over:
            return None
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            with collector_paused():
                return pickle.load(self._process.stdout)
        except EOFError:
            self._over = True
        except (pickle.UnpicklingError, OSError) as error:
            # What follows a broken answer is none.
            self._fault, self._over = f"its answer is broken: {error}", True
        return None


def main() -> None:
    """Read what the plan on stdin says, and write it to stdout."""
    asked: dict[str, Any] = json.load(sys.stdin)
    with collector_paused():
        for path, position in asked["plan"]:
            with contextlib.suppress(OSError), open(path, "rb") as file:
                _deliver(path, position, file, asked["size"])


def _deliver(path: str, position: int, file: Any, size: int) -> None:
    at_end = False
    while not at_end:
        data, at_end = whole_lines(file, position, size)
        if data:
            pickle.dump((path, position, read(data)), sys.stdout.buffer, pickle.HIGHEST_PROTOCOL)
            sys.stdout.buffer.flush()
        position += len(data)


if __name__ == "__main__":
    main()
