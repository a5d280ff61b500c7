"""From one agent's trajectories to an environment for one capability, or to a report that says what is missing."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, Protocol

import structlog

from harness import tool_kinds
from harness.arguments import function_of, parameters_of
from harness.scoring import score
from loop.analysis.schema import fixed_values
from loop.synthesis.induced.cases import Case, build_case, replay
from loop.synthesis.induced.entities import find_views
from loop.synthesis.induced.environment import Difficulty, InducedEnvironment, case_values, complete
from loop.synthesis.induced.evidence import EvidenceReport, tool_evidence
from loop.synthesis.induced.knowledge import Knowledge, gather
from loop.synthesis.induced.model import ToolModel
from loop.synthesis.induced.observations import Observation, canonical, observe, to_template
from loop.synthesis.induced.profiles import build_profiles
from loop.synthesis.induced.reads import Views, learn_read, visible_records
from loop.synthesis.induced.said import find_said
from loop.synthesis.induced.world import World, style_of
from loop.synthesis.induced.writes import learn_errors, learn_write
from storage.trajectory import Trajectory

Json = Any
log = structlog.get_logger()
CASES_PER_KIND = 40
REFERENCES_SUFFICE = 8
"""With this many references of a kind, the agent's own successes of it are left out: they got there, but often by
ways that are no example (an argument that a lenient tool forgave, an answer that is barely one)."""
TRIALS = 3
"""Seeds on which each case is played before it is used."""


class Capability(Protocol):
    """What `induce` needs of a detector: which good runs show the capability (its label is PRESENT)."""

    @property
    def id(self) -> str: ...

    def label(self, trajectory: Trajectory) -> Any: ...


def induce(
    trajectories: Sequence[Trajectory],
    capability: Capability | None = None,
    *,
    tools: Sequence[Mapping[str, Json]] | None = None,
    name: str | None = None,
    min_cases: int = 8,
    difficulty: Difficulty | None = None,
) -> InducedEnvironment | EvidenceReport:
    """Induce an environment from one agent's runs, failed ones included (their tool calls are evidence, too).

    Only successes and references become cases, and of these the ones in which ``capability`` shows (without one: all).
    The answer is an EvidenceReport when fewer than ``min_cases`` of those are left; it says why.
    """
    agent = trajectories[0].agent if trajectories else ""
    tools = tools if tools is not None else _common_tools(trajectories)
    seen = observe(trajectories)
    models, views, knowledge = learn(seen, tools, trajectories)
    good = [t for t in trajectories if t.success is True or t.reference]
    by_run: dict[str, list[Observation]] = defaultdict(list)
    for o in seen:
        by_run[o.trajectory].append(o)
    error_form = _error_form(seen)
    cases, dropped = _cases(good, seen, by_run, models, views, knowledge, tools, error_form)
    for case, run in [(c, t) for c in cases for t in good if t.id == c.source]:
        case.applies = capability is None or capability.label(run).value == "PRESENT"
    cases = _limit(cases, {t.id for t in good if t.reference})
    keys = {key for _, _, key in knowledge.first} | {key for _, _, key in knowledge.changed_first}
    fixed = fixed_values({"tools": list(tools)})
    values = [pair for c in cases for pair in case_values(complete(c, cases, random.Random(0)), c)]
    evidence = EvidenceReport(
        agent=agent,
        capability=capability.id if capability else "any capability",
        usable=False,
        trajectories=len(trajectories),
        good=len(good),
        cases=len(cases),
        applying=sum(c.applies for c in cases),
        kinds=dict(Counter(c.kind for c in cases if c.applies).most_common()),
        types=dict(Counter(kind for _, kind, _ in knowledge.first).most_common()),
        tools=[tool_evidence(model) for model in models.values()],
        dropped=dict(dropped.most_common()),
    )
    environment = InducedEnvironment(
        name or f"{agent}:{evidence.capability}",
        tools,
        models,
        knowledge.types,
        build_profiles(values, keys, fixed),
        cases,
        evidence,
        error_form=error_form,
        difficulty=difficulty,
    )
    _drop_unsolved(environment)
    evidence.reasons = _reasons(evidence, tools, min_cases)
    evidence.usable = not evidence.reasons
    log.info("induced", agent=agent, capability=evidence.capability, cases=evidence.cases, usable=evidence.usable)
    return environment if evidence.usable else evidence


def learn(
    seen: Sequence[Observation], tools: Sequence[Mapping[str, Json]], trajectories: Sequence[Trajectory]
) -> tuple[dict[str, ToolModel], Views, Knowledge]:
    """What the tools do, from every answered call."""
    names = list(dict.fromkeys([str(function_of(t).get("name")) for t in tools] + [o.tool for o in seen]))
    schemas = {str(function_of(t).get("name")): t for t in tools}
    writes = {n for n in names if tool_kinds.is_write(n, schemas.get(n), [o.text for o in seen if o.tool == n]) is True}
    answered = [o for o in seen if not o.error]
    views = find_views(answered)
    knowledge = gather(seen, writes, views)
    read_fields: dict[str, set[str]] = defaultdict(set)
    for o in answered:
        if o.tool not in writes:
            for _, kind, _, fields in visible_records(o, views, knowledge.types):
                read_fields[kind] |= {f for f in fields if not f.startswith("@")}
    models: dict[str, ToolModel] = {}
    spoken = {t.id: " ".join(m.content for m in t.messages if m.role in ("user", "tool")) for t in trajectories}
    for name in names:
        mine = [o for o in answered if o.tool == name]
        errors = [o for o in seen if o.tool == name and o.error]
        schema = parameters_of(tools, name) or {}
        if name in writes:
            free = _free_arguments(mine, schema, spoken)
            model = learn_write(name, knowledge, read_fields, free=free)
        else:
            model = learn_read(name, mine, views, knowledge.types, knowledge.first)
            if tool_kinds.is_handover(name) or (model.shape == "constant" and mine and mine[0].arguments):
                model.kind = "other"
        model.style = style_of([o.text for o in mine if not isinstance(o.value, str)])
        learn_errors(model, errors, schema, knowledge.changes.get(name, ()), knowledge.first)
        models[name] = model
    _hide_search_terms(answered, models, views, knowledge)
    return models, views, knowledge


def _hide_search_terms(
    seen: Sequence[Observation], models: Mapping[str, ToolModel], views: Views, knowledge: Knowledge
) -> None:
    """Note on each record the arguments that found it, where no visible field holds them."""
    for o in seen:
        model = models.get(o.tool)
        if model is None:
            continue
        if model.shape == "key" and model.part and model.part.view:
            shown = [("", model.part.view.type, str(o.value), {})]
        else:
            shown = visible_records(o, views, knowledge.types)
        parts = [model.part, *model.parts.values()]
        for _, kind, key, _ in shown:
            for part in parts:
                if part is None or part.view is None or part.view.type != kind:
                    continue
                for condition in part.select:
                    if len(condition) == 3 and condition[1] == "@" + condition[0] and condition[0] in o.arguments:
                        for store in (knowledge.first, knowledge.changed_first):
                            record = store.get((o.trajectory, kind, key))
                            if record is not None:
                                record.setdefault(condition[1], o.arguments[condition[0]])


def _free_arguments(seen: Sequence[Observation], schema: Mapping[str, Json], spoken: Mapping[str, str]) -> list[str]:
    """Arguments that are worded by the agent: several words that nobody said or answered before."""
    properties = schema.get("properties") or {}
    found: list[str] = []
    for name in dict.fromkeys(n for o in seen for n in o.arguments):
        values = [(o.arguments[name], spoken.get(o.trajectory, "")) for o in seen if name in o.arguments]
        if (properties.get(name) or {}).get("enum") or not all(isinstance(v, str) for v, _ in values):
            continue
        own = sum(len(v.split()) >= 3 and v.casefold() not in text.casefold() for v, text in values)
        if len({v for v, _ in values}) > max(2, 0.2 * len(values)) and own > 0.6 * len(values):
            found.append(name)
    return found


def _common_tools(trajectories: Sequence[Trajectory]) -> Sequence[Mapping[str, Json]]:
    counts = Counter(canonical(t.tools) for t in trajectories if t.tools)
    if not counts:
        return ()
    best = counts.most_common(1)[0][0]
    return next(t.tools for t in trajectories if t.tools and canonical(t.tools) == best)


def _error_form(seen: Sequence[Observation]) -> str:
    """How this agent's tools word a refusal, as a template with the message left open."""
    forms: Counter[str] = Counter()
    for o in seen:
        if o.error and isinstance(o.value, dict):
            texts = [(k, v) for k, v in o.value.items() if isinstance(v, str) and k.lower() in ("error", "message")]
            if len(texts) == 1:
                forms[to_template(o.text, [("arg:message", texts[0][1])])] += 1
        elif o.error and o.text.lower().startswith("error"):
            forms["Error: ⟦arg:message⟧"] += 1
    usable = [f for f, _ in forms.most_common() if "⟦arg:message⟧" in f]
    return usable[0] if usable else ""


def _cases(
    good: Sequence[Trajectory],
    seen: Sequence[Observation],
    by_run: Mapping[str, Sequence[Observation]],
    models: Mapping[str, ToolModel],
    views: Views,
    knowledge: Knowledge,
    tools: Sequence[Mapping[str, Json]],
    error_form: str,
) -> tuple[list[Case], Counter[str]]:
    cases: list[Case] = []
    dropped: Counter[str] = Counter()
    for run in good:
        case = build_case(run, seen, knowledge, models, views)
        if isinstance(case, str):
            dropped[case] += 1
            continue
        why = replay(case, by_run.get(run.id, ()), _world(case, [case], models, knowledge, tools, error_form))
        if why:
            dropped[why] += 1
        else:
            cases.append(case)
    worlds = {c.source: _world(c, cases, models, knowledge, tools, error_form) for c in cases}
    find_said(cases, worlds, models)
    return cases, dropped


def _world(
    case: Case,
    cases: Sequence[Case],
    models: Mapping[str, ToolModel],
    knowledge: Knowledge,
    tools: Sequence[Mapping[str, Json]],
    error_form: str,
) -> World:
    tables = complete(case, cases, random.Random(0))
    return World(models, knowledge.types, tools, tables, case.memory, error_form)


def _limit(cases: Sequence[Case], references: Set[str]) -> list[Case]:
    """At most CASES_PER_KIND of each kind, so that a spec stays readable; references alone where they suffice."""
    shown = Counter((case.kind, case.applies) for case in cases if case.source in references)
    count: Counter[tuple[str, bool]] = Counter()
    kept: list[Case] = []
    for case in cases:
        if case.source not in references and shown[case.kind, case.applies] >= REFERENCES_SUFFICE:
            continue
        count[case.kind, case.applies] += 1
        if count[case.kind, case.applies] <= CASES_PER_KIND:
            kept.append(case)
    return kept


def _drop_unsolved(environment: InducedEnvironment) -> None:
    """Play each renamed case on a few seeds; one that its own solution does not solve is left out."""
    kept: list[Case] = []
    dropped: Counter[str] = Counter()
    alone = environment.copy()  # other cases' records cost most of the time, and once is enough to see them
    alone.difficulty = replace(environment.difficulty, distractors=0)
    for case in environment.cases:
        trials = [_trial(environment if seed == 0 else alone, case, seed) for seed in range(TRIALS)]
        why = next((why for why, _ in trials if why), "")
        if not why and len({key for _, key in trials}) == 1:
            why = "nothing in its request can be renamed"
        if why:
            dropped[why] += 1
        else:
            kept.append(case)
    environment.cases = kept
    evidence = environment.evidence
    evidence.dropped = dict((Counter(evidence.dropped) + dropped).most_common())
    evidence.cases, evidence.applying = len(kept), sum(c.applies for c in kept)
    evidence.kinds = dict(Counter(c.kind for c in kept if c.applies).most_common())


def _trial(environment: InducedEnvironment, case: Case, seed: int) -> tuple[str, str]:
    """(why its own solution does not solve a renamed case, or ""; the task's key)."""
    key = environment.pose(case, seed, random.Random(seed)).key
    goals = environment.goals()
    if not (goals.state or goals.required or goals.said):
        return "its outcome shows neither in a record nor in the answer", key
    before = environment.state()
    messages: list[dict[str, Json]] = []
    acts = environment.reference()
    for index, act in enumerate(acts):
        if act.tool is None:
            messages.append({"role": "assistant", "content": act.text})
            if environment.respond(act.text) is None and index < len(acts) - 1:
                return "the conversation ends before the solution does", key
            continue
        answer = environment.call(act.tool, act.arguments)
        if tool_kinds.is_error(answer):
            return f"{act.tool} refuses the renamed solution", key
        messages.append({"role": "assistant", "content": "", "tool_calls": [_call(act.tool, act.arguments)]})
        messages.append({"role": "tool", "content": answer})
    solved = score(goals, before, environment.state(), messages, reference=environment.reference())
    if not solved.success:
        return f"the renamed solution does not solve it ({solved.reasons[0].split(' ')[0].split('.')[0]})", key
    if score(goals, before, before, [], reference=acts).success:
        return "it is solved by doing nothing", key
    # A handover after look-ups: whoever hands over at once has looked nothing up, and the goals would not tell.
    at_once = [{"role": "assistant", "content": "", "tool_calls": [_call(r.tool, r.arguments)]} for r in goals.required]
    if len(at_once) < sum(1 for a in acts if a.tool) and score(goals, before, before, at_once, reference=acts).success:
        return "it is solved without the look-ups that lead to it", key
    return "", key


def _call(tool: str, arguments: Mapping[str, Json]) -> dict[str, Json]:
    return {"function": {"name": tool, "arguments": canonical(arguments)}}


def _reasons(evidence: EvidenceReport, tools: Sequence[Mapping[str, Json]], min_cases: int) -> list[str]:
    if not tools:
        return ["no tool schemas were recorded: import the runs with their tools"]
    if not evidence.good:
        return ["no run succeeded and none is a reference"]
    if evidence.applying >= min_cases:
        return []
    reasons = [f"{evidence.applying} good runs show the capability and can be replayed, {min_cases} are needed"]
    reasons += [f"{count} runs left out: {why}" for why, count in list(evidence.dropped.items())[:5]]
    return reasons
