"""One name over time: a candidate of a new analysis is matched to the capability that it is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

SIMILAR = 0.6
_WORD = re.compile(r"[a-z0-9_]+")
_FILLER = frozenset(
    {"a", "an", "the", "of", "to", "and", "or", "in", "for", "with", "is", "it", "that", "by", "its", "as", "on", "be"}
)


@dataclass(frozen=True, slots=True)
class Known:
    """A capability as the database knows it. ``detector`` is set where one labels it."""

    id: str
    name: str
    description: str
    detector: str | None


def match(name: str, description: str, detector: str | None, known: Sequence[Known]) -> Known | None:
    """The known capability that a candidate is, or None if it is new.

    A detector is the same as itself, whatever it is called by now. What a model proposed is matched by its name,
    else by the words of name and description (at least 60 % of the rarer side's words shared).
    """
    if detector is not None:
        same = next((k for k in known if k.detector == detector), None)
        if same is not None:
            return same
    by_name = next((k for k in known if k.name.casefold() == name.casefold()), None)
    if by_name is not None or detector is not None:
        return by_name
    scored = [(similarity(f"{name} {description}", f"{k.name} {k.description}"), k) for k in known if not k.detector]
    best = max(scored, key=lambda pair: pair[0], default=None)
    return best[1] if best is not None and best[0] >= SIMILAR else None


def similarity(one: str, other: str) -> float:
    """Shared words over the words of the shorter text; endings cut off, fillers left out. 0..1."""
    a, b = _stems(one), _stems(other)
    return len(a & b) / min(len(a), len(b)) if a and b else 0.0


def _stems(text: str) -> frozenset[str]:
    return frozenset(re.sub(r"(ing|ed|es|s)$", "", w) for w in _WORD.findall(text.lower()) if w not in _FILLER)
