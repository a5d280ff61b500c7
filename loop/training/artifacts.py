"""Folders and files that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path


def publish_folder(target: Path, fill: Callable[[Path], None]) -> Path:
    """Let ``fill`` write a folder aside, make it durable, and rename it to ``target``, replacing what was there.

    A crash at any point leaves either the old folder or the new one, and at most a stray ``.NAME.partial`` that
    the next call removes.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = target.parent / f".{target.name}.partial"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    fill(staging)
    for folder, _, names in os.walk(staging):
        for name in names:
            sync(Path(folder) / name)
        sync(Path(folder))
    shutil.rmtree(target, ignore_errors=True)
    staging.rename(target)
    sync(target.parent)
    return target


def publish_text(target: Path, text: str) -> None:
    """Replace a small file so that a reader sees the old text or the new one."""
    publish_lines(target, [text])


def publish_lines(target: Path, pieces: Iterable[str]) -> int:
    """Replace a file by these pieces, one after the other, so that a reader sees the old file or the new one.

    Returns how many there were. When it fails, or is interrupted, nothing of the new file stays.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = target.with_name(f".{target.name}.partial")
    count = 0
    try:
        with staging.open("w", encoding="utf-8") as sink:
            for piece in pieces:
                sink.write(piece)
                count += 1
        sync(staging)
        staging.replace(target)
    except BaseException:
        staging.unlink(missing_ok=True)
        raise
    sync(target.parent)
    return count


def sync(path: Path) -> None:
    """Ask the disk to keep a file, or a folder's entries."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
