"""Statistics of success rates: pure functions on counts and paired outcomes. Rates and intervals are fractions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Z95 = 1.959963984540054


def wilson_interval(successes: int, n: int, z: float = Z95) -> tuple[float, float]:
    """Wilson's score interval of a proportion (E. B. Wilson, 1927). No trials: (0, 1), nothing is known."""
    if n < 0 or not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n} trials is not a count")
    if n == 0:
        return 0.0, 1.0
    p = successes / n
    centre = p + z * z / (2 * n)
    spread = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    low = 0.0 if successes == 0 else max(0.0, (centre - spread) / scale)
    high = 1.0 if successes == n else min(1.0, (centre + spread) / scale)
    return low, high


def sign_test(gains: int, losses: int) -> float:
    """One-sided exact p-value that gains outnumber losses by chance (McNemar's exact test, one side)."""
    n = gains + losses
    return sum(math.comb(n, k) for k in range(gains, n + 1)) / 2**n


@dataclass(frozen=True, slots=True)
class Paired:
    """A candidate against a baseline on the same tasks. ``difference`` is candidate − baseline in success rate."""

    n: int
    gains: int
    losses: int
    difference: float
    interval: tuple[float, float]
    p_value: float


def paired_difference(
    baseline: Mapping[str, bool], candidate: Mapping[str, bool], *, resamples: int = 2000, seed: int = 0
) -> Paired:
    """Compare on the tasks that both have; the interval is a 95 % percentile bootstrap over tasks.

    Raises ValueError when no task is shared: two arms on different tasks cannot be paired.
    """
    tasks = sorted(set(baseline) & set(candidate))
    if not tasks:
        raise ValueError("the two arms share no task, so there is nothing to pair")
    deltas = np.array([int(candidate[t]) - int(baseline[t]) for t in tasks], dtype=float)
    gains, losses = int((deltas > 0).sum()), int((deltas < 0).sum())
    return Paired(
        n=len(tasks),
        gains=gains,
        losses=losses,
        difference=float(deltas.mean()),
        interval=_bootstrap_mean(deltas, resamples, seed),
        p_value=sign_test(gains, losses),
    )


def _bootstrap_mean(values: Sequence[float] | np.ndarray, resamples: int, seed: int) -> tuple[float, float]:
    data = np.asarray(values, dtype=float)
    draws = np.random.default_rng(seed).integers(0, len(data), size=(resamples, len(data)))
    low, high = np.quantile(data[draws].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)
