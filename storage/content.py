"""Tool sets and message lists, stored once by their content.

A list's name is a hash that chains over its messages, so every beginning of a list has a name too. A new list is
stored as the longest beginning that is already there plus the rest: the system prompt is shared by all runs of
an agent, the earlier turns by all runs of a conversation, and the requests of one run by its last one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, select
from sqlmodel import col

from storage import bulk, codec
from storage.tables import MessageList, ToolSet

Messages = Sequence[Mapping[str, Any]]


class ContentWriter:
    """Collects the content of one transaction and writes it with `flush`, before the rows that refer to it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._tool_sets: dict[str, str] = {}
        self._lists: list[tuple[list[bytes], list[str]]] = []

    def tools(self, tools: Sequence[Mapping[str, Any]]) -> str | None:
        """Name of a tool set; None if it is empty."""
        if not tools:
            return None
        text = codec.encoded(list(tools))
        sha256 = hashlib.sha256(text).hexdigest()
        if sha256 not in self._tool_sets:
            self._tool_sets[sha256] = text.decode()
        return sha256

    def messages(self, messages: Messages) -> str | None:
        """Name of a message list; None if it is empty."""
        if not messages:
            return None
        texts = [codec.encoded(m) for m in messages]
        names = _names(texts)
        self._lists.append((texts, names))
        if messages[0].get("role") in ("system", "developer") and len(messages) > 1:
            # Its own row, also for the first run that has it: the next ones will share it.
            self._lists.append((texts[:1], names[:1]))
        return names[-1]

    def flush(self) -> None:
        """Write what isn't there yet."""
        rows = [{"sha256": sha, "tools": text} for sha, text in sorted(self._tool_sets.items())]
        bulk.insert_missing(self._connection, ToolSet, rows)
        known = bulk.existing(self._connection, MessageList.sha256, {n for _, names in self._lists for n in names})
        lists: list[dict[str, Any]] = []
        # Short ones first: they may begin longer ones. By name then, so that two writers don't wait for each other.
        for texts, names in sorted(self._lists, key=lambda pair: (len(pair[1]), pair[1][-1])):
            if names[-1] in known:
                continue
            shared = next((i for i in range(len(names) - 1, 0, -1) if names[i - 1] in known), 0)
            known.add(names[-1])
            lists.append(
                {
                    "sha256": names[-1],
                    "parent": names[shared - 1] if shared else None,
                    "count": len(names),
                    "messages": f"[{b','.join(texts[shared:]).decode()}]",
                }
            )
        bulk.insert_missing(self._connection, MessageList, lists)
        self._tool_sets.clear()
        self._lists.clear()


class ContentReader:
    """Reads content by name. Keeps the shared beginnings it has seen, so a reader is for one pass over the runs."""

    _KEEP = 512

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lists: dict[str, list[dict[str, Any]]] = {}
        self._tool_sets: dict[str, tuple[Mapping[str, Any], ...]] = {}

    def tools(self, names: Iterable[str | None]) -> Mapping[str | None, tuple[Mapping[str, Any], ...]]:
        """Tool sets by name."""
        missing = {n for n in names if n} - self._tool_sets.keys()
        for chunk in bulk.chunks(missing, 1000):
            query = select(col(ToolSet.sha256), col(ToolSet.tools)).where(col(ToolSet.sha256).in_(chunk))
            for sha256, text in self._connection.execute(query):
                self._tool_sets[sha256] = tuple(codec.loads(text))
        return {**self._tool_sets, None: ()}

    def messages(self, names: Iterable[str | None]) -> dict[str | None, list[dict[str, Any]]]:
        """Message lists by name, whole."""
        wanted = {n for n in names if n}
        rows: dict[str, tuple[str | None, str]] = {}
        parents: set[str] = set()
        missing = wanted - self._lists.keys()
        while missing:
            found: set[str] = set()
            for chunk in bulk.chunks(missing, 1000):
                query = select(col(MessageList.sha256), col(MessageList.parent), col(MessageList.messages)).where(
                    col(MessageList.sha256).in_(chunk)
                )
                for sha256, parent, text in self._connection.execute(query):
                    rows[sha256] = (parent, text)
                    if parent:
                        parents.add(parent)
                        found.add(parent)
            missing = found - rows.keys() - self._lists.keys()
        result: dict[str | None, list[dict[str, Any]]] = {None: []}
        fresh: dict[str, list[dict[str, Any]]] = {}
        for name in wanted:
            result[name] = self._assemble(name, rows, fresh)
        if len(self._lists) > self._KEEP:
            self._lists.clear()
        self._lists.update((n, m) for n, m in fresh.items() if n in parents)
        return result

    def _assemble(
        self, name: str, rows: Mapping[str, tuple[str | None, str]], fresh: dict[str, list[dict[str, Any]]]
    ) -> list[dict[str, Any]]:
        # A loop, not a recursion: a long conversation is a long chain.
        chain: list[str] = []
        at: str | None = name
        while at is not None and at not in self._lists and at not in fresh:
            chain.append(at)
            at = rows[at][0]
        messages = [] if at is None else (self._lists.get(at) or fresh[at])
        for link in reversed(chain):
            messages = messages + codec.loads(rows[link][1])
            fresh[link] = messages
        return list(messages)


def _names(texts: Sequence[bytes]) -> list[str]:
    names: list[str] = []
    digest = b""
    for text in texts:
        digest = hashlib.sha256(digest + text).digest()
        names.append(digest.hex())
    return names
