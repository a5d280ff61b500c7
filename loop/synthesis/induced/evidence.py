"""What an induced environment rests on: for each tool what was inferred, from how many calls, and what was not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from loop.synthesis.induced.model import Part, ToolModel

Json = Any


@dataclass
class ToolEvidence:
    """One tool in words. ``calls`` were answered, ``errors`` refused; ``notes`` say what was not inferred."""

    name: str
    kind: str
    behaviour: str
    calls: int
    errors: int
    notes: list[str] = field(default_factory=list)

    @property
    def explained(self) -> bool:
        return self.calls > 0 and "recorded calls only" not in self.behaviour


@dataclass
class EvidenceReport:
    """``usable``: whether an environment was built. ``reasons`` say why not, each naming a tool or a field.

    ``cases``: good runs that became cases; ``applying`` of them show the capability; ``dropped``: reason → runs.
    """

    agent: str
    capability: str
    usable: bool
    trajectories: int
    good: int
    cases: int
    applying: int
    kinds: dict[str, int]
    types: dict[str, int]
    tools: list[ToolEvidence]
    dropped: dict[str, int]
    reasons: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Json]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Json]) -> EvidenceReport:
        return cls(**{**raw, "tools": [ToolEvidence(**t) for t in raw["tools"]]})

    def lines(self) -> list[str]:
        """The report as lines of text."""
        head = (
            f"{self.agent}: {self.cases} of {self.good} good runs became cases, {self.applying} show {self.capability}"
        )
        found = [head, *(f"  not built: {r}" for r in self.reasons)]
        found += [f"  records: {', '.join(f'{n} {kind}' for kind, n in self.types.items()) or 'none'}"]
        for tool in self.tools:
            found.append(f"  {tool.name} ({tool.kind}, {tool.calls} calls, {tool.errors} refused): {tool.behaviour}")
            found += [f"      not inferred: {note}" for note in tool.notes]
        found += [f"  left out: {count} runs, {why}" for why, count in self.dropped.items()]
        return found


def tool_evidence(model: ToolModel) -> ToolEvidence:
    """What was learned of one tool, in words."""
    behaviour = _write_words(model) if model.kind == "write" else _read_words(model)
    if model.rejections:
        behaviour += "; refuses by " + ", ".join(
            f"{r.field} (accepts {', '.join(map(str, r.accepted))})" for r in model.rejections
        )
    return ToolEvidence(model.name, model.kind, behaviour, model.calls, model.errors, list(dict.fromkeys(model.notes)))


def _read_words(model: ToolModel) -> str:
    if not model.calls:
        return "nothing"
    if model.shape == "constant":
        return "always the same answer"
    if model.shape == "arithmetic":
        return "the value of an arithmetic expression"
    if model.shape == "memory":
        return "recorded calls only"
    if model.shape == "object":
        return "; ".join(f"{name}: {_part_words(part)}" for name, part in model.parts.items() if part.view)
    return _part_words(model.part) if model.part else "nothing"


def _part_words(part: Part) -> str:
    if part.view is None:
        return part.kind
    what = {
        "records": f"list of {part.view.type}",
        "record": f"one {part.view.type}",
        "key": f"key of {part.view.type}",
    }
    how = {"equal": "=", "fold": "= (any case)", "contains": "in"}
    selected = [f"{s[0] or 'parent'} {how[s[2]]} {s[1]}" for s in part.select if len(s) == 3]
    return what[part.kind] + (f" with {', '.join(selected)}" if selected else "")


def _write_words(model: ToolModel) -> str:
    if not model.calls:
        return "nothing"
    about = f"changes the {model.target[0]} named by {model.target[1]}" if model.target else "changes no known record"
    sets = [
        f"{path} ← {rule[0]} {rule[1] if rule[0] != 'append' else ''}".rstrip() for path, rule in model.effects.items()
    ]
    text = about + (f": {', '.join(sets)}" if sets else "")
    if model.shape == "memory" or (model.unexplained and not model.effects):
        text += " (recorded calls only)"
    elif model.unexplained:
        text += f"; {', '.join(model.unexplained)} as recorded"
    return text
