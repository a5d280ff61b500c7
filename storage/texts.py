"""Messages as they are stored: each encoded once, and every beginning of a list with a name of its own.

A list's name is a hash that chains over its messages. So two lists begin alike exactly when the names there are equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from storage import codec

Messages = Sequence[Mapping[str, Any]]

# Half of a SHA-256: three indexes hold the name of every list, and no two of 10^16 lists share it by chance.
_NAME_BYTES = 16


@dataclass(slots=True)
class Texts:
    """A message list: JSON of each message, and the name of the list up to it."""

    texts: list[bytes]
    names: list[str]
    has_prompt: bool
    """Whether it begins with instructions, which other lists will begin with, too."""

    @classmethod
    def of(cls, messages: Messages) -> Texts:
        has_prompt = bool(messages) and messages[0].get("role") in ("system", "developer")
        return cls([], [], has_prompt).plus(messages)

    def plus(self, messages: Messages) -> Texts:
        """This list with more messages at its end."""
        texts, names = self.texts.copy(), self.names.copy()
        digest = bytes.fromhex(names[-1]) if names else b""
        for message in messages:
            text = codec.encoded(message)
            digest = hashlib.sha256(digest + text).digest()[:_NAME_BYTES]
            texts.append(text)
            names.append(digest.hex())
        return Texts(texts, names, self.has_prompt)

    def begins_like(self, other: Texts, count: int) -> bool:
        """Whether the first ``count`` messages of both are the same."""
        return count == 0 or (
            len(self) >= count and len(other) >= count and self.names[count - 1] == other.names[count - 1]
        )

    def __len__(self) -> int:
        return len(self.texts)


def tools_text(tools: Messages) -> tuple[str, str] | None:
    """Name and JSON of a tool set; None if it is empty."""
    if not tools:
        return None
    text = codec.encoded(list(tools))
    return hashlib.sha256(text).hexdigest(), text.decode()
