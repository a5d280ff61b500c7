"""A measured condition: what admission and calibration are made of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """One measured condition. ``value`` is what was measured, ``threshold`` what it has to be ("≥ 0.95")."""

    name: str
    value: float
    threshold: str
    passed: bool
    detail: str = ""


def at_least(name: str, value: float, limit: float, detail: str = "") -> Check:
    """A check that ``value`` reaches ``limit``."""
    return Check(name, value, f"≥ {limit:g}", value >= limit, detail)


def at_most(name: str, value: float, limit: float, detail: str = "") -> Check:
    """A check that ``value`` does not exceed ``limit``."""
    return Check(name, value, f"≤ {limit:g}", value <= limit, detail)
