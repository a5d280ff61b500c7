"""Names that are told to machines."""

from __future__ import annotations

import re


def slug(name: str) -> str:
    """A name that vLLM, a file system and a person can all take; "unnamed" where nothing of it is left."""
    return re.sub(r"[^a-z0-9]+", "-", name.casefold()).strip("-") or "unnamed"
