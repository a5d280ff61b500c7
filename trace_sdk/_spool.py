"""Spool segments: append-only files of JSON lines, each locked by its writer for as long as the writer lives.

The kernel drops the lock when a process dies, however it dies: a segment that somebody else can lock has no
writer any more, and a run in it without an end is aborted. A segment that grew too large is followed by a new
one, but stays locked while runs that started in it are open.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from trace_sdk._ids import new_id

try:
    import fcntl
except ImportError:  # no flock on this platform: aborted runs are then told only by their age
    fcntl = None

SILENT_SECONDS = 24 * 3600
"""Where files cannot be locked, a writer that has been silent for so long is taken for dead."""


def writer_is_dead(file: BinaryIO) -> bool:
    """Whether the segment's lock can be had, for whoever reads it. It is then held until the file is closed."""
    if fcntl is not None:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False
        except OSError:
            pass  # A file system without locks.
    return time.time() - os.fstat(file.fileno()).st_mtime > SILENT_SECONDS


@dataclass(slots=True)
class _Segment:
    fd: int
    size: int = 0
    open_runs: set[str] = field(default_factory=lambda: set[str]())

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.fd)


class Spool:
    """One process's end of the spool. Only the thread that holds the recorder's drain lock may use it."""

    def __init__(self, folder: Path, segment_bytes: int) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._current: _Segment | None = None
        self._full: list[_Segment] = []

    def append(self, data: bytes, started: list[str], ended: list[str]) -> None:
        """Append whole lines and note which runs they start and end. All of ``data`` is written, or none.

        Raises OSError when the disk does not take it; the segment then ends where it ended before.
        """
        segment = self._writable()
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(segment.fd, view) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(segment.fd, segment.size)
            raise
        segment.size += len(data)
        segment.open_runs.update(started)
        if ended:
            self._end(ended)

    def sync(self) -> None:
        """Return when what was appended is on the disk itself. Raises OSError."""
        if self._current is not None:
            os.fsync(self._current.fd)

    def close(self) -> None:
        """Close every segment, which unlocks it."""
        for segment in [*self._full, *([self._current] if self._current else [])]:
            segment.close()
        self._full, self._current = [], None

    def _end(self, ended: list[str]) -> None:
        for segment in [*self._full, *([self._current] if self._current else [])]:
            segment.open_runs.difference_update(ended)
        for segment in [s for s in self._full if not s.open_runs]:
            segment.close()
            self._full.remove(segment)

    def _writable(self) -> _Segment:
        segment = self._current
        if segment is not None:
            if os.fstat(segment.fd).st_nlink == 0:  # somebody removed the folder: nothing written there is kept
                segment.close()
            elif segment.size < self._segment_bytes:
                return segment
            elif segment.open_runs:
                self._full.append(segment)
            else:
                segment.close()
            self._current = None
        self._current = self._open()
        return self._current

    def _open(self) -> _Segment:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        while True:
            path = self._folder / f"{new_id()}-{os.getpid()}.jsonl"
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_CLOEXEC", 0), 0o600)
            try:
                if fcntl is not None:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # A reader may have taken the empty file for a dead writer's, and removed it, before it was locked.
                if os.fstat(fd).st_nlink > 0:
                    return _Segment(fd)
            except BlockingIOError:
                pass  # a reader holds it at this very moment
            except OSError:  # a file system without locks: record all the same
                return _Segment(fd)
            os.close(fd)
