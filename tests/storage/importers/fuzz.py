"""Files broken in one to three places, by a seed: what the tests and the benchmark feed to every importer."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

from storage.errors import TraceError
from storage.importers import FORMATS
from storage.importers.contract import BrokenRecord, Options, Source, read
from storage.trajectory import Trajectory
from tests.storage.importers.samples import SAMPLES, Sample

_WEIRD = [
    None,
    True,
    -1,
    0,
    1.5,
    1e308,
    10**400,
    "",
    "x",
    "\x00",
    "\ud800",
    "[{",
    '{"role": 1}',
    [],
    {},
    [[]],
    [None],
    {"a": []},
    "2026-13-40",
]
_OPTIONS = Options(tools=({"function": {"name": "f"}},))


def places(document: Any) -> list[tuple[Any, Any]]:
    """Every place in a document: what holds it, and its key there."""
    found: list[tuple[Any, Any]] = []
    pending = [document]
    while pending:
        node = pending.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else []
        for key in keys:
            found.append((node, key))
            pending.append(node[key])
    return found


def mutate(document: Any, chance: random.Random) -> Any:
    """Replace, remove, double or rename one place in the document, and return it."""
    known = places(document)
    if not known:
        return chance.choice(_WEIRD)
    node, key = chance.choice(known)
    held = node[key]
    match chance.randrange(5):
        case 0:
            del node[key]
        case 1 if isinstance(node, list):
            node.insert(chance.randrange(len(node) + 1), held)
        case 1:
            node[f"{key}x"] = node.pop(key)
        case 2 if isinstance(held, str) and held[:1] in ("[", "{"):
            # JSON inside of JSON, which the formats of traces are full of.
            try:
                node[key] = json.dumps(mutate(json.loads(held), chance))
            except ValueError:
                node[key] = held[:-1]
        case _:
            node[key] = copy.deepcopy(chance.choice(_WEIRD))
    return document


def files(sample: Sample, chance: random.Random, count: int) -> Iterator[bytes]:
    """Mutated files, some of them with bytes replaced as well."""
    text = json.dumps(sample.document)
    for _ in range(count):
        document = json.loads(text)
        for _ in range(chance.randint(1, 3)):
            document = mutate(document, chance)
        if sample.lines and isinstance(document, list):
            data = b"\n".join(json.dumps(line).encode() for line in document)
        else:
            data = json.dumps(document).encode()
        if chance.random() < 0.2:
            data = scratch(data, chance)
        yield data


def scratch(data: bytes, chance: random.Random) -> bytes:
    """The bytes with one of them replaced by none, one or two others."""
    at = chance.randrange(len(data) or 1)
    return data[:at] + bytes(chance.randrange(256) for _ in range(chance.randrange(3))) + data[at + 1 :]


def outcomes(name: str, data: bytes) -> Iterator[Trajectory | BrokenRecord | Exception]:
    """What an importer makes of a file: runs, broken records, or the one error that says it is another format."""
    try:
        yield from read(FORMATS[name], Source(SAMPLES[name].file, data), _OPTIONS)
    except (ValueError, TraceError) as error:
        yield error


def fuzz(name: str, count: int, seed: str = "") -> tuple[list[Trajectory], Counter[str]]:
    """The runs read from that many mutated files, and how many runs, broken records and refused files there were.

    Raises whatever an importer lets escape.
    """
    chance = random.Random(f"{seed}{name}")
    runs: list[Trajectory] = []
    seen: Counter[str] = Counter()
    for data in files(SAMPLES[name], chance, count):
        for found in outcomes(name, data):
            if isinstance(found, Trajectory):
                runs.append(found)
                seen["runs"] += 1
            elif isinstance(found, BrokenRecord):
                assert found.reason, found
                assert found.position, found
                seen["broken"] += 1
            else:
                assert str(found), found
                seen["refused"] += 1
    return runs, seen
