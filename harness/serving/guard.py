"""Run a command so that it cannot outlive the process that asked for it: `guard.py FD COMMAND…`.

FD is the read end of a pipe whose write end only the owner holds, so the owner's death by any means, `kill -9`
included, is an end of file here. PR_SET_PDEATHSIG alone would not do: it fires when the *thread* that forked
ends, exists on Linux only, and does not reach the workers that the command starts. Those are in our process
group, which is what gets TERM and, after a grace period, KILL.

Runs by path with `python -I`, on the standard library alone. Exits with the command's status.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time

GRACE = 8.0
"""Seconds between TERM and KILL."""


def main() -> int:
    pipe = int(sys.argv[1])
    owner = os.getppid()
    # The owner stops the group with TERM, which reaches us too: we stay to see that it ends.
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    child = subprocess.Popen(sys.argv[2:], preexec_fn=_default_signals)
    while child.poll() is None:
        readable, _, _ = select.select([pipe], [], [], 0.2)
        if (readable and os.read(pipe, 1) == b"") or os.getppid() != owner:
            _end(child)
            break
    # Workers that outlived a crashed command still hold its memory and ports.
    status = child.wait()
    _signal_group(signal.SIGTERM)
    return status if status >= 0 else 128 - status


def _default_signals() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the owner, which then stops us in order


def _end(child: subprocess.Popen[bytes]) -> None:
    _signal_group(signal.SIGTERM)
    deadline = time.monotonic() + GRACE
    while child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    if child.poll() is None:
        _signal_group(signal.SIGKILL)  # ends this process as well, which is what is wanted


def _signal_group(number: int) -> None:
    # Only a group of our own: `guard.py` started by hand in a shell's group must not take the shell along.
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), number)


if __name__ == "__main__":
    sys.exit(main())
