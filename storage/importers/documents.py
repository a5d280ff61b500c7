"""Files of records as tracing tools export them: a list, a page of one (`{"data": […]}`), one object, or JSON lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from storage.importers.contract import Raw, Source, json_document, json_lines


def records(source: Source, lists: Sequence[str] = ("data",)) -> Iterator[Raw]:
    """The records with their places. ``lists`` are names under which an object holds a list of them.

    Raises ValueError if the file is neither JSON nor JSON lines.
    """
    lines = [line for line in source.data.split(b"\n", 1000) if line.strip()]
    if len(lines) > 1 and _opens_and_closes(lines[0]):
        yield from json_lines(source)
        return
    document = json_document(source)
    if isinstance(document, dict):
        listed = next((document[name] for name in lists if isinstance(document.get(name), list)), None)
        if listed is None:
            yield Raw("the file", document)
            return
        document = listed
    if not isinstance(document, list):
        raise ValueError("the file holds neither an object nor a list")
    if not document:
        raise ValueError("the file holds no record")
    for index, value in enumerate(document):
        yield Raw(f"record {index}", value)


def _opens_and_closes(line: bytes) -> bool:
    text = line.strip().removeprefix(b"\xef\xbb\xbf")
    return text.startswith(b"{") and text.endswith(b"}")
