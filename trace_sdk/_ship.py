"""Sends the segments of the outbox to a collector, in a thread of its own, and removes those it has acknowledged.

The collector is the only one who knows how far a segment has come: it takes bytes only at the position where it
stands, and says that position otherwise. So nothing is kept here, a kill on either side at any moment costs a
repeated request at most, and nothing is stored twice. One process ships for all that share a home, oldest segment
first, so that a run's start arrives before what belongs to it.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import random
import threading
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from trace_sdk import _log
from trace_sdk._json import as_dict, loads
from trace_sdk._spool import writer_is_dead

try:
    import fcntl
except ImportError:
    fcntl = None

_BATCH_BYTES = 2**20
_GATHER = 0.2
_LOOK = 2.0
"""Seconds after which the outbox is looked at unasked: other processes of this home write there too."""
_LONGEST_PAUSE = 60.0
_CONNECT_TIMEOUT, _ANSWER_TIMEOUT = 5.0, 90.0
_REFUSED = frozenset({400, 413, 422})


class _Later(Exception):
    """Not now: the collector cannot be reached, or does not take it. Everything stays where it is."""


@dataclass(frozen=True, slots=True)
class _Taken:
    """The collector's word on a segment: where it stands, whether it took what was sent, whether lines were broken."""

    position: int
    accepted: bool
    broken: bool


class Shipper:
    """One process's end of the shipping. `wake` after each write; `finish` at the end of the process."""

    def __init__(self, outbox: Path, url: str, token: str | None) -> None:
        self._outbox = outbox
        self._url = url.rstrip("/") + "/v1/spool/"
        self._headers = {"content-encoding": "gzip", "content-type": "application/x-ndjson"}
        if token:
            self._headers["authorization"] = f"Bearer {token}"
        self._acknowledged: dict[str, int] = {}
        self._set_aside: set[str] = set()
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._failures = 0
        self._deadline = float("inf")
        self._leads: BinaryIO | None = None
        self._client: Any = None
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Something was written. Starts the thread with the first call; never raises."""
        self._wake.set()
        if self._thread is None and not self._stopped.is_set():
            thread = threading.Thread(target=self._work, name="trace-sdk-shipper", daemon=True)
            self._thread = thread
            with contextlib.suppress(RuntimeError):  # the interpreter is ending: `finish` ships
                # In no run's context, though the event that woke the writer was one's.
                contextvars.Context().run(thread.start)

    def finish(self, timeout: float) -> bool:
        """Ship what is left, for at most ``timeout`` seconds, and not at all while the collector does not answer.
        True when the outbox has nothing left that is this process's to ship."""
        self._deadline = time.monotonic() + timeout
        self._stopped.set()
        self._wake.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(timeout)
            if self._thread.is_alive():
                return False
        done = self._failures == 0 and self._pass()
        self.let_go()
        return done

    def let_go(self) -> None:
        """Another process may ship from now on. A forked child does this too: its parent goes on shipping."""
        if self._leads is not None:
            # Closing, not unlocking: after a fork the lock is the parent's too, and stays with it.
            self._leads.close()
            self._leads = None

    def _work(self) -> None:
        while not self._stopped.is_set():
            self._wake.wait(_LOOK)
            self._wake.clear()
            self._stopped.wait(_GATHER)
            if not self._stopped.is_set() and not self._pass():
                pause = min(_LONGEST_PAUSE, 0.5 * 2 ** min(self._failures, 10))
                self._stopped.wait(pause * random.uniform(0.5, 1.0))

    def _pass(self) -> bool:
        """Ship what is there, oldest first. False when the collector did not take it."""
        try:
            if self._lead():
                for path in sorted(self._outbox.glob("*.jsonl")):
                    if path.name not in self._set_aside:
                        self._ship(path)
            self._failures = 0
            return True
        except _Later:
            self._failures += 1
        except Exception as error:  # the agent has its own work, whatever is wrong with ours
            self._failures += 1
            _log.say_once("ship", "trace.shipping_failed", error=repr(error), kept_in=str(self._outbox))
        return False

    def _lead(self) -> bool:
        """Whether this process ships for its home: the first one does, and another when it has ended."""
        if self._leads is not None or fcntl is None:
            return True
        try:
            self._leads = _locked(self._outbox / "shipper.lock", "ab")
        except OSError:  # no locks here: each process ships, and the collector takes each byte once all the same
            return True
        return self._leads is not None

    def _ship(self, path: Path) -> None:
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return
        with file:
            dead = writer_is_dead(file)
            # After the lock: what a writer leaves behind is complete.
            size = os.fstat(file.fileno()).st_size
            while size:
                position = self._acknowledged.get(path.name, 0)
                data = _whole_lines(file, position, dead)
                final = dead and position + len(data) >= size
                if not data and not final:
                    return
                taken = self._send(path, position, data, final)
                if taken is None:
                    return
                self._acknowledged[path.name] = taken.position
                if final and taken.accepted:
                    self._remove(path, taken.broken)
                    return
            if dead:
                self._remove(path, broken=False)

    def _send(self, path: Path, position: int, data: bytes, final: bool) -> _Taken | None:
        """One request. None when the collector refuses the segment, which is then set aside. Raises _Later."""
        status, reply = self._post(path.stem, position, data, final)
        stands = reply.get("position")
        if status in (200, 409) and isinstance(stands, int):
            if status == 200 or stands != position:
                return _Taken(stands, status == 200, bool(reply.get("broken")))
        elif status in _REFUSED:
            self._set_aside.add(path.name)
            _log.say("trace.collector_refuses_a_segment", segment=str(path), status=status, reason=reply.get("error"))
            return None
        if status in (401, 403):
            _log.say_once("ship_token", "trace.collector_refuses_the_token", url=self._url, status=status)
        else:
            reason = reply.get("error") or "this is not a collector"
            _log.say_once("ship_status", "trace.collector_does_not_take_it", url=self._url, status=status, error=reason)
        raise _Later

    def _post(self, name: str, position: int, data: bytes, final: bool) -> tuple[int, dict[str, Any]]:
        import httpx  # only who ships pays for it

        left = self._deadline - time.monotonic()
        if left <= 0:
            raise _Later
        if self._client is None:
            self._client = httpx.Client()
        packed = zlib.compressobj(1, zlib.DEFLATED, 31)
        timeout = httpx.Timeout(min(left, _ANSWER_TIMEOUT), connect=min(left, _CONNECT_TIMEOUT))
        try:
            answer = self._client.post(
                self._url + name,
                params={"position": position, "final": int(final)},
                headers=self._headers,
                content=packed.compress(data) + packed.flush(),
                timeout=timeout,
            )
        except httpx.HTTPError as error:
            _log.say_once(
                "ship_reach", "trace.collector_unreachable", url=self._url, error=repr(error), kept_in=str(self._outbox)
            )
            raise _Later from None
        return answer.status_code, as_dict(loads(answer.content))

    def _remove(self, path: Path, broken: bool) -> None:
        self._acknowledged.pop(path.name, None)
        with contextlib.suppress(OSError):
            if broken:
                path.rename(path.with_name(path.name + ".broken"))
            else:
                path.unlink()


def _locked(path: Path, mode: str) -> Any:
    """The file, locked for as long as it is open; None while somebody else holds it. Raises OSError."""
    file = path.open(mode)
    try:
        assert fcntl is not None
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        return file
    except BlockingIOError:
        file.close()
        return None
    except OSError:
        file.close()
        raise


def _whole_lines(file: BinaryIO, position: int, dead: bool) -> bytes:
    """About a megabyte of whole lines from ``position`` on; what a dead writer has torn comes along, at the end."""
    file.seek(position)
    data = file.read(_BATCH_BYTES)
    if len(data) == _BATCH_BYTES and not data.endswith(b"\n"):
        data += file.readline()
    return data if dead else data[: data.rfind(b"\n") + 1]
