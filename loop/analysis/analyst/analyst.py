"""Discovery and labelling by a model: blind, repeated, every LACKING with a citation that exists."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from loop.analysis.analyst.client import CachedClient, Client, Ledger
from loop.analysis.analyst.transcript import render
from loop.analysis.contrast import Labels, Thresholds, gap_and_coverage, reaches
from loop.analysis.identity import SIMILAR, similarity
from loop.analysis.labelling import CODES, Candidate, encode
from loop.analysis.labels import NA, Detector, Label
from loop.analysis.view import View
from storage.errors import TraceError

log = structlog.get_logger()
LIMIT = 10
REPAIRS = 2
PER_DISCOVERY = 6
DISCOVERY_CALLS = 8


@dataclass(frozen=True, slots=True)
class Proposal:
    """A capability that the analyst proposes, in words."""

    name: str
    description: str
    hint: str


@dataclass
class Analyst:
    """A model that reads runs. Answers are kept in ``folder``: an interrupted analysis goes on where it stopped.

    ``known``: capabilities that earlier analyses found; they are labelled again, before new ones are proposed.
    """

    client: Client
    folder: Path
    budget: float | None = None
    concurrency: int = 8
    known: Sequence[Proposal] = ()
    ledger: Ledger = field(init=False)
    malformed: int = 0
    voided: int = 0

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.budget)
        self._asker = CachedClient(self.client, self.folder, self.ledger)

    def candidates(self, views: Sequence[View], success: np.ndarray, thresholds: Thresholds) -> list[Candidate]:
        """Discover, then label all runs in up to ``thresholds.passes`` passes. Outcomes only decide when to stop.

        Raises TraceError: no key, budget used up, or a model that mostly answers what can't be read.
        """
        return asyncio.run(self._candidates(views, success, thresholds))

    async def _candidates(self, views: Sequence[View], success: np.ndarray, thresholds: Thresholds) -> list[Candidate]:
        texts = [render(view) for view in views]
        proposals = await self.discover(texts)
        if not proposals or not texts:
            return []
        rounds: dict[int, list[list[Label | None]]] = {index: [] for index in range(len(proposals))}
        open_ones = list(rounds)
        gate = asyncio.Semaphore(self.concurrency)

        async def one(run: int, number: int, asked: Sequence[int]) -> dict[int, Label | None]:
            async with gate:
                return await self._label(views[run], texts[run], [(i, proposals[i]) for i in asked], number)

        for number in range(thresholds.passes):
            if not open_ones:
                break
            asked = tuple(open_ones)
            answers = await _all(one(run, number, asked) for run in range(len(views)))
            for index in asked:
                rounds[index].append([answer.get(index) for answer in answers])
            self._check_sense(len(views) * (number + 1))
            open_ones = [i for i in asked if _is_open(rounds[i], success, thresholds)]
            log.info("analyst_pass", number=number + 1, still_open=len(open_ones), spent=round(self.ledger.spent, 4))
        return [_candidate(proposals[i], labels) for i, labels in rounds.items()]

    async def discover(self, texts: Sequence[str]) -> list[Proposal]:
        """At most 10 distinct capabilities: those known, then new ones from an even sample of the runs."""
        prompt = _prompt("discover.md").replace("{limit}", str(LIMIT))
        size = PER_DISCOVERY * DISCOVERY_CALLS
        sample = [texts[int(i)] for i in np.linspace(0, len(texts) - 1, min(size, len(texts)))] if texts else []
        groups = [sample[i : i + PER_DISCOVERY] for i in range(0, len(sample), PER_DISCOVERY)]
        already = "".join(f"- {p.name}: {p.description}\n" for p in self.known)
        asks = [
            f"Already known:\n{already or '(none)'}\n\n"
            + "\n\n".join(f"=== run {i + 1} ===\n{text[: 24_000 // PER_DISCOVERY * 2]}" for i, text in enumerate(group))
            for group in groups
        ]
        found = await _all(self._json(prompt, ask, 0, _proposals) for ask in asks)
        if groups and all(answer is None for answer in found):
            raise TraceError(
                f"{self.client.model} did not answer in the form that was asked for", fix="try another one"
            )
        distinct = list(self.known)[:LIMIT]
        # Round by round, so that the first idea of every call comes before the second of any.
        ranked = [p for rank in range(LIMIT) for answer in found if answer is not None for p in answer[rank : rank + 1]]
        for proposal in ranked:
            words = f"{proposal.name} {proposal.description}"
            if len(distinct) < LIMIT and all(
                similarity(words, f"{d.name} {d.description}") < SIMILAR
                and d.name.casefold() != proposal.name.casefold()
                for d in distinct
            ):
                distinct.append(proposal)
        return distinct

    async def _label(
        self, view: View, text: str, asked: Sequence[tuple[int, Proposal]], number: int
    ) -> dict[int, Label | None]:
        """All labels of one run in one pass; None where a label is missing: not given, malformed, or void."""
        listed = "\n".join(f"c{i + 1} {p.name}: {p.description}" for i, p in asked)
        user = f"Capabilities:\n{listed}\n\nTranscript:\n{text}"
        rows = await self._json(_prompt("label.md"), user, number, lambda v: _rows(v, [f"c{i + 1}" for i, _ in asked]))
        labels: dict[int, Label | None] = {}
        for index, _ in asked:
            row = (rows or {}).get(f"c{index + 1}")
            labels[index] = None if row is None else self._as_label(row, view)
        return labels

    def _as_label(self, row: Mapping[str, Any], view: View) -> Label | None:
        value = row["label"]
        if value != "LACKING":
            return Label(value)
        step = row.get("step")
        if isinstance(step, str) and re.fullmatch(r"s?\d+", step):
            step = int(step.removeprefix("s"))
        evidence = str(row.get("evidence") or "")[:300]
        if isinstance(step, int) and not isinstance(step, bool) and 0 <= step < len(view.actions):
            return Label("LACKING", step, view.actions[step].position, evidence or "cited without words")
        if step is None and not view.actions and view.last_agent_message is not None:
            return Label("LACKING", None, view.last_agent_message, evidence or "cited without words")
        self.voided += 1
        return None

    async def _json(self, system: str, user: str, number: int, check: Any) -> Any:
        """A checked answer, after at most two requests to mend it; None if it stays malformed."""
        question = user
        for _ in range(REPAIRS + 1):
            text = await self._asker.ask(system, question, number)
            try:
                return check(_object(text))
            except ValueError as error:
                self._asker.forget(system, question, number)
                question = f"{user}\n\nYour last answer could not be used: {error}. Answer again, with the JSON only."
        self.malformed += 1
        return None

    def _check_sense(self, labelled: int) -> None:
        if self.malformed * 2 > labelled:
            raise TraceError(
                f"{self.client.model} gave {self.malformed} answers of {labelled} that could not be read",
                fix="use a model that can answer in JSON",
            )

    def note(self, runs: int, capabilities: int, passes: int) -> str:
        """What it took, against one call for each capability, run and pass."""
        ledger = self.ledger
        each = ledger.prompt_tokens / max(1, ledger.calls)
        return (
            f"the analyst read {ledger.prompt_tokens} tokens in {ledger.calls} calls ({ledger.cached} answers were "
            f"known already, ${ledger.spent:.2f}); one file, capability and pass at a time would have read about "
            f"{math.ceil(each * runs * capabilities * passes)}; {self.voided} labels void, {self.malformed} unreadable"
        )


async def _all(jobs: Iterable[Any]) -> list[Any]:
    """Run all at once; the first failure ends the others, so that nothing more is spent."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _prompt(name: str) -> str:
    return files("loop.analysis.analyst").joinpath(name).read_text("utf-8")


def _object(text: str) -> Mapping[str, Any]:
    """The JSON object in an answer, also between fences or words. Raises ValueError that says what is wrong."""
    start, end = text.find("{"), text.rfind("}")
    if start < 0 or end < start:
        raise ValueError("there is no JSON object in it")
    try:
        value = json.loads(text[start : end + 1])
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON ({error})") from None
    return value


def _proposals(value: Mapping[str, Any]) -> list[Proposal]:
    rows = value.get("capabilities")
    if not isinstance(rows, list):
        raise ValueError('there is no list "capabilities"')
    found: list[Proposal] = []
    for row in rows[:LIMIT]:
        if (
            isinstance(row, Mapping)
            and str(row.get("name") or "").strip()
            and str(row.get("description") or "").strip()
        ):
            texts = [" ".join(str(row.get(key) or "").split()) for key in ("name", "description", "hint")]
            found.append(Proposal(texts[0][:80], texts[1][:400], texts[2][:400] or texts[1][:400]))
    return found


def _rows(value: Mapping[str, Any], asked: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    rows = value.get("labels")
    if not isinstance(rows, list):
        raise ValueError('there is no list "labels"')
    found = {str(row.get("capability")): row for row in rows if isinstance(row, Mapping) and row.get("label") in CODES}
    missing = [key for key in asked if key not in found]
    if missing:
        raise ValueError(f"no valid label for {', '.join(missing)}")
    return found


def _is_open(rounds: Sequence[Sequence[Label | None]], success: np.ndarray, thresholds: Thresholds) -> bool:
    """Whether more passes could still change the verdict."""
    kept = 0
    for labels in rounds:
        gap, coverage = gap_and_coverage(encode([labels]), success)
        kept += gap is not None and bool(reaches(gap, coverage, thresholds))
    missed = len(rounds) - kept
    return kept < thresholds.passes_kept and missed <= thresholds.passes - thresholds.passes_kept


def _candidate(proposal: Proposal, rounds: Sequence[Sequence[Label | None]]) -> Candidate:
    slug = re.sub(r"[^a-z0-9]+", "_", proposal.name.lower()).strip("_")
    detector = Detector(
        id=f"llm:{slug}",
        name=proposal.name,
        description=proposal.description,
        hint=proposal.hint,
        look=lambda view: NA,
        lapse=lambda acts, context: None,
    )
    codes: Labels = encode(rounds)
    return Candidate(detector, codes, tuple(rounds[0]), "llm", tuple(tuple(labels) for labels in rounds))
