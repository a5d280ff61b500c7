"""Which argument values name something in the world, told from their shape and their parameter's name alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from harness.tool_kinds import words

EMAIL = re.compile(r"^[^@\s]+@[^@\s]+\.[^@\s]+$")
_DATE = re.compile(r"^\d{1,4}[-/.:]\d{1,2}([-/.:T ]\d{1,4}.*)?$")
_ID_WORDS = frozenset(
    [
        "id",
        "ids",
        "identifier",
        "uuid",
        "guid",
        "number",
        "no",
        "code",
        "key",
        "ref",
        "reference",
        "sku",
        "token",
        "handle",
    ]
)
_ID_WORDS_ALONE = frozenset({"id", "ids", "identifier", "uuid", "guid", "sku"})
_ACCOUNT_WORDS = frozenset(
    ["mail", "email", "login", "user", "account", "contact", "recipient", "customer", "client", "member"]
)
# Letters and digits in one word; code, paths with spaces and sentences name nothing.
_MIXED = re.compile(r"(?=.*[A-Za-z])(?=.*\d)#?\w[\w./:@+-]*$")


class Named(NamedTuple):
    """A value that names something: the parameter it was given for, and the value as text."""

    parameter: str
    value: str


@lru_cache(maxsize=4096)
def is_identifier_name(parameter: str) -> bool:
    """Whether a parameter asks for an identifier: `order_id`, `orderId`, `tracking_number`, `ids`."""
    parts = words(parameter)
    # A `promo_code` is one; a parameter that is just called `code` takes a program.
    return bool(parts) and parts[-1] in (_ID_WORDS if len(parts) > 1 else _ID_WORDS_ALONE)


def names_something(parameter: str, value: Any) -> bool:
    """Whether this value stands for a record: what must have been said or returned before, since none can guess it."""
    if isinstance(value, bool):
        return False
    if isinstance(value, int):
        return is_identifier_name(parameter) and abs(value) > 99
    if not isinstance(value, str) or not 2 <= len(value) <= 80 or "\n" in value:
        return False
    if _DATE.match(value):
        return False
    if is_identifier_name(parameter) or EMAIL.match(value):
        return True
    return len(value) >= 4 and bool(_MIXED.match(value))


def is_wrong_kind(parameter: str, value: str) -> bool:
    """Whether a value visibly isn't what an identifier parameter asks for: an address or a phrase for an id.

    Accounts are often named by an address, so `user_id` and the like may hold one.
    """
    if not is_identifier_name(parameter) or _ACCOUNT_WORDS.intersection(words(parameter)):
        return False
    return bool(EMAIL.match(value)) or len(value.split()) > 2


def leaves(arguments: Mapping[str, Any], depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Every scalar of nested arguments with the name of the nearest parameter around it."""
    for key, value in arguments.items():
        yield from _leaves_of(str(key), value, depth)


def _leaves_of(parameter: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        if depth < 8:
            yield from leaves(value, depth + 1)
    elif isinstance(value, list):
        if depth < 8:
            for item in value:
                yield from _leaves_of(parameter, item, depth + 1)
    else:
        yield parameter, value


def named_values(arguments: Mapping[str, Any], fixed: frozenset[str] = frozenset()) -> tuple[Named, ...]:
    """The identifiers among the arguments; ``fixed`` are values that the schema itself offers (enum, const)."""
    return tuple(
        Named(parameter, str(value))
        for parameter, value in leaves(arguments)
        if names_something(parameter, value) and value not in fixed
    )
