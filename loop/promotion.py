"""The gate: the measured decision to promote, hold or reject a candidate policy. Pure; it reads outcomes only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from loop.statistics import Paired, paired_difference

Verdict = Literal["promote", "hold", "reject"]


@dataclass(frozen=True, slots=True)
class GateSettings:
    """What a candidate has to show on the gate split.

    ``min_gain``: least paired gain in success rate; ``alpha``: level of the one-sided exact paired test;
    ``max_lost``: largest share of the tasks solved by the serving policy that the candidate may lose (sampling
    alone loses some: both policies are sampled at the agent's own temperature).
    """

    min_gain: float = 0.05
    alpha: float = 0.05
    max_lost: float = 0.34


@dataclass(frozen=True, slots=True)
class Decision:
    """What the gate decided, with every number that it decided on."""

    verdict: Verdict
    reason: str
    paired: Paired
    lost_share: float


def decide(
    serving: Mapping[str, bool], candidate: Mapping[str, bool], settings: GateSettings | None = None
) -> Decision:
    """Compare a candidate with the serving policy on the gate split (task → solved).

    Promote when the gain is real and large enough and solved tasks stay solved; reject when the candidate is
    worse, or loses too much of what worked; otherwise hold: the evidence does not decide.
    """
    settings = settings or GateSettings()
    paired = paired_difference(serving, candidate)
    solved = sum(serving[t] for t in serving if t in candidate)
    lost_share = paired.losses / solved if solved else 0.0
    gain = f"{paired.difference:+.0%} on {paired.n} tasks, {paired.gains} gained, {paired.losses} lost"
    if paired.difference < 0:
        return Decision("reject", f"worse than the serving policy ({gain})", paired, lost_share)
    # Losing one of two solved tasks is chance; only a share of enough tasks says something.
    if lost_share > settings.max_lost and paired.losses >= 3:
        return Decision(
            "reject", f"loses {lost_share:.0%} of what the serving policy solves ({gain})", paired, lost_share
        )
    if paired.p_value > settings.alpha:
        return Decision("hold", f"the gain may be chance, p = {paired.p_value:.2f} ({gain})", paired, lost_share)
    if paired.difference < settings.min_gain:
        return Decision("hold", f"the gain is below {settings.min_gain:.0%} ({gain})", paired, lost_share)
    return Decision("promote", f"{gain}, p = {paired.p_value:.4f}", paired, lost_share)
