"""Consistent renaming: one case's values replaced by new ones of the same kind, everywhere at once.

Because request, solution, answer and every record are renamed by the same map, whatever was true of them stays true:
the item that was asked for is still the one that the solution picks.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from loop.synthesis.induced.profiles import Profile

Json = Any
_RUN = re.compile(r"[^\W\d_]+|\d+")


class Renamer:
    """The map of one case. ``values`` are (profile name, value) of all that may be renamed; ``texts`` are what people
    said, where values are spoken of; ``taken`` are values no new one may equal (it grows); ``kept`` are words in lower
    case that stay what they are, because the system prompt has them."""

    def __init__(
        self,
        values: Iterable[tuple[str, Json]],
        texts: Sequence[str],
        profiles: Mapping[str, Profile],
        draw: random.Random,
        taken: set[str],
        kept: frozenset[str] = frozenset(),
    ) -> None:
        self._draw = draw
        self._taken = taken
        self._kept = kept
        self._said = " \n ".join(texts)
        self._map: dict[str, str] = {}
        self._words: dict[str, str] = {}
        listed = list(dict.fromkeys((name, str(v)) for name, v in values if name in profiles and v is not None))
        # Words first, since mailboxes and ids may be made of them.
        for kind in ("words", "text", "email", "id"):
            for name, value in listed:
                profile = profiles[name]
                if profile.kind == kind and value not in self._map:
                    self._add(profile, value, [v for n, v in listed if n == name])
        self._pattern = _alternatives([*self._map, *self._words])

    def _add(self, profile: Profile, value: str, own: Sequence[str]) -> None:
        if profile.kind == "words":
            words = value.split()
            for index, word in enumerate(words):
                self._add_word(word, profile.places.get(f"{index}/{len(words)}", []), own)
        elif profile.kind == "text":
            if not self._half_said(value):
                self._map[value] = self._fresh([p for p in profile.pool if p not in own], value)
        elif profile.kind == "email":
            self._map[value] = self._unique(lambda: self._new_mailbox(value, profile))
        elif any(c.isalnum() for c in value):
            self._map[value] = self._unique(lambda: self._new_id(value, profile))

    def _add_word(self, word: str, pool: Sequence[str], own: Sequence[str]) -> None:
        if word in self._words or len(word) < 2 or word.casefold() in self._kept or self._inflected(word):
            return
        mine = {w for v in own for w in v.split()}
        free = [p for p in pool if p not in mine and p not in self._words.values()]
        new = self._draw.choice(free) if free else word
        self._words[word] = new

    def _fresh(self, pool: Sequence[str], old: str) -> str:
        free = [p for p in pool if p not in self._map.values()]
        return self._draw.choice(free) if free else old

    def _inflected(self, word: str) -> bool:
        """Said as a plural or inside another word: replacing the word alone would break the sentence."""
        return bool(re.search(rf"(?<!\w){re.escape(word)}\w|\w{re.escape(word)}(?!\w)", self._said, re.IGNORECASE))

    def _half_said(self, value: str) -> bool:
        """Whether people speak of a part of the value ("the house in Oak Street"), which would then be left over."""
        rest = re.sub(re.escape(value), " ", self._said, flags=re.IGNORECASE)
        words = re.findall(r"[^\W\d_]{4,}", value)
        return any(re.search(rf"(?<!\w){re.escape(w)}(?!\w)", rest, re.IGNORECASE) for w in words)

    def _unique(self, make: Any) -> str:
        for _ in range(50):
            new = make()
            if new not in self._taken:
                break
        self._taken.add(new)
        return new

    def _new_mailbox(self, value: str, profile: Profile) -> str:
        box, _, domain = value.partition("@")
        domains = sorted({p.partition("@")[2] for p in profile.pool}) or [domain]
        names = sorted(
            {r for p in profile.pool for r in _RUN.findall(p.partition("@")[0]) if r.isalpha() and len(r) > 1}
        )

        def run(match: re.Match[str]) -> str:
            text = match.group()
            if text.isdigit():
                return self._digits(text)
            known = self._word_like(text)
            return known if known is not None else self._draw.choice(names or [text])

        return f"{_RUN.sub(run, box)}@{self._draw.choice(domains)}"

    def _new_id(self, value: str, profile: Profile) -> str:
        head = profile.prefix if value.startswith(profile.prefix) else ""

        def run(match: re.Match[str]) -> str:
            text = match.group()
            if text.isdigit():
                return self._digits(text)
            known = self._word_like(text)
            if known is not None:
                return known
            if text in profile.runs:
                return text
            return "".join(self._draw.choice(_alphabet(c)) for c in text)

        return head + _RUN.sub(run, value[len(head) :])

    def _word_like(self, text: str) -> str | None:
        """The new word for one that a mailbox or an id contains in another case ("mara" for "Mara")."""
        for old, new in self._words.items():
            if old.casefold() == text.casefold():
                return _cased(text, new)
        return None

    def _digits(self, text: str) -> str:
        first = self._draw.choice("123456789") if text[0] != "0" else "0"
        return first + "".join(self._draw.choice("0123456789") for _ in text[1:])

    # Applying the map

    def text(self, text: str) -> str:
        """Every value and word that stands in ``text`` as a whole, replaced at once."""
        return self._pattern.sub(self._replacement, text) if self._pattern else text

    def _replacement(self, match: re.Match[str]) -> str:
        found = match.group()
        exact = self._map.get(found) or self._words.get(found)
        if exact is not None:
            return exact
        for old, new in (*self._map.items(), *self._words.items()):
            # "will" is no "Will" and "or" is no "OR": a name or a code only counts as it is written.
            if old.casefold() == found.casefold() and (old.islower() or " " in old):
                return _cased(found, new)
        return found

    def json(self, value: Json) -> Json:
        """A JSON value with its scalars and those of its keys that are values renamed."""
        if isinstance(value, str):
            return self._map.get(value) or self._words.get(value) or self.text(value)
        if isinstance(value, bool) or value is None or isinstance(value, float):
            return value
        if isinstance(value, int):
            new = self._map.get(str(value), "")
            return int(new) if new.isdigit() else value
        if isinstance(value, Mapping):
            return {self._map.get(key, key): self.json(inner) for key, inner in value.items()}
        return [self.json(inner) for inner in value]


def _alphabet(letter: str) -> str:
    return "ABCDEFGHJKLMNPQRSTUVWXYZ" if letter.isupper() else "abcdefghijkmnpqrstuvwxyz"


def _cased(like: str, word: str) -> str:
    if like.islower():
        return word.lower()
    if like.isupper() and len(like) > 1:
        return word.upper()
    return word[0].upper() + word[1:] if like[0].isupper() else word


def _alternatives(values: Sequence[str]) -> re.Pattern[str] | None:
    wanted = sorted({v for v in values if v}, key=lambda v: (-len(v), v))
    if not wanted:
        return None
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, wanted))})(?!\w)", re.IGNORECASE)
