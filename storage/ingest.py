"""The spool of the recorder, read into the database: every event once, whatever is killed when.

How far a segment was read is committed in the transaction that writes what was read. A segment that can be locked
has no writer any more (the kernel drops its lock): its runs without an end are aborted, and the file is deleted
after everything in it was committed. A torn last line is left alone while the writer lives.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import structlog
from sqlalchemy import Connection, delete, select, update
from sqlmodel import col

from storage import assembly, bulk
from storage.collecting import collector_paused
from storage.database import Database
from storage.errors import TraceError
from storage.read_ahead import ReadAhead
from storage.reading import Reading, read, whole_lines
from storage.tables import SpoolSegment
from trace_sdk._spool import SILENT_SECONDS, writer_is_dead

log = structlog.get_logger()

# Read and committed at once. A single longer line is read whole.
_CHUNK_BYTES = 8 << 20
# From so much on a second process is worth its start.
_AHEAD_BYTES = 32 << 20
# Segments that a collector receives have no file here; their names must not meet those of files.
_REMOTE = "remote/"


@dataclass(slots=True)
class IngestReport:
    """What one reading of the spool brought."""

    segments: int = 0
    """Segments that were read to their present end."""
    events: int = 0
    runs: int = 0
    ended: int = 0
    aborted: int = 0
    outcomes: int = 0
    broken: int = 0
    """Lines that are no events; their segment is kept as `NAME.jsonl.broken`."""
    orphans: int = 0
    """Events of runs whose start never arrived."""
    dropped: int = 0
    """Successes that the recorder sampled out; others of their kind have more weight."""

    def add(self, reading: Reading, applied: assembly.Applied, aborted: int) -> None:
        """Count what was committed."""
        self.events += reading.events
        self.broken += reading.broken
        self.aborted += aborted
        self.runs += applied.runs
        self.ended += applied.ended
        self.outcomes += applied.outcomes
        self.orphans += applied.orphans
        self.dropped += applied.dropped


def ingest_spool(db: Database, home: Path) -> IngestReport:
    """Read what is new in `{home}/spool`. Any number of processes may do so at once.

    Raises TraceError if the spool is there and cannot be read.
    """
    report = IngestReport()
    folder = home / "spool"
    try:
        paths = sorted(folder.glob("*.jsonl"))
    except OSError as error:
        raise TraceError(f"the spool cannot be read: {error.strerror}", where=str(folder)) from error
    positions = _positions(db)
    with db.bulk() as writing, _ahead(paths, positions) as ahead:
        for path in paths:
            with _opened(path) as file:
                if file is None:
                    continue
                dead = writer_is_dead(file)
                # Most segments have nothing new; they must not cost a write lock.
                if dead or os.fstat(file.fileno()).st_size > positions.get(path.name, 0):
                    for position, reading in ahead.readings(path):
                        if not _commit(writing, path, position, reading, report):
                            break
                    while _read_chunk(writing, path, file, dead, report):
                        pass
                    report.segments += 1
                ahead.skip(path)
                if dead:
                    _discard(writing, path)
    local = {name for name in positions if not name.startswith(_REMOTE)}
    _forget(db, local - {path.name for path in paths})
    if report.events or report.broken:
        log.info("spool.ingested", runs=report.runs, events=report.events, aborted=report.aborted, broken=report.broken)
    if report.broken:
        log.warning("spool.broken_lines", lines=report.broken, kept_in=str(folder))
    if report.orphans:
        log.warning("spool.events_without_run", events=report.orphans)
    return report


@dataclass(frozen=True, slots=True)
class Received:
    """Where a remote segment stands, in bytes; whether the bytes were taken; how many of its lines are no events."""

    position: int
    accepted: bool
    broken: int


def receive(db: Database, name: str, position: int, data: bytes, final: bool) -> Received:
    """Take bytes of another machine's segment, if they are the next ones: nothing is stored twice.

    ``data`` is whole lines from byte ``position`` on. ``final``: its writer is gone, and this is all. What was taken
    is committed when this returns. Asking again with the same bytes is harmless.
    """
    name = _REMOTE + name
    reading = read(data)
    with db.connection() as connection:
        segment = _claim(connection, name)
        if position != segment.position:
            return Received(segment.position, False, segment.broken)
        assembly.apply(connection, reading, name)
        if final:
            assembly.abort(connection, name)
        _advance(connection, segment, reading)
    return Received(position + len(data), True, segment.broken + reading.broken)


def abort_silent(db: Database, seconds: float = SILENT_SECONDS) -> int:
    """Abort the open runs of remote segments that have been silent for so long: their machine may be gone. An end
    that comes after all corrects it. Returns how many."""
    table = SpoolSegment
    silent = select(col(table.name)).where(
        col(table.name).startswith(_REMOTE), col(table.updated_at) < time.time() - seconds
    )
    with db.connection() as connection:
        return sum(assembly.abort(connection, name) for name in connection.scalars(silent).all())


@collector_paused()
def _read_chunk(db: Database, path: Path, file: BinaryIO, dead: bool, report: IngestReport) -> bool:
    """Read and commit the next part of a segment. Returns whether there may be more."""
    with db.connection() as connection:
        segment = _claim(connection, path.name)
        # Another process may have finished with it. It removes the file before it forgets the row, so a file that
        # is there was not forgotten.
        if not path.exists():
            return False
        data, at_end = whole_lines(file, segment.position, _CHUNK_BYTES, torn=dead)
        reading = read(data)
        applied = assembly.apply(connection, reading, path.name)
        aborted = assembly.abort(connection, path.name) if at_end and dead else 0
        _advance(connection, segment, reading)
    # Counted after the commit: what is reported is stored.
    report.add(reading, applied, aborted)
    return not at_end


@collector_paused()
def _commit(db: Database, path: Path, position: int, reading: Reading, report: IngestReport) -> bool:
    """Commit what another process read from ``position`` on, if nobody else has by now."""
    with db.connection() as connection:
        segment = _claim(connection, path.name)
        if segment.position != position or not path.exists():
            return False
        applied = assembly.apply(connection, reading, path.name)
        _advance(connection, segment, reading)
    report.add(reading, applied, 0)
    return True


@contextmanager
def _ahead(paths: Sequence[Path], positions: Mapping[str, int]) -> Iterator[ReadAhead]:
    """A second process that reads, where there is enough to read and a processor for it."""
    plan = [(path, positions.get(path.name, 0)) for path in paths]
    unread = sum(max(0, _size(path) - position) for path, position in plan)
    worth_it = unread >= _AHEAD_BYTES and (os.cpu_count() or 1) > 1
    ahead = ReadAhead(plan if worth_it else (), _CHUNK_BYTES)
    try:
        yield ahead
    finally:
        # Nothing is lost by it, and reading took longer than it would have.
        if failed := ahead.close():
            log.warning("spool.read_without_help", reason=failed)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _claim(connection: Connection, name: str) -> SpoolSegment:
    """The segment's row, locked until commit."""
    fresh = {"name": name, "position": 0, "events": 0, "broken": 0, "updated_at": time.time()}
    query = select(SpoolSegment).where(col(SpoolSegment.name) == name).with_for_update()
    while True:
        bulk.insert_missing(connection, SpoolSegment, [fresh])
        row = connection.execute(query).one_or_none()
        # PostgreSQL: whoever had it first may have forgotten it in between.
        if row is not None:
            return SpoolSegment(**row._mapping)


def _advance(connection: Connection, segment: SpoolSegment, reading: Reading) -> None:
    connection.execute(
        update(SpoolSegment)
        .where(col(SpoolSegment.name) == segment.name)
        .values(
            position=segment.position + reading.size,
            events=segment.events + reading.events,
            broken=segment.broken + reading.broken,
            updated_at=time.time(),
        )
    )


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO | None]:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        # Another process has read it to the end meanwhile.
        yield None
        return
    except OSError as error:
        raise TraceError(
            f"a segment of the spool cannot be read: {error.strerror}",
            where=str(path),
            fix="Run this as the user that runs the agent, or give it access.",
        ) from error
    with file:
        yield file


def _positions(db: Database) -> dict[str, int]:
    with db.engine.connect() as connection:
        query = select(col(SpoolSegment.name), col(SpoolSegment.position))
        return {row.name: row.position for row in connection.execute(query)}


def _discard(db: Database, path: Path) -> None:
    """Remove a segment that was read to its end, then what is known of it, in this order."""
    with db.engine.connect() as connection:
        broken = connection.scalar(select(col(SpoolSegment.broken)).where(col(SpoolSegment.name) == path.name))
    if broken is None:
        return
    try:
        if broken:
            path.rename(path.with_name(path.name + ".broken"))
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("spool.segment_not_removed", path=str(path), reason=error.strerror)
        return
    _forget(db, {path.name})


def _forget(db: Database, names: set[str]) -> None:
    """Drop the positions of segments whose files are gone."""
    if names:
        with db.connection() as connection:
            connection.execute(delete(SpoolSegment).where(col(SpoolSegment.name).in_(names)))
