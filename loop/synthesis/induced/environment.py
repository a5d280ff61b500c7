"""The induced environment: a seed picks a case, renames it, and puts it into a world with other cases' records."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness import tool_kinds
from harness.environment import Act, Goals, RequiredCall, Task
from harness.scoring import changed_paths, state_at
from loop.synthesis.induced.cases import Case
from loop.synthesis.induced.evidence import EvidenceReport
from loop.synthesis.induced.model import ToolModel
from loop.synthesis.induced.observations import copied, is_scalar
from loop.synthesis.induced.profiles import Profile, walk
from loop.synthesis.induced.renaming import Renamer
from loop.synthesis.induced.said import wordings
from loop.synthesis.induced.world import Tables, World

Json = Any
VERSION = 1


@dataclass(frozen=True)
class Difficulty:
    """Knobs that calibration turns. ``distractors``: other cases whose records fill the world. ``length_bias``: kinds
    with one more call are exp(length_bias) times as frequent (0: all kinds alike). ``other_share``: tasks in which
    the capability is not needed, so that training does not unlearn them."""

    distractors: int = 2
    length_bias: float = 0.0
    other_share: float = 0.25


class InducedEnvironment:
    """Implements `harness.environment.Environment`. Built by `induce` or from its own JSON."""

    def __init__(
        self,
        name: str,
        tools: Sequence[Mapping[str, Json]],
        models: Mapping[str, ToolModel],
        types: Mapping[str, str],
        profiles: Mapping[str, Profile],
        cases: Sequence[Case],
        evidence: EvidenceReport,
        *,
        error_form: str = "",
        difficulty: Difficulty | None = None,
    ) -> None:
        self.name = name
        self.tools: Sequence[Mapping[str, Json]] = tools
        self.models, self.types, self.profiles = models, types, profiles
        self.cases, self.evidence = list(cases), evidence
        self.error_form = error_form
        self.difficulty = difficulty or Difficulty()
        self._keys = {key for case in cases for table in case.tables.values() for key in table}
        self._kept = _prompt_words(cases)
        self._world = World(models, types, tools, {})
        self._goals = Goals()
        self._acts: list[Act] = []
        self._turns: list[str] = []

    # The contract

    def reset(self, seed: int) -> Task:
        draw = random.Random(f"{self.name} {seed}")
        case = self._pick(draw)
        return self.pose(case, seed, draw)

    def call(self, tool: str, arguments: Mapping[str, Json]) -> str:
        return self._world.call(tool, arguments)

    def respond(self, text: str) -> str | None:
        return self._turns.pop(0) if self._turns else None

    def state(self) -> Mapping[str, Json]:
        return self._world.state()

    def goals(self) -> Goals:
        return self._goals

    def reference(self) -> Sequence[Act]:
        return list(self._acts)

    # How a task is made

    def pose(self, case: Case, seed: int, draw: random.Random) -> Task:
        """Begin the task that ``draw`` makes of a case."""
        taken = set(self._keys)
        tables = complete(case, self.cases, draw)
        texts = [_text(m) for m in case.opening if m.get("role") == "user"] + case.turns
        renamer = Renamer(_values(tables, case), texts, self.profiles, draw, taken, self._kept)
        opening = [m if m.get("role") == "system" else _renamed_message(m, renamer) for m in case.opening]
        self._turns = [renamer.text(turn) for turn in case.turns]
        self._acts = [Act(a.tool, renamer.json(a.arguments), renamer.text(a.text)) for a in case.reference()]
        world = _rename_tables(tables, renamer)
        memory = [
            [tool, renamer.json(arguments), _renamed_answer(text, renamer), _renamed_effects(effects, renamer)]
            for tool, arguments, text, effects in case.memory
        ]
        self._add_distractors(world, case, memory, draw, taken)
        for kind in sorted(world):
            rows = list(world[kind].items())
            draw.shuffle(rows)
            world[kind] = dict(rows)
        self._world = World(self.models, self.types, self.tools, world, memory, self.error_form)
        self._goals = self._derive_goals(case, renamer, world, memory)
        key = hashlib.sha256(json.dumps([opening, self._turns], sort_keys=True).encode()).hexdigest()[:16]
        return Task(seed, key, tuple(opening), case.kind)

    def _pick(self, draw: random.Random) -> Case:
        applying = [c for c in self.cases if c.applies]
        others = [c for c in self.cases if not c.applies]
        pool = others if others and draw.random() < self.difficulty.other_share else applying or others
        kinds = sorted({c.kind for c in pool})
        weights = [math.exp(self.difficulty.length_bias * kind.count(" > ")) for kind in kinds]
        kind = draw.choices(kinds, weights)[0]
        return draw.choice([c for c in pool if c.kind == kind])

    def _add_distractors(
        self, world: Tables, case: Case, memory: Sequence[Sequence[Json]], draw: random.Random, taken: set[str]
    ) -> None:
        """Fill the world with other cases' records, in place. Those that would change what the solution sees (another
        customer of the same name) are left out, since the request would then be ambiguous."""
        others = [c for c in self.cases if c.source != case.source]
        if not others or self.difficulty.distractors < 1:
            return
        seen = self._play(world, memory)[0]
        for other in draw.sample(others, min(self.difficulty.distractors, len(others))):
            tables = complete(other, self.cases, draw)
            renamer = Renamer(_values(tables, other), [], self.profiles, draw, taken, self._kept)
            fuller = {kind: dict(table) for kind, table in world.items()}
            for kind, table in _rename_tables(tables, renamer).items():
                for key, record in table.items():
                    fuller.setdefault(kind, {}).setdefault(key, record)
            if self._play(fuller, memory)[0] == seen:
                world.update(fuller)

    def _play(self, world: Tables, memory: Sequence[Sequence[Json]]) -> tuple[list[str], Json, Json]:
        """The answers to the solution's calls in a copy of a world, and its state before and after them."""
        trial = World(self.models, self.types, self.tools, world, memory, self.error_form)
        before = trial.snapshot()
        answers = [trial.call(a.tool, a.arguments) for a in self._acts if a.tool]
        return answers, before, trial.snapshot()

    def _derive_goals(self, case: Case, renamer: Renamer, world: Tables, memory: Sequence[Sequence[Json]]) -> Goals:
        """Goals are what the reference does: the state it leaves, what it looked up and said."""
        _, before, after = self._play(world, memory)
        state = {path: state_at(after, path) for path in changed_paths(before, after)}
        required = [RequiredCall(a.tool) for a in self._acts if a.tool and tool_kinds.is_handover(a.tool)]
        calls = [a for a in self._acts if a.tool]
        required += [RequiredCall(calls[i].tool or "", calls[i].arguments) for i in case.required]
        said = tuple(tuple(wordings(renamer.json(value))) for value in case.said)
        return Goals(state=state, unchanged=True, required=tuple(required), said=said)

    # Forms

    def with_difficulty(self, difficulty: Difficulty) -> InducedEnvironment:
        """The same environment with other knobs."""
        raw = self.to_json()
        raw["difficulty"] = asdict(difficulty)
        return InducedEnvironment.from_json(raw)

    def copy(self) -> InducedEnvironment:
        """An instance of its own for one episode; what was learned is shared, since nothing changes it."""
        return copy.copy(self)

    def to_json(self) -> dict[str, Json]:
        prompts = list(dict.fromkeys(json.dumps(c.opening[0]) for c in self.cases if _has_system(c)))
        cases: list[Json] = []
        for case in self.cases:
            raw = case.to_json()
            if _has_system(case):
                raw["opening"] = [prompts.index(json.dumps(case.opening[0])), *raw["opening"][1:]]
            cases.append(raw)
        return {
            "format": "induced-environment",
            "version": VERSION,
            "name": self.name,
            "tools": [dict(t) for t in self.tools],
            "prompts": [json.loads(p) for p in prompts],
            "models": {name: model.to_json() for name, model in self.models.items()},
            "types": dict(self.types),
            "profiles": {name: asdict(profile) for name, profile in self.profiles.items()},
            "error_form": self.error_form,
            "difficulty": asdict(self.difficulty),
            "cases": cases,
            "evidence": self.evidence.to_json(),
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Json]) -> InducedEnvironment:
        """Raises ValueError when ``raw`` is not a spec of this version."""
        if raw.get("format") != "induced-environment" or raw.get("version") != VERSION:
            raise ValueError(f"not an induced environment of version {VERSION}")
        try:
            cases: list[Case] = []
            for item in raw["cases"]:
                opening = [raw["prompts"][m] if isinstance(m, int) else m for m in item["opening"]]
                cases.append(Case.from_json({**item, "opening": opening}))
            return cls(
                raw["name"],
                raw["tools"],
                {name: ToolModel.from_json(m) for name, m in raw["models"].items()},
                raw["types"],
                {name: Profile(**p) for name, p in raw["profiles"].items()},
                cases,
                EvidenceReport.from_json(raw["evidence"]),
                error_form=raw["error_form"],
                difficulty=Difficulty(**raw["difficulty"]),
            )
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"the spec of the environment is damaged: {error!r}") from error


def complete(case: Case, cases: Sequence[Case], draw: random.Random) -> Tables:
    """A case's tables, with what the run did not see of its records filled in from other cases' records."""
    tables = copied(case.tables)
    for kind in sorted(case.missing):
        donors = [r for c in cases for _, r in sorted(c.tables.get(kind, {}).items())]
        for key in sorted(case.missing[kind]):
            record = tables[kind][key]
            for name in case.missing[kind][key]:
                having = [d for d in donors if d.get(name) is not None]
                if having and name not in record:
                    record[name] = copied(draw.choice(having)[name])
    return tables


def case_values(tables: Tables, case: Case) -> list[tuple[str, Json]]:
    """(profile name, value) of all that a case holds: its records, and arguments that name no record's field."""
    found: list[tuple[str, Json]] = []
    for kind in sorted(tables):
        for _, record in sorted(tables[kind].items()):
            found += walk(record, kind)
    for tool, arguments, _ in case.acts:
        if tool is not None:
            found += walk(arguments, f"{tool}()")
    for tool, arguments, text, _ in case.memory:
        found += walk(arguments, f"{tool}()")
        try:
            found += walk(json.loads(text), f"{tool}=")
        except ValueError:
            continue
    return found


_values = case_values


def _rename_tables(tables: Tables, renamer: Renamer) -> Tables:
    renamed: Tables = {}
    for kind, table in tables.items():
        renamed[kind] = {str(renamer.json(key)): renamer.json(record) for key, record in table.items()}
    return renamed


def _renamed_effects(effects: Sequence[Sequence[Json]], renamer: Renamer) -> list[list[Json]]:
    return [[kind, str(renamer.json(key)), path, renamer.json(value)] for kind, key, path, value in effects]


def _renamed_answer(text: str, renamer: Renamer) -> str:
    try:
        value = json.loads(text)
    except ValueError:
        return renamer.text(text)
    return json.dumps(renamer.json(value)) if not is_scalar(value) else str(renamer.json(text))


def _renamed_message(message: Mapping[str, Json], renamer: Renamer) -> dict[str, Json]:
    content = message.get("content")
    return {**message, "content": renamer.text(content) if isinstance(content, str) else content}


def _text(message: Mapping[str, Json]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def _has_system(case: Case) -> bool:
    return bool(case.opening) and case.opening[0].get("role") == "system"


def _prompt_words(cases: Sequence[Case]) -> frozenset[str]:
    """Words of the system prompts, which a renamed world must not contradict."""
    prompts = {_text(m) for c in cases for m in c.opening if m.get("role") == "system"}
    return frozenset(w.casefold() for p in prompts for w in re.findall(r"[^\W\d_]+", p))
