"""Reading fields of foreign records: the value in the type that is meant, or a ValueError that names the field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from storage.trajectory import Message, message_from_dict

PASSED = 1.0 - 1e-6


def mapping(value: object, name: str) -> dict[str, Any]:
    """An object."""
    if not isinstance(value, dict):
        raise ValueError(f"{name} is {_kind(value)}, not an object")
    return value


def items(value: object, name: str) -> list[Any]:
    """A list."""
    if not isinstance(value, list):
        raise ValueError(f"{name} is {_kind(value)}, not a list")
    return value


def text(value: object, name: str) -> str:
    """A string."""
    if not isinstance(value, str):
        raise ValueError(f"{name} is {_kind(value)}, not text")
    return value


def label(value: object) -> str | None:
    """A name or number as text; None for anything else, where a name is a convenience."""
    if isinstance(value, str):
        return value or None
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def number(value: object, name: str) -> float:
    """A finite number; truth values count as 0 and 1."""
    if not isinstance(value, int | float) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"{name} is {_kind(value)}, not a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} is too large a number") from None


def optional_number(value: object, name: str) -> float | None:
    """A number, or None where there is none."""
    return None if value is None else number(value, name)


def verdict(reward: float | None) -> dict[str, Any]:
    """``success`` and ``score`` of a reward: 1 and more is success, less is failure, none is unknown."""
    return {"success": None if reward is None else reward >= PASSED, "score": reward}


# Names under which people put the verdict on a whole run, the plainest first.
_VERDICTS = ("outcome", "success", "resolved", "passed", "reward", "task_success")


def verdict_of(scores: Mapping[str, object]) -> dict[str, Any]:
    """``success`` and ``score`` of a run with scores of many names: the first that is named like a verdict counts.

    Scores of other names (relevance, toxicity, cost) judge something else, and no run is failed by them.
    """
    by_name = {str(name).lower().replace("-", "_").replace(" ", "_"): value for name, value in scores.items()}
    for name in _VERDICTS:
        value = by_name.get(name)
        if isinstance(value, bool):
            return {"success": value, "score": None}
        if isinstance(value, int | float):
            with suppress(ValueError):  # NaN, or an integer that no float can hold: no verdict
                return verdict(number(value, name))
        words = {"true": True, "pass": True, "passed": True, "success": True, "false": False, "fail": False}
        words |= {"failed": False, "failure": False}
        if isinstance(value, str) and value.lower() in words:
            return {"success": words[value.lower()], "score": None}
    return verdict(None)


def messages(value: object, name: str) -> tuple[Message, ...]:
    """Chat messages, at least one."""
    found: list[Message] = []
    for index, raw in enumerate(items(value, name)):
        found.append(message(raw, f"{name}[{index}]"))
    if not found:
        raise ValueError(f"{name} is empty")
    return tuple(found)


def message(value: object, name: str) -> Message:
    """One chat message."""
    try:
        return message_from_dict(mapping(value, "it"))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def tools(value: object, name: str) -> tuple[Mapping[str, Any], ...]:
    """OpenAI tool schemas; none where there are none."""
    return () if value is None else tuple(mapping(tool, f"{name}[{i}]") for i, tool in enumerate(items(value, name)))


def epoch(value: object) -> float:
    """Seconds since the epoch of an ISO time (UTC where it names no zone) or a number; 0.0 where it is neither."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if 0 <= value < 1e11 else 0.0
    if not isinstance(value, str):
        return 0.0
    try:
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def _kind(value: object) -> str:
    if value is None:
        return "missing"
    names = {dict: "an object", list: "a list", str: "text", bool: "a truth value", int: "a number", float: "a number"}
    return names.get(type(value), type(value).__name__)
