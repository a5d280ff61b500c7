"""The contrast of failures with successes: pure statistics on label arrays, no I/O, no trajectories.

Definitions (TRACE, arXiv 2604.05336): coverage = failures labelled LACKING / all failures; lacking rate = lacking /
(lacking + present); contrastive gap = lacking rate among failures − lacking rate among successes. NA and missing
labels are left out of rates. All rates and gaps are fractions. Intervals are 95 % percentile bootstraps that draw
whole tasks, because runs of one task are not independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

NA, PRESENT, LACKING, MISSING = 0, 1, 2, -1
RESAMPLES = 1000
MIN_APPLICABLE = 5
KEPT_SHARE = 0.8
# An estimate beyond twenty times the runs there are would be a guess.
MAX_SCALE = 20.0
_ROUNDING = 1e-9
# A bootstrap draws this many tasks' weights at once: bounds memory at about 100 MB.
_WEIGHT_CELLS = 12_500_000

Labels = NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What a capability has to reach. ``passes_kept`` of ``passes`` passes must reach both."""

    gap: float = 0.20
    coverage: float = 0.10
    passes: int = 10
    passes_kept: int = 8

    @classmethod
    def of(cls, gap: float = 0.20, coverage: float = 0.10, passes: int = 10) -> Thresholds:
        """The same share of passes (8 of 10) for any number of passes."""
        return cls(gap, coverage, passes, math.ceil(KEPT_SHARE * passes - 1e-9))


@dataclass(frozen=True, slots=True)
class Contrast:
    """What the labels of one capability say. Counts are means over passes. ``gap`` is None where undefined.

    ``stratified_gap`` compares within tasks that have both outcomes (Mantel–Haenszel weights), None without any.
    ``p_adjusted``: chance of a gap this large without one, adjusted for the number of candidates (Holm).
    ``more_runs``: about how many more runs would settle an open case; 0 when settled, None when no number would.
    ``agreement``: share of pairs of passes that agree on a run; 1 with one pass.
    """

    coverage: float
    coverage_ci: tuple[float, float]
    gap: float | None
    gap_ci: tuple[float, float] | None
    stratified_gap: float | None
    stratified_ci: tuple[float, float] | None
    strata: int
    lacking_failed: float
    present_failed: float
    na_failed: float
    lacking_succeeded: float
    present_succeeded: float
    na_succeeded: float
    missing: float
    passes_kept: int
    agreement: float
    p_adjusted: float | None
    more_runs: int | None
    selected: bool
    undecided: bool
    reason: str


def contrast(
    labels: Sequence[Labels] | NDArray[np.int8],
    success: NDArray[np.bool_],
    tasks: Sequence[object] | NDArray[np.int64],
    thresholds: Thresholds | None = None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> list[Contrast]:
    """Contrast every candidate.

    ``labels``: for each candidate an int8 array (passes, runs) of NA, PRESENT, LACKING or MISSING. With one pass (a
    detector, which has no noise between passes) both thresholds must hold in ≥ 80 % of the resamples, and
    ``passes_kept`` is that share of ``thresholds.passes``, rounded down; with more, passes are counted.
    ``success``: (runs,), known outcomes only. ``tasks``: (runs,), equal for runs of one task. The result doesn't
    depend on the order of the candidates, and for a fixed seed it is always the same.
    Raises ValueError when the shapes do not fit.
    """
    thresholds = thresholds or Thresholds()
    success = np.asarray(success, dtype=bool)
    codes = _codes(tasks)
    if success.ndim != 1 or codes.shape != success.shape:
        raise ValueError(f"{success.shape} outcomes and {codes.shape} tasks do not fit")
    for array in labels:
        if array.ndim != 2 or array.shape[1] != success.shape[0] or array.shape[0] == 0:
            raise ValueError(f"labels of shape {array.shape} do not fit {success.shape[0]} runs")
    if len(labels) == 0:
        return []
    clusters = int(codes.max()) + 1 if len(codes) else 0
    tables = [_Tables.count(array, success, codes, clusters) for array in labels]
    draws = _bootstrap(tables, resamples, seed, clusters, thresholds)
    p_values = _holm([draw.p_value for draw in draws])
    return [
        _conclude(table, draw, p, array, success, thresholds)
        for table, draw, p, array in zip(tables, draws, p_values, labels, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Tables:
    """Counts for each task, (columns, tasks), averaged over passes. Columns are named by the constants below."""

    cells: NDArray[np.float32]
    by_pass: NDArray[np.float64]
    """(passes, 4): lacking and present among failures, lacking and present among successes."""
    failed: int

    @classmethod
    def count(cls, array: Labels, success: NDArray[np.bool_], codes: NDArray[np.int64], clusters: int) -> _Tables:
        passes = array.shape[0]
        counts = np.zeros((4, clusters))
        by_pass = np.zeros((passes, 4))
        offset = codes + np.where(success, clusters, 0)
        for index in range(passes):
            row = array[index]
            for value, columns in ((LACKING, (0, 2)), (PRESENT, (1, 3))):
                both = np.bincount(offset[row == value], minlength=2 * clusters)
                failed, succeeded = both[:clusters], both[clusters:]
                counts[columns[0]] += failed
                counts[columns[1]] += succeeded
                by_pass[index, columns[0]] = failed.sum()
                by_pass[index, columns[1]] = succeeded.sum()
        counts /= passes
        all_failed = np.bincount(codes[~success], minlength=clusters)
        lf, pf, ls, ps = counts
        nf, ns = lf + pf, ls + ps
        both = (nf > 0) & (ns > 0)
        weight = np.where(both, nf * ns / np.maximum(nf + ns, 1e-12), 0.0)
        difference = np.where(both, lf / np.maximum(nf, 1e-12) - ls / np.maximum(ns, 1e-12), 0.0)
        cells = np.stack([lf, pf, ls, ps, all_failed, weight * difference, weight]).astype(np.float32)
        return cls(cells, by_pass, int((~success).sum()))


@dataclass(frozen=True, slots=True)
class _Draws:
    coverage_ci: tuple[float, float]
    gap_ci: tuple[float, float] | None
    stratified_ci: tuple[float, float] | None
    kept: float
    gap_error: float
    coverage_error: float
    p_value: float | None


def _bootstrap(
    tables: Sequence[_Tables], resamples: int, seed: int, clusters: int, thresholds: Thresholds
) -> list[_Draws]:
    """Draw tasks with replacement; one set of draws for all candidates, so that they can be compared."""
    if clusters == 0 or resamples == 0:
        return [_Draws((0.0, 1.0), None, None, 0.0, 0.0, 0.0, None) for _ in tables]
    stacked = np.concatenate([table.cells for table in tables]).T
    totals = np.empty((resamples, stacked.shape[1]), dtype=np.float64)
    generator = np.random.default_rng(seed)
    chunk = max(1, min(resamples, _WEIGHT_CELLS // clusters))
    for start in range(0, resamples, chunk):
        size = min(chunk, resamples - start)
        drawn = generator.integers(0, clusters, size=(size, clusters), dtype=np.int32)
        drawn += (np.arange(size, dtype=np.int32) * clusters)[:, None]
        weights = np.bincount(drawn.ravel(), minlength=size * clusters).reshape(size, clusters)
        totals[start : start + size] = weights.astype(np.float32) @ stacked
    columns = tables[0].cells.shape[0]
    return [_summary(totals[:, i * columns : (i + 1) * columns], thresholds) for i in range(len(tables))]


def _summary(totals: NDArray[np.float64], thresholds: Thresholds) -> _Draws:
    lf, pf, ls, ps, failed, stratum, weight = totals.T
    with np.errstate(divide="ignore", invalid="ignore"):
        coverage = np.where(failed > 0, lf / failed, 0.0)
        gaps = lf / (lf + pf) - ls / (ls + ps)
        stratified = np.where(weight > 1e-6, stratum / weight, np.nan)
    defined = gaps[np.isfinite(gaps)]
    kept = float(np.mean(reaches(gaps, coverage, thresholds)))
    # One-sided, with the customary correction that never gives 0.
    p_value = float((np.sum(defined <= 0) + 1) / (len(defined) + 1)) if len(defined) else None
    return _Draws(
        coverage_ci=_interval(coverage) or (0.0, 1.0),
        gap_ci=_interval(defined),
        stratified_ci=_interval(stratified[np.isfinite(stratified)]),
        kept=kept,
        gap_error=float(defined.std()) if len(defined) else 0.0,
        coverage_error=float(coverage.std()),
        p_value=p_value,
    )


def _interval(values: NDArray[np.float64]) -> tuple[float, float] | None:
    if len(values) == 0:
        return None
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def _conclude(
    table: _Tables,
    draw: _Draws,
    p_adjusted: float | None,
    array: Labels,
    success: NDArray[np.bool_],
    thresholds: Thresholds,
) -> Contrast:
    passes, runs = array.shape
    lf, pf, ls, ps = (float(x) for x in table.cells[:4].sum(axis=1, dtype=np.float64))
    missing = float((array == MISSING).sum()) / passes
    missing_failed = float((array[:, ~success] == MISSING).sum()) / passes
    succeeded = runs - table.failed
    coverage = lf / table.failed if table.failed else 0.0
    gap = lf / (lf + pf) - ls / (ls + ps) if lf + pf > 0 and ls + ps > 0 else None
    weight = float(table.cells[6].sum(dtype=np.float64))
    stratified = float(table.cells[5].sum(dtype=np.float64)) / weight if weight > 1e-6 else None
    if passes == 1:
        kept = math.floor(thresholds.passes * draw.kept + 1e-9)
        enough = draw.kept >= thresholds.passes_kept / thresholds.passes - 1e-9
    else:
        kept = _passes_kept(table.by_pass, table.failed, thresholds)
        enough = kept * thresholds.passes >= thresholds.passes_kept * passes
    few = _too_few(table.failed, succeeded, lf + pf, ls + ps)
    selected = enough and few is None and gap is not None
    reason = few or _reason(selected, gap, coverage, draw, kept, passes, thresholds, stratified)
    return Contrast(
        coverage=coverage,
        coverage_ci=draw.coverage_ci,
        gap=gap,
        gap_ci=draw.gap_ci if gap is not None else None,
        stratified_gap=stratified,
        stratified_ci=draw.stratified_ci if stratified is not None else None,
        strata=int((table.cells[6] > 1e-6).sum()),
        lacking_failed=lf,
        present_failed=pf,
        na_failed=table.failed - lf - pf - missing_failed,
        lacking_succeeded=ls,
        present_succeeded=ps,
        na_succeeded=succeeded - ls - ps - (missing - missing_failed),
        missing=missing,
        passes_kept=kept,
        agreement=agreement(array),
        p_adjusted=p_adjusted,
        more_runs=_more_runs(runs, lf + pf, ls + ps, gap, coverage, draw, thresholds, enough),
        selected=selected,
        undecided=few is not None,
        reason=reason,
    )


def _passes_kept(by_pass: NDArray[np.float64], failed: int, thresholds: Thresholds) -> int:
    lf, pf, ls, ps = by_pass.T
    with np.errstate(divide="ignore", invalid="ignore"):
        gaps = lf / (lf + pf) - ls / (ls + ps)
        coverage = lf / failed if failed else np.zeros_like(lf)
    return int(np.sum(reaches(gaps, coverage, thresholds)))


def reaches(gap: NDArray[np.float64] | float, coverage: NDArray[np.float64] | float, thresholds: Thresholds) -> Any:
    """Whether a gap and a coverage (or which of many) reach both thresholds. 0.3 − 0.1 reaches 0.2 in spite of binary.

    An undefined gap (NaN) reaches nothing.
    """
    with np.errstate(invalid="ignore"):
        return (np.asarray(gap) >= thresholds.gap - _ROUNDING) & (
            np.asarray(coverage) >= thresholds.coverage - _ROUNDING
        )


def gap_and_coverage(array: Labels, success: NDArray[np.bool_]) -> tuple[float | None, float]:
    """The gap (None where undefined) and coverage of one pass, (1, runs)."""
    row = array[0]
    lf, ls = float((row[~success] == LACKING).sum()), float((row[success] == LACKING).sum())
    pf, ps = float((row[~success] == PRESENT).sum()), float((row[success] == PRESENT).sum())
    failed = int((~success).sum())
    gap = lf / (lf + pf) - ls / (ls + ps) if lf + pf and ls + ps else None
    return gap, lf / failed if failed else 0.0


def _too_few(failed: int, succeeded: int, applicable_failed: float, applicable_succeeded: float) -> str | None:
    if not failed and not succeeded:
        return "no runs with a known outcome"
    if not failed:
        return "no failures to explain"
    if not succeeded:
        return "no successes to contrast with"
    if applicable_failed + applicable_succeeded == 0:
        return "applies to none of the runs"
    for side, count in (("failures", applicable_failed), ("successes", applicable_succeeded)):
        if count < MIN_APPLICABLE:
            return f"applies to only {count:g} of the {side}; {MIN_APPLICABLE} are needed"
    return None


def _reason(
    selected: bool,
    gap: float | None,
    coverage: float,
    draw: _Draws,
    kept: int,
    passes: int,
    thresholds: Thresholds,
    stratified: float | None,
) -> str:
    if gap is None:
        return "the gap is undefined"
    of = thresholds.passes if passes == 1 else passes
    if selected:
        text = f"gap {gap:.2f} and coverage {coverage:.2f} hold in {kept} of {of}"
        if stratified is not None and stratified < gap / 2 and draw.stratified_ci and draw.stratified_ci[0] <= 0:
            text += f"; within tasks the gap is only {stratified:.2f}, so part of it may be the tasks' difficulty"
        return text
    if coverage < thresholds.coverage:
        return f"coverage {coverage:.2f} is below {thresholds.coverage:.2f}"
    if gap < thresholds.gap:
        return f"gap {gap:.2f} is below {thresholds.gap:.2f}"
    return f"gap {gap:.2f} and coverage {coverage:.2f} hold in only {kept} of {of}"


def _more_runs(
    runs: int,
    applicable_failed: float,
    applicable_succeeded: float,
    gap: float | None,
    coverage: float,
    draw: _Draws,
    thresholds: Thresholds,
    enough: bool,
) -> int | None:
    """More runs of the same kind until the verdict would be clear, if rates stay as they are.

    Two needs: 5 applicable labels on either side, and errors small enough that each threshold is passed or missed
    in 80 % of the draws (0.84 standard errors away); errors shrink with the root of the number of runs.
    """
    scale = 1.0
    for count in (applicable_failed, applicable_succeeded):
        if count <= 0:
            return None
        scale = max(scale, MIN_APPLICABLE / count)
    clearly_missed = False
    if gap is not None:
        needs: list[float] = []
        for value, error, threshold in (
            (gap, draw.gap_error, thresholds.gap),
            (coverage, draw.coverage_error, thresholds.coverage),
        ):
            distance = abs(value - threshold)
            need = math.inf if distance < 1e-9 else (0.8416 * error / distance) ** 2
            needs.append(need)
            clearly_missed = clearly_missed or (value < threshold and need <= scale)
        if not clearly_missed and not (enough and scale == 1.0):
            scale = max(scale, *needs)
    return None if not math.isfinite(scale) or scale > MAX_SCALE else math.ceil(runs * (scale - 1) - 1e-9)


def agreement(array: Labels) -> float:
    """The share of pairs of passes that gave a run the same label; missing labels are left out. One pass: 1."""
    passes = array.shape[0]
    if passes < 2:
        return 1.0
    agreeing = pairs = 0.0
    present = (array != MISSING).sum(axis=0).astype(float)
    pairs = float((present * (present - 1)).sum())
    for value in (NA, PRESENT, LACKING):
        count = (array == value).sum(axis=0).astype(float)
        agreeing += float((count * (count - 1)).sum())
    return agreeing / pairs if pairs else 1.0


def _holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down adjustment over the candidates that have a p-value."""
    known = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    running = 0.0
    for rank, (p, index) in enumerate(known):
        running = max(running, min(1.0, p * (len(known) - rank)))
        adjusted[index] = running
    return adjusted


def _codes(tasks: Sequence[object] | NDArray[np.int64]) -> NDArray[np.int64]:
    if isinstance(tasks, np.ndarray) and np.issubdtype(tasks.dtype, np.integer):
        return np.unique(tasks, return_inverse=True)[1].astype(np.int64)
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(task, len(numbers)) for task in tasks], dtype=np.int64)
