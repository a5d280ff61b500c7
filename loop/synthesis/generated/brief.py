"""What a model is told of an agent: the capability, runs that show and lack it, the tools and what they answered.

Only runs that may be used for training are evidence, and none that measured a gate or a report: a world written from
those would teach what is to be judged by them.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from harness import tool_kinds
from harness.admission import AdmissionReport, near_duplicates
from harness.arguments import function_of
from loop.analysis.analyst.transcript import render
from loop.analysis.view import View
from storage.errors import TraceError
from storage.trajectory import Trajectory

Json = Any
EXAMPLES = 4
"""Runs of each label that are shown."""
EXAMPLE_CHARS = 5_000
ANSWERS, REFUSALS = 3, 2
"""Recorded results of each tool that are shown."""
RESULT_CHARS = 700
NEAR = 0.95
"""Word-set likeness of a request to a held-out one, from which on its run is no evidence."""


@dataclass(frozen=True, slots=True)
class Brief:
    """The evidence, ready to be told. ``results``: tool → (arguments, answer) pairs as recorded, shortened."""

    agent: str
    name: str
    description: str
    tools: tuple[Mapping[str, Json], ...]
    system: str
    present: tuple[str, ...]
    lacking: tuple[str, ...]
    results: Mapping[str, tuple[tuple[str, str], ...]]

    def text(self) -> str:
        """The question as a model gets it."""
        tools = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in self.tools)
        recorded = "\n\n".join(f"## {tool}\n{_told(pairs)}" for tool, pairs in self.results.items())
        parts = (
            f"# The capability\n\n{self.name}: {self.description}",
            f"# The tools (TOOLS)\n\n{tools}",
            f"# The system prompt (SYSTEM)\n\n{self.system or '(none)'}",
            f"# What the real tools answered\n\n{recorded or '(nothing was recorded)'}",
            _runs("Runs in which the capability was needed and shown", self.present),
            _runs("Runs in which it was needed and missing", self.lacking),
        )
        return "\n\n".join(parts)


def brief_of(
    runs: Iterable[Trajectory],
    labels: Mapping[str, str],
    name: str,
    description: str,
    *,
    tools: Sequence[Mapping[str, Json]] | None = None,
    held_out: Sequence[str] = (),
) -> Brief:
    """Collect the evidence. ``labels``: run id → "PRESENT" or "LACKING". Left out: runs that may not be trained on, and
    those whose request is nearly one of ``held_out``.

    Raises TraceError where there is too little to write from: no run, no tool schemas, or none that has a label.
    """
    usable = [run for run in runs if run.trainable and not near_duplicates(_requests(run), held_out, NEAR)]
    agent = usable[0].agent if usable else ""
    if not usable:
        raise TraceError(
            "there is no run to write an environment from", fix="`trace-sdk status` names agents and runs."
        )
    schemas = tuple(tools if tools is not None else _common([run.tools for run in usable if run.tools], ()))
    if not schemas:
        raise TraceError(
            "no tool schemas are recorded for this agent", where=agent, fix="Pass --tools FILE, or import with --tools."
        )
    shown = {value: [run for run in usable if labels.get(run.id) == value] for value in ("PRESENT", "LACKING")}
    if not any(shown.values()):
        raise TraceError(
            f"no usable run of {agent} has a label for {name}",
            where=f"{len(usable)} runs",
            fix=f"Run `trace-sdk analyze --agent {agent}` first, or choose another capability.",
        )
    return Brief(
        agent=agent,
        name=name,
        description=description,
        tools=schemas,
        system=_common([next((m.content for m in run.messages if m.role == "system"), "") for run in usable], ""),
        present=_examples(shown["PRESENT"], lambda run: run.reference or run.success is True),
        lacking=_examples(shown["LACKING"], lambda run: run.success is False),
        results=_results(usable, schemas),
    )


def systems_of(runs: Iterable[Trajectory]) -> list[str]:
    """Every system prompt that the agent was seen to use."""
    return sorted({next((m.content for m in run.messages if m.role == "system"), "") for run in runs})


def repair(module: str, report: AdmissionReport) -> str:
    """What a model is told of an attempt that was not admitted: each failed check, its number, and how to mend it."""
    hints = json.loads(_file("checks.json"))
    lines = [
        f"- {c.name}: measured {c.value:.3f}, has to be {c.threshold}. {c.detail}\n  {hints.get(c.name, '')}".rstrip()
        for c in report.checks
        if not c.passed
    ]
    return _file("repair.md").replace("{checks}", "\n".join(lines)).replace("{module}", module)


def instructions() -> str:
    """The contract and the craft, as a system prompt."""
    return _file("write.md")


def _file(name: str) -> str:
    return files("loop.synthesis.generated").joinpath(name).read_text("utf-8")


def _requests(run: Trajectory) -> list[str]:
    return [m.content for m in run.messages if m.role == "user"]


def _common(values: Sequence[Any], default: Any) -> Any:
    """The value seen most often."""
    texts = Counter(json.dumps(value) for value in values)
    return json.loads(texts.most_common(1)[0][0]) if texts else default


def _examples(runs: Sequence[Trajectory], telling: Any) -> tuple[str, ...]:
    """The telling ones first, one of each way of going about it before the second of any, short before long."""
    ranked = sorted(runs, key=lambda run: (not telling(run), len(run.messages), run.id))
    ways: Counter[tuple[str, ...]] = Counter()
    order: list[tuple[int, int, Trajectory]] = []
    for index, run in enumerate(ranked):
        way = tuple(step.call.name for step in run.steps())
        order.append((ways[way], index, run))
        ways[way] += 1
    chosen = [run for _, _, run in sorted(order, key=lambda item: item[:2])[:EXAMPLES]]
    return tuple(render(View.of(run), EXAMPLE_CHARS) for run in chosen)


def _results(runs: Sequence[Trajectory], tools: Sequence[Mapping[str, Json]]) -> dict[str, tuple[tuple[str, str], ...]]:
    names = [str(function_of(tool).get("name")) for tool in tools]
    answers: dict[str, dict[str, tuple[str, str]]] = defaultdict(dict)
    refusals: dict[str, dict[str, tuple[str, str]]] = defaultdict(dict)
    for run in runs:
        for step in run.steps():
            if step.result is None or step.call.name not in names or tool_kinds.is_system_fault(step.result):
                continue
            kept = refusals if tool_kinds.is_error(step.result) else answers
            pair = (_cut(step.call.raw_arguments), _cut(step.result))
            # Refusals are told apart by how they begin, answers by what they hold: one of a form says it.
            kept[step.call.name].setdefault(_form(step.result), pair)
    return {
        name: (*list(answers[name].values())[:ANSWERS], *list(refusals[name].values())[:REFUSALS])
        for name in names
        if answers[name] or refusals[name]
    }


def _form(result: str) -> str:
    """Equal for answers of one shape: the keys of JSON, the first words of text."""
    try:
        value = json.loads(result)
    except (ValueError, RecursionError):
        return " ".join(word for word in result.split()[:6] if word.isalpha())
    first = value[0] if isinstance(value, list) and value else value
    keys = ",".join(first) if isinstance(first, dict) else type(first).__name__
    return f"{type(value).__name__} {keys} {result[:60] if tool_kinds.is_error(result) else ''}"


def _cut(text: str) -> str:
    return text if len(text) <= RESULT_CHARS else f"{text[:RESULT_CHARS]} […]"


def _told(pairs: Sequence[tuple[str, str]]) -> str:
    return "\n".join(
        f"call {arguments}\n{'refused' if tool_kinds.is_error(answer) else 'answer'}: {answer}"
        for arguments, answer in pairs
    )


def _runs(title: str, texts: Sequence[str]) -> str:
    listed = "\n\n".join(f"=== run {index + 1} ===\n{text}" for index, text in enumerate(texts))
    return f"# {title}\n\n{listed or '(none was recorded)'}"
