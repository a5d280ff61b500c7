"""Tool sets and message lists, stored once by their content.

Every beginning of a list has a name (`storage.texts`). A new list is stored as the longest beginning that is already
there plus the rest: the system prompt is shared by all runs of an agent, the earlier turns by all runs of a
conversation, and the requests of one run by its last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, select
from sqlmodel import col

from storage import bulk, codec
from storage.tables import MessageList, ToolSet
from storage.texts import Messages, Texts, tools_text


class ContentWriter:
    """Collects the content of one transaction and writes it with `flush`, before the rows that refer to it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._tool_sets: dict[str, str] = {}
        self._lists: list[Texts] = []

    def tools(self, tools: Messages) -> str | None:
        """Name of a tool set; None if it is empty."""
        encoded = tools_text(tools)
        if encoded is None:
            return None
        self.add_tools(dict([encoded]))
        return encoded[0]

    def add_tools(self, tool_sets: Mapping[str, str]) -> None:
        """Tool sets by name."""
        self._tool_sets.update(tool_sets)

    def messages(self, messages: Messages) -> str | None:
        """Name of a message list; None if it is empty."""
        return self.texts(Texts.of(messages))

    def texts(self, messages: Texts) -> str | None:
        """Name of a message list; None if it is empty."""
        if not messages:
            return None
        self._lists.append(messages)
        return messages.names[-1]

    def flush(self) -> None:
        """Write what isn't there yet."""
        rows = [{"sha256": sha256, "tools": text} for sha256, text in sorted(self._tool_sets.items())]
        bulk.insert_missing(self._connection, ToolSet, rows)
        lists = {m.names[-1]: m for m in self._lists}
        # Instructions get a row of their own, also for the first run that has them: the next ones will share it.
        lists |= {m.names[0]: Texts(m.texts[:1], m.names[:1], True) for m in self._lists if m.has_prompt}
        known = bulk.existing(self._connection, MessageList.sha256, {n for m in lists.values() for n in m.names})
        rows = []
        # Short ones first: they may begin longer ones. By name then, so that two writers don't wait for each other.
        for name, whole in sorted(lists.items(), key=lambda pair: (len(pair[1]), pair[0])):
            if name in known:
                continue
            shared = next((i for i in range(len(whole) - 1, 0, -1) if whole.names[i - 1] in known), 0)
            known.add(name)
            rows.append(
                {
                    "sha256": name,
                    "parent": whole.names[shared - 1] if shared else None,
                    "count": len(whole),
                    "messages": f"[{b','.join(whole.texts[shared:]).decode()}]",
                }
            )
        bulk.insert_missing(self._connection, MessageList, rows)
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
