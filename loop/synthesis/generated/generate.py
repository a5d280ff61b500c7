"""A model writes, the sandbox runs it, admission judges, and what failed goes back: at most so many rounds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog

from harness.admission import AdmissionReport, Check, Thresholds, admit, fingerprint
from harness.sandbox.host import Limits, SandboxError, open_module
from loop.analysis.analyst.client import CachedClient
from loop.analysis.labels import Detector
from loop.synthesis.generated.brief import Brief, instructions, repair
from loop.synthesis.generated.module import LONGEST, code_in, compose, written_part
from loop.synthesis.labels import labeler, lapser
from loop.training.artifacts import publish_text

Json = Any
log = structlog.get_logger()
ROUNDS = 5
ANSWER_TOKENS = 16_000
"""A module of 400 lines takes about 5,000 tokens; some models think aloud first."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One answer and what admission said of it. ``source`` is the composed module, "" where there was none."""

    number: int
    source: str
    report: AdmissionReport

    @property
    def failed(self) -> list[str]:
        return [check.name for check in self.report.checks if not check.passed]


Judge = Callable[[Path], AdmissionReport]


async def generate(
    brief: Brief,
    asker: CachedClient,
    judge: Judge,
    folder: Path,
    *,
    rounds: int = ROUNDS,
    variant: int = 0,
    earlier: Sequence[Attempt] = (),
    keep: Callable[[Attempt, Path], None] = lambda attempt, path: None,
) -> Attempt:
    """Ask until a module is admitted or ``rounds`` are over; returns the last attempt, admitted or not.

    Each attempt is written to ``folder`` as `round-N.py` and handed to ``keep`` before the next one is asked for;
    ``earlier`` are those of a run that was interrupted, and are not made again. ``variant`` tells one series of rounds
    from the next on the same evidence, whose first question would be the same. Raises TraceError: the provider does
    not answer, the budget is used up, or this machine can't contain what is written.
    """
    attempt = earlier[-1] if earlier else None
    while attempt is None or (not attempt.report.admitted and attempt.number < rounds):
        number = attempt.number + 1 if attempt else 1
        question = brief.text() + ("\n\n" + _mend(attempt) if attempt else "")
        answer = await asker.ask(instructions(), question, variant * 1000 + number)
        code = code_in(answer)
        path = folder / f"round-{number}.py"
        if code is None or len(code) > LONGEST:
            publish_text(path, answer)
            why = "there is no Python module in the answer" if code is None else f"it has {len(code)} characters"
            attempt = Attempt(number, "", AdmissionReport("environment", (Check("answer", 0.0, "= 1", False, why),)))
        else:
            source = compose(code, brief.tools, brief.system)
            publish_text(path, source)
            # In a thread: admission runs event loops of its own, and takes its time.
            attempt = Attempt(number, source, await asyncio.to_thread(judge, path))
        log.info("generated", round=number, admitted=attempt.report.admitted, failed=attempt.failed)
        keep(attempt, path)
    return attempt


def _mend(attempt: Attempt) -> str:
    return repair(written_part(attempt.source) or "(there was none)", attempt.report)


def judge_for(
    brief: Brief,
    detector: Detector | None,
    *,
    systems: Sequence[str] = (),
    held_out: Sequence[str] = (),
    allow_weaker: bool = False,
    limits: Limits | None = None,
    thresholds: Thresholds | None = None,
) -> Judge:
    """Admission of a module in the sandbox, for this agent and capability. A fault of the module is a failed check;
    a machine that can't contain it is a TraceError, since no other module would fare better."""
    tools = list(brief.tools)
    label = labeler(detector) if detector else None
    lapse = lapser(detector, tools) if detector else None

    def opened(path: Path) -> Any:
        return open_module(path, limits=limits or Limits(), allow_weaker=allow_weaker)

    def elsewhere(path: Path, seeds: Sequence[int]) -> list[str]:
        make = opened(path)
        try:
            env = make()
            return [fingerprint(env, seed) for seed in seeds]
        finally:
            make.close()

    def judge(path: Path) -> AdmissionReport:
        try:
            make = opened(path)
        except SandboxError as error:
            return AdmissionReport(path.stem, (Check("loads", 0.0, "= 1", False, error.what),))
        try:
            report = admit(
                make,
                tools,
                lapse=lapse,
                label=label,
                systems=systems,
                held_out=held_out,
                elsewhere=lambda seeds: elsewhere(path, seeds),
                thresholds=thresholds,
            )
        finally:
            make.close()
        return replace(report, checks=(Check("loads", 1.0, "= 1", True, "imported in the sandbox"), *report.checks))

    return judge
