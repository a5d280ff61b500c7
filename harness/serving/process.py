"""A child process that is ended for certain: on `stop`, at interpreter exit, and when this process is killed."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

_GUARD = Path(__file__).with_name("guard.py")


class OwnedProcess:
    """A command in its own process group, under `guard.py`. Started by the constructor.

    ``stdin``, ``stdout`` and ``stderr`` are as in `subprocess.Popen`. `stop` may be called any number of times.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: int | IO[Any] | None = subprocess.DEVNULL,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
    ) -> None:
        watched, self._lifeline = os.pipe()
        try:
            self.popen = subprocess.Popen(
                [sys.executable, "-I", str(_GUARD), str(watched), *command],
                env=dict(env) if env is not None else None,
                cwd=cwd,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=(watched,),
                start_new_session=True,
            )
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(watched)
        self._stopped = False
        atexit.register(self.stop)

    @property
    def returncode(self) -> int | None:
        """Exit status of the command (128 + n when a signal ended it), None while it runs."""
        return self.popen.poll()

    def stop(self, grace: float = 10.0) -> None:
        """TERM to the whole group, KILL after ``grace`` seconds. Returns when the group's leader is gone."""
        if self._stopped:  # the group's number may belong to somebody else by now
            return
        self._stopped = True
        atexit.unregister(self.stop)
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + grace
        while self.popen.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        self._signal(signal.SIGKILL)
        self.popen.wait()
        os.close(self._lifeline)

    def _signal(self, number: int) -> None:
        # The group may outlive its leader (a worker of a crashed server), so this is tried in any case.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, number)
