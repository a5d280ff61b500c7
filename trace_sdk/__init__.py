"""Record what a deployed LLM agent does, with one decorator.

import trace_sdk as trace

@trace.agent
def answer(question: str) -> str: ...
"""

from __future__ import annotations

import os

from trace_sdk._config import Redactor, from_environment
from trace_sdk._decorator import agent
from trace_sdk._evaluation import evaluation
from trace_sdk._recorder import recorder
from trace_sdk._run import Outcome, Run, live_run, put_outcome
from trace_sdk._tool import tool

__version__ = "0.1.0"
__all__ = ["Outcome", "Run", "agent", "current", "evaluation", "feedback", "flush", "init", "tool"]


def init(
    home: str | os.PathLike[str] | None = None,
    *,
    redact: Redactor | None = None,
    sample_successes: float = 1.0,
    ship_to: str | None = None,
) -> None:
    """Set where and how to record. Optional: without it the environment decides (TRACE_HOME, else ``.trace``).

    ``redact`` takes out personal data: patterns by kind (``{"EMAIL": r"..."}``), or a function of a text; the same
    value becomes the same ``<EMAIL_1>`` within a tree of runs. Secrets are taken out anyway. ``sample_successes``
    is the fraction (0..1) of runs known to have succeeded that is kept; the kept ones carry the weight of the
    others. ``ship_to`` is the address of a `trace-sdk collect` that what is recorded goes to (else TRACE_SHIP_TO);
    its token comes from TRACE_TOKEN. Raises ValueError for a fraction outside 0..1 or an address that is no http
    address, re.error for a pattern that is none.
    """
    recorder.configure(from_environment(home, redact, sample_successes, ship_to))


def current() -> Run | None:
    """The handle of the running trajectory (``.id``, ``.outcome(...)``, ``.note(...)``), or None outside a run."""
    return live_run()


def feedback(
    trajectory_id: str,
    outcome: bool | float | Outcome | None,
    score: float | None = None,
    source: str = "user",
    reason: str | None = None,
) -> None:
    """Say, now or days later and from any process, how a run went. The last verdict counts, all are kept.

    Raises TypeError when ``outcome`` is not a bool, a number, an `Outcome` or None.
    """
    put_outcome(trajectory_id, Outcome.of(outcome, score, reason), source)


def flush(timeout: float | None = 10.0) -> bool:
    """Wait at most ``timeout`` seconds until everything recorded so far is in the spool; False when it is not."""
    return recorder.flush(timeout)
