"""Redaction, in the writer's thread, before anything touches the disk.

Secrets are always taken out: values of the process's own secret environment variables, keys and tokens of known
form, what stands behind a secret's name. Personal data is the team's to define (`trace.init(redact=...)`).
The same value becomes the same placeholder within a tree of runs (``<EMAIL_1>``), so that it can still be seen
that an argument came out of a message. It fails closed: an event whose texts could not be redacted loses them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from types import NoneType
from typing import Any, cast

from trace_sdk import _log
from trace_sdk._config import Redactor
from trace_sdk._snapshot import jsonable

_NAMES = (
    r"authorization|proxy-authorization|x-api-key|api[_-]?key|access[_-]?key|secret[_-]?key|private[_-]?key"
    r"|client[_-]?secret|secret|password|passwd|passphrase|(?:access|refresh|auth|id|session|bearer)[_-]?token"
)
_FORMS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}"
    r"|\bgh[pousr]_[A-Za-z0-9]{30,}|\bgithub_pat_\w{30,}|\bglpat-[\w-]{20,}|\bhf_[A-Za-z0-9]{30,}"
    r"|\bxox[a-z]-[A-Za-z0-9-]{10,}|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bAIza[\w-]{35}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{4,}",
    re.DOTALL,
)
# The value is the last group: after Bearer, behind a name in JSON (also inside a text), after name=, in a URL.
_NAMED = re.compile(
    r"(?i:\b(?:bearer|basic)\s+)(?P<a>[\w.~+/=-]{12,})"
    rf"|(?i:\b(?:{_NAMES}|token)\\*[\"']\s*:\s*\\*[\"'])(?P<b>[^\"'\\]{{4,}})"
    rf"|(?i:\b(?:{_NAMES}|token)=)(?P<c>[^\s\"'\\&;,]{{6,}})"
    r"|://[^/\s:@\"']{1,80}:(?P<d>[^/\s@\"']{3,})@",
)
_KEY = re.compile(rf"(?i:{_NAMES}|token|cookie|set-cookie)")
# Where none of these stands in a text, no pattern above can match: most texts are done after this look.
_ANCHORS = (
    *("sk-", "sk_", "pk-", "pk_", "rk-", "rk_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-"),
    *("hf_", "xox", "akia", "asia", "aiza", "eyj", "private", "bearer", "basic", "authorization", "key", "secret"),
    *("passw", "passphrase", "token\\", 'token"', "token=", "token'", "cookie", "://"),
)
_TEXTS = {
    "start": ("input", "task", "session", "user", "tags"),
    "call": ("request", "response", "error"),
    "tool": ("arguments", "result", "error"),
    "note": ("data",),
    "outcome": ("reason",),
    "end": ("output", "error"),
}
_IDENTIFIERS = frozenset({"task", "session", "user"})
_PLACEHOLDER = re.compile(r"<([A-Z][A-Z_]*)>")
_MAX_BOOKS = 4000
_MAX_CLEAN = 50_000


class Book:
    """The placeholders of one tree of runs."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}

    def name(self, kind: str, value: str) -> str:
        placeholder = self._names.get((kind, value))
        if placeholder is None:
            number = self._counts[kind] = self._counts.get(kind, 0) + 1
            placeholder = self._names[kind, value] = f"<{kind}_{number}>"
        return placeholder


class Redaction:
    """Turns events into lines. Used by the writer's thread alone."""

    def __init__(self, redact: Redactor | None, secrets: tuple[str, ...]) -> None:
        self._personal = _personal(redact)
        self._secrets = secrets
        self._books: dict[str, Book] = {}
        # Agents send the same messages again with every call: what was found clean is not looked through again.
        # By hash, which is keyed per process, so that texts are not kept.
        self._clean: tuple[set[int], set[int]] = (set(), set())

    def line(self, event: dict[str, Any]) -> bytes:
        try:
            event = self._redacted(event)
        except Exception as error:
            _log.say_once("redact", "trace.redaction_failed_texts_withheld", error=type(error).__name__)
            event = _bare(event, type(error).__name__)
        return _encoded(event).encode("ascii") + b"\n"

    def _book(self, event: dict[str, Any]) -> Book:
        book = self._books.get(event["id"])
        if book is None:
            parent = event.get("parent") or event.get("root")
            book = self._books.get(parent, None) if isinstance(parent, str) else None
            book = book or Book()
            while len(self._books) >= _MAX_BOOKS:
                self._books.pop(next(iter(self._books)))
            self._books[event["id"]] = book
        return book

    def _redacted(self, event: dict[str, Any]) -> dict[str, Any]:
        book = self._book(event)
        changed = dict(event)
        for field in _TEXTS.get(event["type"], ()):
            # Identifiers are what data is found and deleted by: secrets go, personal data is the team's choice.
            personal = None if field in _IDENTIFIERS else self._personal
            changed[field] = self._walk(event.get(field), book, personal)
        response = changed.get("response")
        if isinstance(response, dict) and changed != event:
            # Token ids are the text once more.
            for key in ("prompt_token_ids", "token_ids", "logprobs"):
                cast(dict[str, Any], response).pop(key, None)
        return changed

    def _walk(self, value: Any, book: Book, personal: _Personal | None) -> Any:
        if isinstance(value, str):
            return self._text(value, book, personal)
        if isinstance(value, dict):
            walked: dict[str, Any] = {}
            for key, inner in cast(dict[str, Any], value).items():
                if isinstance(inner, str) and len(inner) >= 4 and _KEY.fullmatch(str(key)):
                    walked[key] = book.name("SECRET", inner)
                else:
                    walked[self._text(str(key), book, personal)] = self._walk(inner, book, personal)
            return walked
        if isinstance(value, list | tuple):
            return [self._walk(inner, book, personal) for inner in cast(list[Any], value)]
        if isinstance(value, int | float | NoneType):
            return value
        return self._walk(jsonable(value), book, personal)

    def _text(self, text: str, book: Book, personal: _Personal | None) -> str:
        clean = self._clean[personal is None]
        key = hash(text)
        if key in clean:
            return text
        redacted = self._without_secrets(text, book)
        if personal is not None:
            redacted = personal(redacted, book)
        if redacted == text:
            if len(clean) >= _MAX_CLEAN:
                clean.clear()
            clean.add(key)
        return redacted

    def _without_secrets(self, text: str, book: Book) -> str:
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, book.name("SECRET", secret))
        lowered = text.lower()
        if not any(anchor in lowered for anchor in _ANCHORS):
            return text
        text = _FORMS.sub(lambda match: book.name("SECRET", match[0]), text)
        return _NAMED.sub(lambda match: _replace_value(match, book), text)


def _bare(event: dict[str, Any], problem: str) -> dict[str, Any]:
    """The event without any of its texts, in a form that a reader still takes."""
    bare: dict[str, Any] = {**event, **dict.fromkeys(_TEXTS.get(event["type"], ()))}
    if event["type"] == "call":
        bare["request"] = {"messages": [], "tools": [], "params": {}}
    elif event["type"] == "start":
        bare["tags"] = []
    return {**bare, "withheld": f"redaction failed: {problem}"}


_Personal = Callable[[str, Book], str]


def _personal(redact: Redactor | None) -> _Personal | None:
    if redact is None:
        return None
    if not callable(redact):
        patterns = [(kind, re.compile(pattern)) for kind, pattern in redact.items()]

        def by_patterns(text: str, book: Book) -> str:
            for kind, pattern in patterns:
                text = pattern.sub(lambda match, kind=kind: book.name(kind, match[0]), text)
            return text

        return by_patterns

    def by_function(text: str, book: Book) -> str:
        redacted = redact(text)
        if not isinstance(cast(object, redacted), str):
            raise TypeError("the redactor returned no text")
        return text if redacted == text else _numbered(text, redacted, book)

    return by_function


def _numbered(text: str, redacted: str, book: Book) -> str:
    """``<EMAIL>`` as ``<EMAIL_1>``, by what stood in its place: what lies between tells where that was."""
    pieces = _PLACEHOLDER.split(redacted)  # literal, kind, literal, kind, …, literal
    pattern = "(.+?)".join(re.escape(literal) for literal in pieces[::2])
    found = re.fullmatch(pattern, text, re.DOTALL)
    if found is None:
        return redacted
    named = [book.name(kind, value) for kind, value in zip(pieces[1::2], found.groups(), strict=True)]
    return "".join(part for pair in zip(pieces[::2], [*named, ""], strict=True) for part in pair)


def _replace_value(match: re.Match[str], book: Book) -> str:
    group = cast(str, match.lastgroup)
    if match[group].startswith("<") and match[group].endswith(">"):  # a placeholder already
        return match[0]
    start, end = match.span(group)
    at = match.start()
    return match[0][: start - at] + book.name("SECRET", match[group]) + match[0][end - at :]


_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False, allow_nan=False).encode


def _encoded(event: dict[str, Any]) -> str:
    """One JSON line. Pure ASCII, so that no reader can split it anywhere else than at its end."""
    try:
        return _encode(event)
    except (ValueError, TypeError, RecursionError):
        return _encode(jsonable(event))
