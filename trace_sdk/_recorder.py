"""The one recorder of a process: a bounded queue that the agent appends to, and a thread that writes it out.

The agent's side never waits for the disk and never sees an exception. The thread starts with the first event,
once per process id: a forked child starts its own, on its own segment. What cannot be kept is counted, and
said once.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import errno
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trace_sdk import _ids, _log
from trace_sdk._config import Settings, from_environment
from trace_sdk._redact import Redaction
from trace_sdk._spool import Spool

if TYPE_CHECKING:
    from trace_sdk._ship import Shipper

Render = Callable[[Any], dict[str, Any] | None]
"""Turns what the agent's side put aside into an event; runs in the writer's thread. None: nothing to write."""

_WRITE_BYTES = 2**20
_PROVISIONAL_AFTER = 0.5
_EXIT_TIMEOUT = 5.0
_SHARE = 0.001
_LOOKS = 10
_FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EAGAIN, errno.EINTR})


class _Receipt:
    """Put into the queue by a flush: what went before it is written, or is not, when ``done`` is set."""

    __slots__ = ("done", "kept")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.kept = False


class Recorder:
    """Use the module's `recorder`; `configure` before the first event, or let the environment decide."""

    def __init__(self) -> None:
        self.active: Settings | None = None
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._drain_lock = threading.RLock()
        self._wake = threading.Event()
        # Appended to without a lock: one append is atomic, and a finalizer that the garbage collector runs in the
        # middle of a `put` may put something itself.
        self._queue: collections.deque[tuple[Render | None, Any, int]] = collections.deque()
        # Bytes put since the writer last took the queue (threads can miss each other's, but only until then), bytes
        # that the writer holds, and how far the first may grow before the slow path looks at both.
        self._fresh = self._held = 0
        self._room = -1
        # Something is to be done with the next event: start the thread, wake it, or write without it.
        self._attention = True
        self._urgent = self._failing = self._stopping = False
        self._progress = 0.0
        self._thread: threading.Thread | None = None
        self._spool: Spool | None = None
        self._shipper: Shipper | None = None
        self._redaction: Redaction | None = None
        self._backlog: list[tuple[bytes, list[str], list[str], int, int]] = []
        self.open_calls: dict[str, Any] = {}
        self.open_generators: dict[int, Any] = {}
        self.dropped = 0
        self.pid = os.getpid()

    @property
    def settings(self) -> Settings:
        while self.active is None:
            try:
                self.active = from_environment()
            except ValueError as error:  # the agent did not ask for this: record without it rather than fail
                wrong = "TRACE_SHIP_TO" if "TRACE_SHIP_TO" in str(error) else "TRACE_GATEWAY"
                _log.say_once(wrong, "trace.settings_ignored", problem=str(error))
                os.environ.pop(wrong, None)
        return self.active

    def configure(self, settings: Settings) -> None:
        """Take new settings; what was recorded before is written under the old ones first. Raises re.error for a
        redaction pattern that is none."""
        redaction = Redaction(settings.redact, settings.secrets)
        self.flush(_EXIT_TIMEOUT)
        with self._drain_lock:
            if self._spool is not None:
                self._spool.close()
            if self._shipper is not None:
                self._shipper.finish(_EXIT_TIMEOUT)
            self._spool, self._shipper, self._redaction, self.active = None, None, redaction, settings
            self._room = -1

    # The agent's side.

    def put(self, render: Render, data: object, size: int) -> None:
        """Append one event of about ``size`` bytes. Never blocks on the disk; never raises."""
        fresh = self._fresh + size
        if fresh > self._room:
            if not self._crowded(size):
                return
            fresh = self._fresh + size
        self._fresh = fresh
        self._queue.append((render, data, size))
        if self._attention:
            self._attend()

    def _crowded(self, size: int) -> bool:
        """The queue is half full, or was never looked at; False when there is no room for the event."""
        limit = self.settings.queue_bytes
        self._room = limit // 2 - self._held
        used = self._held + self._fresh + size
        if used * 2 <= limit:
            return True
        self._wake.set()
        if used > limit:
            with self._lock:
                self.dropped += 1
            _log.say_once("full", "trace.queue_full_events_dropped", queue_bytes=limit)
            return False
        # Three quarters full because the agent's threads keep the interpreter from the writer's, not because of
        # the disk: hand it over for a moment. Where the writer makes no progress this does not wait at all.
        if used * 4 > limit * 3 and not self._failing and time.monotonic() - self._progress < 0.05:
            time.sleep(0.0005)
        return True

    def _attend(self) -> None:
        if self._stopping:  # other exit handlers and finalizers: the thread is gone, what they put is written at once
            if self._thread is None:
                with contextlib.suppress(Exception):
                    self._drain()
            return
        if self._thread is None:
            self._start()
        self._attention = self._thread is None
        self._wake.set()

    def flush(self, timeout: float | None = None, *, sync: bool = False) -> bool:
        """Wait until everything put so far is in the spool (on the disk, with ``sync``). False when it isn't."""
        if self._thread is None and not self._queue and not self._backlog:
            return self.dropped == 0
        receipt = _Receipt()
        self._queue.append((None, receipt, 0))
        self._urgent = True
        self._wake.set()
        if self._thread is None or not self._thread.is_alive():
            self._drain()
        receipt.done.wait(timeout)
        if receipt.kept and sync:
            try:
                with self._drain_lock:
                    if self._spool is not None:
                        self._spool.sync()
            except OSError as error:
                self._complain(error)
                return False
        return receipt.kept

    def open_call(self, call_id: str, call: object) -> None:
        """A model call is under way: if it takes long, its request is written before its response is there."""
        self.open_calls[call_id] = call
        if self._attention:
            self._attend()

    # The writer's side.

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None or self._stopping:
                return
            thread = threading.Thread(target=self._work, name="trace-sdk-writer", daemon=True)
            self._thread = thread
        _register_exit()
        try:
            thread.start()
        except RuntimeError:  # no more threads, or the interpreter is ending: what is queued is written at exit
            self._thread = None

    def _work(self) -> None:
        empty = 0
        while not self._stopping:
            if not self._queue and not self._backlog and not self._urgent:
                empty += 1
                # While there was something lately it looks again by itself: waking it costs the agent more than
                # the event does.
                if empty > _LOOKS and not self.open_calls:
                    self._attention = True
                    if not self._queue and not self._urgent and not self._stopping:
                        self._wake.wait()
                    self._attention = False
            else:
                empty = 0
            self._wake.clear()
            if not self._urgent and not self._stopping:
                self._wake.wait(1.0 if self._failing else self.settings.interval)
            try:
                self._drain()
            except Exception as error:
                _log.say_once("writer", "trace.writer_error", error=repr(error))

    def _drain(self) -> None:
        with self._drain_lock:
            self._urgent = False
            self._add_provisional()
            self._fresh = 0
            items: list[tuple[Render, Any, int]] = []
            receipts: list[_Receipt] = []
            # No more than there are now: who puts all the time does not keep the writer from writing.
            for _ in range(len(self._queue)):
                render, data, size = self._queue.popleft()
                if render is None:
                    receipts.append(data)
                else:
                    items.append((render, data, size))
                    self._held += size
            if not items and not self._backlog and not receipts:
                return
            self._progress = time.monotonic()
            kept = False
            try:
                self._render(items)
                kept = self._write_backlog()
            finally:  # whatever happened, nobody goes on waiting for these
                for receipt in receipts:
                    receipt.kept = kept
                    receipt.done.set()
                self._room = self.settings.queue_bytes // 2 - self._held

    def _add_provisional(self) -> None:
        if not self.open_calls:
            return
        now = time.time()
        for call in list(self.open_calls.values()):
            if not call.provisional and now - call.started > _PROVISIONAL_AFTER:
                call.provisional = True
                self.put(call.render_provisional, None, call.size)

    def _render(self, items: list[tuple[Render, Any, int]]) -> None:
        """Events to lines, gathered to writes of about a megabyte, at the end of the backlog."""
        redaction = self._redaction
        if redaction is None:
            redaction = self._redaction = Redaction(self.settings.redact, self.settings.secrets)
        lines: list[bytes] = []
        started: list[str] = []
        ended: list[str] = []
        pending = size = count = 0
        for render, data, weight in items:
            size += weight
            count += 1
            try:
                event = render(data)
                if event is not None:
                    line = redaction.line(event)
                    lines.append(line)
                    pending += len(line)
                    kind = event["type"]
                    if kind == "start":
                        started.append(event["id"])
                    elif kind == "end":
                        ended.append(event["id"])
            except Exception as error:  # fails closed: what cannot be redacted or encoded is not written
                self.dropped += 1
                _log.say_once("render", "trace.event_dropped", error=repr(error))
            if pending > _WRITE_BYTES:
                self._backlog.append((b"".join(lines), started, ended, size, count))
                lines, started, ended, pending, size, count = [], [], [], 0, 0, 0
                self._write_backlog()
            now = time.monotonic()
            if now - self._progress > _SHARE:
                # The agent's threads get the interpreter back sooner than after the switch interval of 5 ms.
                time.sleep(0)
                self._progress = time.monotonic()
        if count:
            self._backlog.append((b"".join(lines), started, ended, size, count))

    def _write_backlog(self) -> bool:
        if self._spool is None:
            self._open_spool()
        assert self._spool is not None
        while self._backlog:
            data, started, ended, size, _ = self._backlog[0]
            try:
                if data:
                    self._spool.append(data, started, ended)
                self._failing = False
            except OSError as error:
                self._failing = True
                self._complain(error)
                if error.errno in _FULL_DISK:
                    return False  # it may get room again: keep what fits in memory, and try again
                for _, _, _, lost_size, lost in self._backlog:
                    self._held -= lost_size
                    self.dropped += lost
                self._backlog.clear()
                return False
            self._backlog.pop(0)
            self._held -= size
            if self._shipper is not None:
                self._shipper.wake()
            self._progress = time.monotonic()
        return True

    def _open_spool(self) -> None:
        settings = self.settings
        self._spool = Spool(settings.spool, settings.segment_bytes)
        if settings.ship_to is not None and self._shipper is None:
            from trace_sdk._ship import Shipper

            self._shipper = Shipper(settings.spool, settings.ship_to, settings.ship_token)

    def _complain(self, error: OSError) -> None:
        _log.say_once("disk", "trace.recording_impossible", home=str(self.settings.home), error=str(error))

    # The ends of a process.

    def at_exit(self) -> None:
        """Write what is left; called at a normal end, and at the end of a multiprocessing child."""
        if self._stopping:
            return
        with contextlib.suppress(Exception):
            for call in list(self.open_calls.values()):
                call.abandon()
            for generator in list(self.open_generators.values()):
                generator.end()
            if not self._flush_while_it_moves() and self.dropped == 0:
                _log.say_once("exit", "trace.exit_before_everything_was_written")
            if self.dropped:
                _log.say_once("dropped", "trace.events_lost", count=self.dropped)
            self._stop()
            self._ship_the_rest()

    def _flush_while_it_moves(self) -> bool:
        # A slow machine gets the time it needs; a disk that takes nothing does not hold up the exit.
        while not self.flush(1.0):
            if self._failing or time.monotonic() - self._progress > _EXIT_TIMEOUT:
                return False
        return True

    def _ship_the_rest(self) -> None:
        """Give the collector what it does not have yet, where it answers; the next process of this home goes on."""
        if self._shipper is None or self._thread is not None:
            return
        with self._drain_lock:
            if self._spool is not None:
                self._spool.close()
        self._shipper.finish(_EXIT_TIMEOUT)

    def _stop(self) -> None:
        # A daemon thread that the interpreter kills while it holds a lock would hang whoever asks for that lock
        # later, a finalizer for instance: it has to be gone before.
        thread, self._stopping = self._thread, True
        self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(1.0)
            if not thread.is_alive():
                self._thread = None
        self._attention = True

    def after_fork(self) -> None:
        """In a forked child: what the parent queued is the parent's to write; start afresh, lazily."""
        spool, shipper = self._spool, self._shipper
        self._reset()
        if shipper is not None:
            shipper.let_go()
        if spool is not None:
            # Closing, not unlocking: the lock belongs to the parent's description too, and stays with it.
            spool.close()
        _ids.reseed()
        _log.reset()


recorder = Recorder()
_registered_pid: list[int] = []


def _register_exit() -> None:
    pid = os.getpid()
    if pid in _registered_pid:
        return
    if not _registered_pid:
        atexit.register(recorder.at_exit)
    _registered_pid[:] = [pid]
    # A forked multiprocessing child ends with os._exit after its finalizers: atexit never runs there.
    process = sys.modules.get("multiprocessing.process")
    util = sys.modules.get("multiprocessing.util")
    if process is not None and util is not None and process.parent_process() is not None:
        util.Finalize(None, recorder.at_exit, exitpriority=-100)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=recorder.after_fork)
