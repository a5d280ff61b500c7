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
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from harness import environment
from harness.sandbox import messages
from harness.sandbox.limits import Limits, SandboxError
from storage.errors import TraceError

Json = Any
T = TypeVar("T")

_RUNNER = Path(__file__).with_name("runner.py")
_CHUNK = 1 << 16
_EAGER_SECONDS = 100e-6
"""For so long an answer is looked for again and again before the host sleeps. Most are there by then, and to be woken
on another processor takes longer than what a small environment does for an answer."""
_ENCLOSING = {"reset": "goals, reference and state", "respond": "the state"}
"""Requests whose answer may enclose that to `state`, and what is asked of the module with them."""


class Refused(TraceError):
    """The kernel did not grant a step of the containment; no line of the module has run."""


@dataclass(frozen=True, slots=True)
class Enclosed:
    """The answer to a `state` that was not asked yet, as it came with another answer; nobody has looked into it."""

    raw: bytes
    nonce: str


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
        self._readable, self._writable = _poll(self._replies, select.POLLIN), _poll(self._requests, select.POLLOUT)
        hello = self._minded("start", limits.load_seconds, lambda by: messages.decode(self._read_message(by)))
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

    def request(self, op: str, seconds: float | None = None, **fields: Json) -> tuple[Json, Enclosed | None]:
        """The value of the answer, and the state's answer where it came with it, for `opened`. Raises SandboxError for
        every fault, one raised by the module included."""
        with self._lock:
            self._require_life()
            nonce = secrets.token_hex(8)
            released = [self._released.popleft() for _ in range(len(self._released))]
            body = json.dumps({"id": nonce, "op": op, "release": released, **fields}).encode()
            answer, rest = self._minded(op, seconds or self._limits.seconds, lambda by: self._exchange(body, op, by))
            kept = Enclosed(rest, nonce) if 0 < len(rest) <= self._limits.enclosed_bytes else None
            return self._value(answer, nonce, op), kept

    def opened(self, enclosed: Enclosed) -> Json:
        """The value of an enclosed answer, judged as if `state` had been asked now. Raises as `request` does."""
        with self._lock:
            self._require_life()
            answer = self._minded("state", self._limits.seconds, lambda _: self._unwrapped(enclosed))
            return self._value(answer, enclosed.nonce, "state")

    def release(self, number: int) -> None:
        """Forget an environment. Called by the garbage collector, too, hence told with the next request only."""
        self._released.append(number)

    def stop(self, reason: str = "it was closed") -> None:
        """End the process and all that it started, once a request of another thread has its answer."""
        with self._lock:
            self._fault = self._fault or reason
            self._end()

    def _require_life(self) -> None:
        if self._fault:
            raise SandboxError(f"the module's process was ended: {self._fault}", where=self.where)

    def _value(self, answer: Json, nonce: str, op: str) -> Json:
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

    def _exchange(self, body: bytes, op: str, deadline: float) -> tuple[Json, bytes]:
        """Send a request and take one message: the answer, and what it encloses as it came."""
        self._expect_silence()
        self._write(struct.pack(">I", len(body)) + body, deadline)
        raw = self._read_message(deadline)
        answer, _, enclosed = raw.partition(b"\n") if op in _ENCLOSING else (raw, b"", b"")
        return messages.decode(answer), enclosed

    def _unwrapped(self, enclosed: Enclosed) -> Json:
        self._expect_silence()
        return messages.decode(enclosed.raw)

    def _minded(self, op: str, seconds: float, take: Callable[[float], T]) -> T:
        """What ``take`` returns, given its deadline. Whatever goes wrong in it ends the process."""
        began = time.monotonic()
        also = f" (it asks for {_ENCLOSING[op]} as well)" if op in _ENCLOSING else ""
        try:
            return take(began + seconds)
        except TimeoutError:
            raise self._give_up(f"{op} took longer than {seconds:g} s{also}") from None
        except _TooLong as error:
            allowed = self._limits.message_bytes
            raise self._give_up(f"its answer to {op} has {error} bytes, {allowed} are allowed") from None
        except (BrokenPipeError, EOFError):
            raise self._give_up(f"it ended during {op}{self._how()}{also}") from None
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
        if self._readable.poll(0):
            if os.read(self._replies, 1):
                raise ValueError("it spoke without being asked")
            raise EOFError

    def _write(self, data: bytes, deadline: float) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._requests, rest) :]
            except BlockingIOError:
                _wait(self._writable, deadline)

    def _read_message(self, deadline: float) -> bytes:
        data = bytearray()
        size: int | None = None
        while size is None or len(data) < size:
            _wait(self._readable, deadline, eager=_EAGER_SECONDS)
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


def _poll(descriptor: int, event: int) -> select.poll:
    poll = select.poll()
    poll.register(descriptor, event)
    return poll


def _wait(poll: select.poll, deadline: float, eager: float = 0.0) -> None:
    sleeps = time.monotonic() + eager
    while time.monotonic() < sleeps:
        if poll.poll(0):
            return
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise TimeoutError
