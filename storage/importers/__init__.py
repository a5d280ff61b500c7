"""Runs that something else recorded: one module a format, found by the format's name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from storage import codec
from storage.errors import TraceError
from storage.importers import (
    atif,
    fields,
    intercode,
    langfuse,
    langsmith,
    mini_swe_agent,
    mint,
    openai,
    otlp,
    swe_agent,
    tau2,
    tau_bench,
)
from storage.importers.contract import BrokenRecord, Format, Options, read
from storage.trajectory import Trajectory

FORMATS: dict[str, Format] = {
    format.name: format
    for format in (
        openai.FORMAT,
        tau_bench.FORMAT,
        tau2.FORMAT,
        mini_swe_agent.FORMAT,
        swe_agent.FORMAT,
        intercode.FORMAT,
        mint.FORMAT,
        atif.FORMAT,
        langfuse.FORMAT,
        langsmith.FORMAT,
        otlp.FORMAT,
    )
}


def read_file(format: Format, path: Path, options: Options) -> Iterator[Trajectory | BrokenRecord]:
    """All records of a file: runs, and those that are none with their place and reason.

    Raises TraceError if the file is missing, unreadable, or as a whole not of this format.
    """
    try:
        for source in format.sources(path):
            yield from read(format, source, options)
    except OSError as error:
        raise TraceError(f"cannot read the file: {error.strerror or error}", where=str(path)) from error
    except ValueError as error:
        fix = f"`trace-sdk import {format.name}` reads {format.description}."
        raise TraceError(f"this is no {format.name} file: {error}", where=str(path), fix=fix) from error


def read_tools(path: Path) -> tuple[dict[str, Any], ...]:
    """OpenAI tool schemas from a JSON list. Raises TraceError if the file holds anything else."""
    try:
        value = codec.strict_loads(path.read_bytes())
        tools = tuple(dict(tool) for tool in fields.tools(value, "the file"))
        for index, tool in enumerate(tools):
            fields.text(
                fields.mapping(tool.get("function", tool), f"[{index}].function").get("name"), f"[{index}] name"
            )
    except OSError as error:
        raise TraceError(f"cannot read the tools: {error.strerror or error}", where=str(path)) from error
    except ValueError as error:
        fix = 'It should be a JSON list of {"type": "function", "function": {"name", "description", "parameters"}}.'
        raise TraceError(f"not a list of tool schemas: {error}", where=str(path), fix=fix) from error
    return tools
