"""What an importer is: a format splits a file into records and builds a run's fields from one record.

Both are pure and raise ValueError with a reason a person can read; everything else is shared here: identity,
attribution, and that one broken record never takes the others with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storage import codec, trajectories
from storage.database import Database
from storage.ids import stable_id
from storage.trajectories import SaveReport
from storage.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Options:
    """What a person says about a file. A record's own tools, model and agent's name come after theirs for the
    agent and the model, before theirs for the tools."""

    agent: str | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    reference: bool = False
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """The bytes to read, and the name they are known by. ``header`` is what lies in a file beside them."""

    file: str
    data: bytes
    header: bytes | None = None


@dataclass(frozen=True, slots=True)
class Raw:
    """One record as it stands in the file; ``value`` is a ValueError where it couldn't even be parsed.

    ``context`` is what the file says of all its records. ``name`` is what a record is known by that has a name
    for all the world (the id of a trace): its content may arrive in parts, in several files.
    """

    position: str
    value: Any
    context: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None


@dataclass(frozen=True, slots=True)
class BrokenRecord:
    """A record that is no run, with its place and why."""

    file: str
    position: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}, {self.position}: {self.reason}"


def one_file(path: Path) -> Iterator[Source]:
    """The usual case: a file is read for itself. Raises OSError."""
    yield Source(path.name, path.read_bytes())


@dataclass(frozen=True, slots=True)
class Format:
    """A format that can be imported.

    ``split`` raises ValueError if the file as a whole is something else. ``build`` gives the fields of a
    `Trajectory` but id and reference: messages at least; agent, model and tools only if the record has them.
    """

    name: str
    description: str
    split: Callable[[Source], Iterable[Raw]]
    build: Callable[[Raw, str], dict[str, Any]]
    sources: Callable[[Path], Iterator[Source]] = one_file
    extra_tools: tuple[Mapping[str, Any], ...] = ()
    """Tools that runs of this format have beside those of ``--tools``."""
    save: Callable[[Database, Iterable[Trajectory], str], SaveReport] = trajectories.save
    """How its runs are stored: each once, or, where a run can come in parts, united with what is there."""


def read(format: Format, source: Source, options: Options) -> Iterator[Trajectory | BrokenRecord]:
    """All records of a file, in order. The same file gives the same ids; its records differ from each other.

    Raises ValueError if the file as a whole is not of this format.
    """
    records = list(format.split(source))
    tools = options.tools
    if tools:
        known = {_name(tool) for tool in tools}
        tools += tuple(tool for tool in format.extra_tools if _name(tool) not in known)
    for index, raw in enumerate(records):
        if isinstance(raw.value, ValueError):
            yield BrokenRecord(source.file, raw.position, str(raw.value))
            continue
        try:
            fields = format.build(raw, source.file)
        except ValueError as error:
            yield BrokenRecord(source.file, raw.position, str(error))
            continue
        agent = options.agent or fields.pop("agent", None) or format.name
        fields.pop("agent", None)
        fields["model"] = options.model or fields.get("model")
        fields["tools"] = fields.get("tools") or tools
        if raw.name is not None:
            id = named_id(format.name, options.agent, raw.name)
        else:
            id = stable_id(index, format.name, agent, codec.dumps(raw.value), codec.dumps(raw.context))
        yield Trajectory(id=id, agent=agent, reference=options.reference, **fields)


def named_id(format: str, agent: str | None, name: str) -> str:
    """The id of a record that is known by a name, under the agent's name that a person gave, if any."""
    return stable_id(0, format, agent or "", name)


def json_document(source: Source) -> Any:
    """The file's one JSON value. Raises ValueError with line and column where it breaks."""
    if not source.data.strip():
        raise ValueError("the file is empty")
    return codec.strict_loads(_decoded(source.data))


def json_lines(source: Source) -> Iterator[Raw]:
    """One record a line; blank lines don't count. Raises ValueError if there is none."""
    found = False
    for number, line in enumerate(source.data.split(b"\n"), 1):
        if not line.strip():
            continue
        found = True
        try:
            value = codec.strict_loads(_decoded(line))
        except ValueError as error:
            value = ValueError(f"not JSON: {error}")
        yield Raw(f"line {number}", value)
    if not found:
        raise ValueError("the file is empty")


def _decoded(data: bytes) -> str:
    # utf-8-sig: some editors begin a file with a byte order mark.
    return data.decode("utf-8-sig")


def _name(tool: Mapping[str, Any]) -> Any:
    function = tool.get("function", tool)
    return function.get("name") if isinstance(function, Mapping) else None
