"""`trace-sdk import`: runs that something else recorded."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from loop.commands.context import database
from loop.commands.output import print_json

if TYPE_CHECKING:
    from storage.importers.contract import BrokenRecord, Format, Options
    from storage.trajectory import Trajectory


def import_(
    format: str = typer.Argument(help="What the files hold: openai, tau-bench, tau2, otlp, …"),
    files: list[Path] = typer.Argument(help="The files."),
    tools: Path | None = typer.Option(None, "--tools", help="The agent's tool schemas (a JSON list), if not in there."),
    agent: str | None = typer.Option(None, "--agent", help="Whose runs they are; else as the file says."),
    model: str | None = typer.Option(None, "--model", help="The model that made them, if the file doesn't say."),
    reference: bool = typer.Option(False, "--reference", help="A person or a stronger model handled them: evidence."),
    as_json: bool = typer.Option(False, "--json", help="One JSON document on stdout."),
) -> None:
    """Bring in trajectories that something else recorded. Importing a file again adds nothing."""
    from storage.errors import TraceError
    from storage.importers import FORMATS, read_tools
    from storage.importers.contract import Options

    if format not in FORMATS:
        raise typer.BadParameter(f"{format!r} is not one of {', '.join(FORMATS)}", param_hint="FORMAT")
    options = Options(agent, read_tools(tools) if tools else (), reference, model)
    added = present = 0
    seen: Counter[str] = Counter()
    broken: list[BrokenRecord] = []
    failed: list[TraceError] = []
    with database(ingest=False) as db:
        for file in files:
            try:
                runs = _runs(FORMATS[format], file, options, broken, seen)
                report = FORMATS[format].save(db, runs, f"import:{format}")
            except TraceError as error:
                failed.append(error)
                continue
            added, present = added + report.added, present + report.present
    for record in broken:
        print(f"broken: {record}", file=sys.stderr)
    if failed and (len(failed) == len(files)):
        raise failed[0]
    for error in failed:
        print(f"error: {error}", file=sys.stderr)
    if broken and not added + present:
        raise TraceError("no record could be read", where=", ".join(map(str, files)), fix="Each is named above.")
    if as_json:
        print_json(
            {
                "added": added,
                "present": present,
                "agents": sorted(k.removeprefix("agent ") for k in seen if k.startswith("agent ")),
                **{name: seen[name] for name in ("succeeded", "failed", "unknown")},
                "broken": [{"file": b.file, "position": b.position, "reason": b.reason} for b in broken],
                "unreadable": [error.where for error in failed],
            }
        )
    else:
        _say(added, present, seen, len(broken))
    if broken or failed:
        raise typer.Exit(3)


def _runs(
    format: Format, file: Path, options: Options, broken: list[BrokenRecord], seen: Counter[str]
) -> Iterator[Trajectory]:
    """The runs of a file; its broken records and its counts are put aside."""
    from storage.importers import read_file
    from storage.importers.contract import BrokenRecord

    for record in read_file(format, file, options):
        if isinstance(record, BrokenRecord):
            broken.append(record)
            continue
        seen[f"agent {record.agent}"] += 1
        seen[{True: "succeeded", False: "failed", None: "unknown"}[record.success]] += 1
        yield record


def _say(added: int, present: int, seen: Counter[str], broken: int) -> None:
    agents = ", ".join(sorted(key.removeprefix("agent ") for key in seen if key.startswith("agent ")))
    print(f"{added} trajectories added, {present} were there already" + (f", {broken} broken" if broken else ""))
    if seen:
        counts = f"{seen['succeeded']} succeeded, {seen['failed']} failed, {seen['unknown']} unknown"
        print(f"agent {agents}: {counts}")
