"""A policy: which arms exist, and which one a task gets. A value; the gateway carries it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from harness.router import BASE, Route, Router

Kind = Literal["base", "adapter", "hint", "mixture"]


def policy_label(version: str, route: str) -> str:
    """What a run is recorded under: ``version/route``. A route is an arm, a mixture, or what was served instead."""
    return f"{version}/{route}"


def version_of(label: str) -> str:
    """The policy's version in a label that `policy_label` wrote. Versions have no slash, routes may."""
    return label.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to serve a task.

    ``adapter`` is a served adapter's name ("adapter"); ``hint`` a text that is appended to the system message
    ("hint"); ``parts`` the adapters and weights of a fixed mixture ("mixture").
    """

    name: str
    kind: Kind = "base"
    adapter: str | None = None
    hint: str | None = None
    parts: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        needed = {"base": True, "adapter": self.adapter, "hint": self.hint, "mixture": self.parts}
        if self.kind not in needed:
            raise ValueError(f"arm {self.name!r}: kind {self.kind!r} is not one of {', '.join(needed)}")
        if not needed[self.kind]:
            raise ValueError(f"arm {self.name!r} is of kind {self.kind} but says nothing of it")

    def to_json(self) -> dict[str, Any]:
        raw: dict[str, Any] = {"name": self.name, "kind": self.kind}
        if self.adapter:
            raw["adapter"] = self.adapter
        if self.hint:
            raw["hint"] = self.hint
        if self.parts:
            raw["parts"] = dict(self.parts)
        return raw

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Arm:
        return cls(
            name=str(raw["name"]),
            kind=raw.get("kind", "base"),
            adapter=raw.get("adapter"),
            hint=raw.get("hint"),
            parts=tuple((str(k), float(v)) for k, v in (raw.get("parts") or {}).items()),
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """What one trajectory is served with, for as long as it lasts."""

    version: str
    arm: str
    parts: tuple[tuple[str, float], ...] = ()
    """Adapters and weights: none is the base model, one is that adapter, two are a mixture."""
    hint: str | None = None

    @property
    def label(self) -> str:
        """What the gateway's answers carry."""
        return policy_label(self.version, self.arm)


@dataclass(frozen=True, slots=True)
class Policy:
    """``forced`` names the one arm that every task gets; else the router decides; without one, base.

    The router's arms are arm names of this policy. Raises ValueError when one isn't.
    """

    version: str
    arms: tuple[Arm, ...] = (Arm(BASE),)
    router: Router | None = None
    forced: str | None = None

    def __post_init__(self) -> None:
        if "/" in self.version:
            raise ValueError(f"policy {self.version!r}: a version has no slash")
        names = [arm.name for arm in self.arms]
        if len(set(names)) != len(names):
            raise ValueError(f"policy {self.version}: two arms have the same name")
        known = {*names, BASE}
        wanted = {*(self.router.arms if self.router else ()), *((self.forced,) if self.forced else ())}
        if wanted - known:
            raise ValueError(f"policy {self.version} has no arm {', '.join(sorted(wanted - known))}")

    @classmethod
    def only(cls, version: str, arm: Arm) -> Policy:
        """Everything goes to one arm."""
        return cls(version, (arm,), forced=arm.name)

    def arm(self, name: str) -> Arm:
        return next((arm for arm in self.arms if arm.name == name), Arm(BASE))

    def decide(self, text: str, tools: Sequence[str] = ()) -> Decision:
        """The decision for a task with this first user text and these tool names."""
        if self.forced is not None:
            return self._one(self.forced)
        if self.router is None:
            return self._one(BASE)
        route = self.router.choose(text, tools)
        if len(route.parts) > 1:
            arms = [self.arm(name) for name, _ in route.parts]
            if all(arm.kind == "adapter" for arm in arms):
                parts = tuple((str(a.adapter), weight) for a, (_, weight) in zip(arms, route.parts, strict=True))
                return Decision(self.version, route.name, parts)
            route = Route((route.parts[0],))  # only adapters add up: the heavier arm alone
        return self._one(route.name)

    def _one(self, name: str) -> Decision:
        arm = self.arm(name)
        parts = arm.parts if arm.kind == "mixture" else ((arm.adapter, 1.0),) if arm.adapter else ()
        return Decision(self.version, name, parts, arm.hint)

    def to_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "arms": [arm.to_json() for arm in self.arms],
            "router": self.router.to_json() if self.router else None,
            "forced": self.forced,
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Policy:
        """Raises ValueError, also on missing keys and wrong types."""
        try:
            return cls(
                version=str(raw["version"]),
                arms=tuple(Arm.from_json(arm) for arm in raw.get("arms", ())) or (Arm(BASE),),
                router=Router.from_json(raw["router"]) if raw.get("router") else None,
                forced=raw.get("forced"),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a policy: {error!r}") from error
