"""`trace-sdk export`: recorded runs in a format that others read."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from loop.commands.context import database, require_known
from loop.commands.trajectories import Verdict
from loop.training.artifacts import publish_lines, publish_text

if TYPE_CHECKING:
    from storage.trajectory import Trajectory


class Form(StrEnum):
    """``openai`` and ``otlp``: one line a run, all in one file. ``atif``: one file a run, in a folder."""

    openai = "openai"
    atif = "atif"
    otlp = "otlp"


def export(
    form: Form = typer.Argument(help="openai, otlp: one file, a line a run. atif: a folder with one JSON file a run."),
    out: Path = typer.Argument(help="The file or folder to write; - is stdout (not for atif)."),
    agent: str | None = typer.Option(None, "--agent", help="Only this agent's."),
    session: str | None = typer.Option(None, "--session", help="Only this conversation's, in the order of its turns."),
    ids: list[str] = typer.Option([], "--id", help="Only this run; may be given several times."),
    verdict: Verdict | None = typer.Option(None, "--outcome", help="Only runs that ended so."),
    reference: bool | None = typer.Option(None, "--reference/--no-reference", help="Only reference runs, or none."),
    trainable: bool = typer.Option(False, "--trainable", help="Only runs that may be used for training."),
) -> None:
    """Write recorded runs. What `trace-sdk import` reads of it are the same messages, tools and outcomes."""
    from storage import overview
    from storage.errors import TraceError
    from storage.exporters import atif, openai, otlp
    from storage.trajectories import load

    if form is Form.atif and str(out) == "-":
        raise typer.BadParameter("atif is a file for each run: give a folder", param_hint="OUT")
    with database() as db:
        require_known(db, ids)
        success = {None: ..., Verdict.success: True, Verdict.failure: False, Verdict.unknown: None}[verdict]
        runs = load(db, agent=agent, session=session, ids=ids or None, success=success, reference=reference)
        silent: list[str] = []
        runs = _speaking((run for run in runs if run.trainable or not trainable), silent)
        # Before anything is written: an empty export must not take an earlier one's place.
        first = next(runs, None)
        if first is None:
            raise TraceError(
                "no runs match; nothing to export", fix="`trace-sdk trajectories list` shows what there is."
            )
        runs = chain([first], runs)
        try:
            if form is Form.atif:
                known = ((run, overview.whole(db, run.id)["calls"]) for run in runs)
                count = _files(out, ((run.id, atif.document(run, calls)) for run, calls in known))
            else:
                count = _lines(out, map(otlp.line if form is Form.otlp else openai.line, runs))
        except OSError as error:
            raise TraceError(f"cannot write: {error.strerror or error}", where=str(error.filename or out)) from None
    left_out = f"; {len(silent)} without any message were left out" if silent else ""
    print(f"{count} runs written to {out}{left_out}", file=sys.stderr)


def _speaking(runs: Iterable[Trajectory], silent: list[str]) -> Iterator[Trajectory]:
    """The runs that have messages: no format can hold one without. Ids of the others go to ``silent``."""
    for run in runs:
        if run.messages:
            yield run
        else:
            silent.append(run.id)


def _lines(out: Path, lines: Iterable[str]) -> int:
    """Write one file, whole or not at all; - is stdout. Returns how many lines."""
    if str(out) != "-":
        return publish_lines(out, (f"{line}\n" for line in lines))
    count = 0
    for line in lines:
        print(line)
        count += 1
    return count


def _files(folder: Path, documents: Iterable[tuple[str, str]]) -> int:
    """Write a file for each run, each whole or not at all. Returns how many."""
    count = 0
    for id, text in documents:
        publish_text(folder / f"{_file_name(id)}.json", f"{text}\n")
        count += 1
    return count


def _file_name(id: str) -> str:
    """The id where it can be a file's name; else what can, with a hash, so that two ids never share a file."""
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in id)[:100]
    if safe == id and not id.startswith("."):
        return id
    return f"{safe.lstrip('.')}-{hashlib.sha256(id.encode()).hexdigest()[:12]}"
