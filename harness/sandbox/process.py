"""The host's side of one runner process: start it, ask it, and end it for certain.

Nothing that arrives is believed. A message that is too long, late, not JSON, not the answer to the question that was
asked, or that nobody asked for, ends the process with everything in it; the next request says why.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness import environment
from harness.sandbox import messages
from harness.sandbox.limits import Limits, SandboxError
from storage.errors import TraceError

Json = Any

_RUNNER = Path(__file__).with_name("runner.py")
_CHUNK = 1 << 16


class Refused(TraceError):
    """The kernel did not grant a step of the containment; no line of the module has run."""


class RunnerProcess:
    """One contained (or, with ``contained=False``, plain) process. Started by the constructor.

    ``layers`` names what contains it. ``where`` is named in errors. One request at a time; threads wait for each other.
    Raises Refused where it cannot be contained, SandboxError where it cannot be started.
    """

    def __init__(self, limits: Limits, *, contained: bool, where: str = "") -> None:
        self.where = where
        self.busy_seconds = 0.0
        self._limits = limits
        self._lock = threading.RLock()
        self._released: deque[int] = deque()
        self._fault = ""
        self._requests, self._replies, self._ended, self.pid = _start(limits, contained)
        self._end = weakref.finalize(self, self._ended)
        hello = self._exchange(None, limits.load_seconds, "start")
        if not isinstance(hello, dict) or "ready" not in hello:
            self.stop()
            refused = hello.get("refused") if isinstance(hello, dict) else None
            raise Refused(f"foreign code cannot be contained here: {refused}", where=where)
        self.layers: tuple[str, ...] = tuple(hello["ready"])

    @property
    def alive(self) -> bool:
        return not self._fault

    def load(self, path: Path, source: str, *, contained: bool) -> None:
        """Import the module ``source``. A contained process gets the text of the contract, too, and of ``path`` the
        name alone."""
        fields: dict[str, Json] = {"name": f"environment_{path.stem}", "file": path.name, "source": source}
        if contained:
            fields["contract"] = Path(environment.__file__).read_text(encoding="utf-8")
        else:
            fields["file"] = str(path)
        self.request("load", self._limits.load_seconds, **fields)

    def request(self, op: str, seconds: float | None = None, **fields: Json) -> Json:
        """The value of the answer. Raises SandboxError for every fault, one raised by the module included."""
        with self._lock:
            if self._fault:
                raise SandboxError(f"the module's process was ended: {self._fault}", where=self.where)
            nonce = secrets.token_hex(8)
            released = [self._released.popleft() for _ in range(len(self._released))]
            request = {"id": nonce, "op": op, "release": released, **fields}
            answer = self._exchange(request, seconds or self._limits.seconds, op)
            return self._opened(answer, nonce, op)

    def release(self, number: int) -> None:
        """Forget an environment. Called by the garbage collector, too, hence told with the next request only."""
        self._released.append(number)

    def stop(self, reason: str = "it was closed") -> None:
        """End the process and all that it started, once a request of another thread has its answer."""
        with self._lock:
            self._fault = self._fault or reason
            self._end()

    def _opened(self, answer: Json, nonce: str, op: str) -> Json:
        if isinstance(answer, dict) and answer.get("id") == nonce:
            if answer.keys() == {"id", "value"}:
                return answer["value"]
            error = answer.get("error")
            if answer.keys() == {"id", "error"} and isinstance(error, dict):
                line = error.get("line")
                where = f"{self.where}:{line}" if isinstance(line, int) else self.where
                said = _one_line(f"{error.get('type')!s:.100}: {error.get('message')!s:.500}")
                raise SandboxError(f"the module raises in {op}: {said}", where=where)
        raise self._give_up(f"its answer to {op} is not the one to this request")

    def _exchange(self, request: Json, seconds: float, op: str) -> Json:
        """Send ``request`` (None: nothing, it speaks first) and take one message, within ``seconds``."""
        began = time.monotonic()
        body = b"" if request is None else json.dumps(request).encode()
        try:
            if request is not None:
                self._expect_silence()
                self._write(struct.pack(">I", len(body)) + body, began + seconds)
            raw = self._read_message(began + seconds)
            return messages.decode(raw)
        except TimeoutError:
            raise self._give_up(f"{op} took longer than {seconds:g} s") from None
        except _TooLong as error:
            allowed = self._limits.message_bytes
            raise self._give_up(f"its answer to {op} has {error} bytes, {allowed} are allowed") from None
        except (BrokenPipeError, EOFError):
            raise self._give_up(f"it ended during {op}{self._how()}") from None
        except ValueError as error:
            raise self._give_up(f"its answer to {op} is refused: {error}") from None
        except BaseException:  # interrupted half-way: the next answer would be to this question
            self.stop("a request was interrupted")
            raise
        finally:
            self.busy_seconds += time.monotonic() - began

    def _give_up(self, reason: str) -> SandboxError:
        self.stop(reason)
        return SandboxError(f"the module's process was ended: {reason}", where=self.where)

    def _how(self) -> str:
        """How the process ended, if that is known by now. The guard passes signals on as 128 + n."""
        code = self._ended.wait()
        if code is None:
            return ""
        killed = code - 128 in set(signal.Signals)
        return f", by {signal.Signals(code - 128).name}" if killed else f", with status {code}"

    def _expect_silence(self) -> None:
        if _ready(self._replies, select.POLLIN, 0.0) and os.read(self._replies, 1):
            raise ValueError("it spoke without being asked")

    def _write(self, data: bytes, deadline: float) -> None:
        rest = memoryview(data)
        while rest:
            with contextlib.suppress(BlockingIOError):
                rest = rest[os.write(self._requests, rest) :]
                continue
            _wait(self._requests, select.POLLOUT, deadline)

    def _read_message(self, deadline: float) -> bytes:
        data = bytearray()
        size: int | None = None
        while size is None or len(data) < size:
            _wait(self._replies, select.POLLIN, deadline)
            part = os.read(self._replies, _CHUNK)
            if not part:
                raise EOFError
            data += part
            if size is None and len(data) >= 4:
                size = 4 + struct.unpack(">I", data[:4])[0]
                if size - 4 > self._limits.message_bytes:
                    raise _TooLong(size - 4)
        if len(data) > size:
            raise ValueError("there is more than one")
        return bytes(data[4:])


def _one_line(text: str) -> str:
    """What a module says of its error goes to a terminal: no line breaks, no escape sequences."""
    return "".join(c if c.isprintable() else " " for c in text)


class _TooLong(Exception):
    pass


class _Ending:
    """Ends a started process; a function object, so that it holds no reference to its `RunnerProcess`."""

    def __init__(self, popen: subprocess.Popen[bytes], descriptors: tuple[int, ...]) -> None:
        self._popen = popen
        self._descriptors = descriptors
        self._owner = os.getpid()

    def wait(self) -> int | None:
        """The exit status, waited for a second; only asked after the process closed its pipe."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._popen.wait(1.0)
        return None

    def __call__(self) -> None:
        if os.getpid() != self._owner:  # a forked copy of the host ends; the process is not its own
            return
        # The guard sees the end of its lifeline, kills the first process of the namespace (and with it all others),
        # and reaps it, which nobody does in a container without an init.
        for descriptor in self._descriptors:
            os.close(descriptor)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(5.0)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()


def _start(limits: Limits, contained: bool) -> tuple[int, int, _Ending, int]:
    theirs_in, requests = os.pipe()
    replies, theirs_out = os.pipe()
    watched, lifeline = os.pipe()
    theirs = (theirs_in, theirs_out, watched)
    config = {
        "requests": theirs_in,
        "replies": theirs_out,
        "lifeline": watched,
        "contain": contained,
        "limits": asdict(limits),
        "path": [] if contained else [p or os.getcwd() for p in sys.path],
    }
    # -I and -S: neither the environment, nor the folder it is started in, nor site packages have a say.
    flags = ["-I", "-S"] if contained else ["-I"]
    try:
        popen = subprocess.Popen(
            [sys.executable, *flags, "-B", "-X", "utf8", str(_RUNNER), json.dumps(config)],
            env={},
            cwd="/" if contained else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=theirs,
            start_new_session=True,
        )
    except OSError as error:
        for descriptor in (requests, replies, lifeline):
            os.close(descriptor)
        raise SandboxError(f"the sandbox's process cannot be started: {error}") from error
    finally:
        for descriptor in theirs:
            os.close(descriptor)
    for descriptor in (requests, replies):
        os.set_blocking(descriptor, False)
    return requests, replies, _Ending(popen, (lifeline, requests, replies)), popen.pid


def _wait(descriptor: int, event: int, deadline: float) -> None:
    if not _ready(descriptor, event, max(0.0, deadline - time.monotonic())):
        raise TimeoutError


def _ready(descriptor: int, event: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(seconds * 1000))
