"""The statistics of the contrast: definitions, edge cases, and what holds for any labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from loop.analysis.contrast import (
    LACKING,
    MISSING,
    NA,
    PRESENT,
    Contrast,
    Thresholds,
    agreement,
    contrast,
)
from loop.analysis.findings import contained


def one(codes: object, success: list[bool], tasks: Sequence[object] | None = None) -> Contrast:
    array = np.atleast_2d(np.array(codes, dtype=np.int8))
    return contrast([array], np.array(success, dtype=bool), tasks or list(range(len(success))))[0]


def test_the_definitions_on_a_case_counted_by_hand() -> None:
    codes = [LACKING] * 6 + [PRESENT] * 2 + [NA] * 2 + [LACKING] + [PRESENT] * 9 + [MISSING]
    success = [False] * 10 + [True] * 11
    found = one(codes, success)
    assert found.coverage == pytest.approx(0.6)
    assert found.gap == pytest.approx(6 / 8 - 1 / 10)
    assert (found.lacking_failed, found.present_failed, found.na_failed) == (6, 2, 2)
    assert (found.lacking_succeeded, found.present_succeeded, found.na_succeeded, found.missing) == (1, 9, 0, 1)
    assert found.selected
    assert found.gap_ci is not None
    assert found.gap_ci[0] < 0.65 < found.gap_ci[1]


@pytest.mark.parametrize(
    ("codes", "success", "reason"),
    [
        ([LACKING] * 20, [False] * 20, "no successes"),
        ([PRESENT] * 20, [True] * 20, "no failures"),
        ([NA] * 20, [False] * 10 + [True] * 10, "applies to none"),
        ([], [], "no runs"),
        ([LACKING] * 10 + [PRESENT] * 4 + [NA] * 6, [False] * 10 + [True] * 10, "only 4 of the successes"),
        ([LACKING] * 3 + [NA] * 7 + [PRESENT] * 10, [False] * 10 + [True] * 10, "only 3 of the failures"),
    ],
)
def test_what_cannot_be_decided_is_undecided_and_says_why(codes: list[int], success: list[bool], reason: str) -> None:
    found = one(codes, success)
    assert found.undecided
    assert not found.selected
    assert reason in found.reason


def test_one_task_only_is_contrasted_without_an_interval_of_any_width() -> None:
    found = one([LACKING] * 10 + [PRESENT] * 10, [False] * 10 + [True] * 10, ["t"] * 20)
    assert found.gap == 1.0
    assert found.gap_ci == (1.0, 1.0)
    assert found.strata == 1
    assert found.stratified_gap == pytest.approx(1.0)


def test_a_gap_that_difficulty_makes_vanishes_within_tasks_and_is_said() -> None:
    codes: list[int] = []
    success: list[bool] = []
    tasks: list[int] = []
    for task in range(40):
        hard = task % 2 == 0
        # On hard tasks the label is LACKING and 9 of 10 runs fail, on easy ones PRESENT and 9 of 10 succeed.
        for run in range(10):
            codes.append(LACKING if hard else PRESENT)
            success.append((run == 0) if hard else (run != 0))
            tasks.append(task)
    found = one(codes, success, tasks)
    assert found.gap == pytest.approx(0.8)
    assert found.stratified_gap == pytest.approx(0.0)
    assert "difficulty" in found.reason


def test_passes_are_counted_one_by_one() -> None:
    good = [LACKING] * 10 + [PRESENT] * 10
    bad = [PRESENT] * 20
    success = [False] * 10 + [True] * 10
    assert one([good] * 8 + [bad] * 2, success).passes_kept == 8
    assert one([good] * 8 + [bad] * 2, success).selected
    assert not one([good] * 7 + [bad] * 3, success).selected


def test_missing_is_not_na() -> None:
    success = [False] * 10 + [True] * 10
    found = one([LACKING] * 5 + [MISSING] * 5 + [PRESENT] * 10, success)
    assert found.coverage == pytest.approx(0.5)
    assert found.na_failed == 0
    assert found.missing == 5


def test_tasks_are_drawn_whole_so_few_tasks_give_wide_intervals() -> None:
    codes = ([LACKING] * 30 + [PRESENT] * 30) + ([PRESENT] * 50 + [LACKING] * 10)
    success = [False] * 60 + [True] * 60
    independent = one(codes, success)
    clustered = one(codes, success, [i // 15 for i in range(120)])
    assert independent.gap_ci is not None
    assert clustered.gap_ci is not None
    assert np.ptp(clustered.gap_ci) > 1.5 * np.ptp(independent.gap_ci)


def test_more_runs_are_asked_for_only_when_the_case_is_open() -> None:
    success = [False] * 40 + [True] * 40
    settled = one([LACKING] * 32 + [PRESENT] * 8 + [PRESENT] * 40, success)
    assert settled.more_runs == 0
    open_case = one([LACKING] * 14 + [PRESENT] * 26 + [PRESENT] * 34 + [LACKING] * 6, success)
    assert open_case.more_runs != 0
    few = one([LACKING] * 20 + [PRESENT] * 20 + [PRESENT] * 2 + [NA] * 38, success)
    assert few.undecided
    assert few.more_runs is not None
    assert few.more_runs >= 80 * 1.5


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(7)
    covered = 0
    for seed in range(150):
        success = np.repeat([False, True], 60)
        lacking = generator.random(120) < np.where(success, 0.2, 0.6)
        codes = np.where(lacking, LACKING, PRESENT).astype(np.int8)[None]
        found = contrast([codes], success, list(range(120)), resamples=300, seed=seed)[0]
        assert found.gap_ci is not None
        covered += found.gap_ci[0] <= 0.4 <= found.gap_ci[1]
    assert 0.88 <= covered / 150 <= 1.0


LABELS = hnp.arrays(np.int8, st.tuples(st.integers(1, 4), st.integers(0, 40)), elements=st.integers(-1, 2))


@settings(max_examples=150, deadline=None)
@given(LABELS, st.randoms(use_true_random=False))
def test_for_any_labels_the_counts_add_up_and_rates_are_fractions(array: np.ndarray, random: object) -> None:
    runs = array.shape[1]
    success = np.array([random.random() < 0.5 for _ in range(runs)], dtype=bool)  # type: ignore[attr-defined]
    tasks = [random.randrange(5) for _ in range(runs)]  # type: ignore[attr-defined]
    found = contrast([array], success, tasks, resamples=50)[0]
    assert found == contrast([array], success, tasks, resamples=50)[0]
    assert 0 <= found.coverage <= 1
    assert found.gap is None or -1 <= found.gap <= 1
    assert found.stratified_gap is None or -1.0001 <= found.stratified_gap <= 1.0001
    total = found.lacking_failed + found.present_failed + found.na_failed
    total += found.lacking_succeeded + found.present_succeeded + found.na_succeeded + found.missing
    assert total == pytest.approx(runs, abs=1e-3)
    assert not (found.selected and found.undecided)
    assert 0 <= agreement(array) <= 1
    if found.selected:
        assert found.gap is not None


@settings(max_examples=50, deadline=None)
@given(st.permutations(list(range(12))))
def test_the_verdicts_do_not_depend_on_the_order_of_candidates_or_runs(order: list[int]) -> None:
    generator = np.random.default_rng(0)
    success = np.array([False, True] * 6)
    arrays = [generator.integers(0, 3, size=(1, 12)).astype(np.int8) for _ in range(3)]
    tasks = list(range(12))
    straight = contrast(arrays, success, tasks, resamples=50)
    assert contrast(arrays[::-1], success, tasks, resamples=50)[::-1] == straight
    moved = contrast([a[:, order] for a in arrays], success[order], [tasks[i] for i in order], resamples=50)
    assert [m.gap for m in moved] == pytest.approx([s.gap for s in straight])


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        contrast([np.zeros((1, 3), dtype=np.int8)], np.array([True, False]), [1, 2])
    with pytest.raises(ValueError, match="do not fit"):
        contrast([], np.array([True, False]), [1])


def test_chance_is_adjusted_for_the_number_of_candidates() -> None:
    success = np.array([False] * 30 + [True] * 30)
    array = np.array([[LACKING] * 14 + [PRESENT] * 16 + [LACKING] * 7 + [PRESENT] * 23], dtype=np.int8)
    alone = contrast([array], success, list(range(60)))[0].p_adjusted
    among = contrast([array] * 10, success, list(range(60)))[0].p_adjusted
    assert alone is not None
    assert among == pytest.approx(min(1.0, 10 * alone))


def test_thresholds_keep_the_same_share_for_any_number_of_passes() -> None:
    assert Thresholds.of().passes_kept == 8
    assert Thresholds.of(passes=5).passes_kept == 4
    assert Thresholds.of(passes=1).passes_kept == 1
    assert Thresholds.of(passes=3).passes_kept == 3


def test_what_contains_a_lack_is_told_from_what_is_lacking_everywhere() -> None:
    success = np.array([False] * 4 + [True] * 2)
    outer = np.array([[LACKING, LACKING, PRESENT, NA, LACKING, PRESENT]], dtype=np.int8)
    inner = np.array([[LACKING, PRESENT, PRESENT, NA, PRESENT, PRESENT]], dtype=np.int8)
    everywhere = np.full((1, 6), LACKING, dtype=np.int8)
    assert contained(inner, outer, success) == (1.0, pytest.approx(1 / 3))
    assert contained(outer, outer, success) == (1.0, 0.0)
    assert contained(inner, everywhere, success) == (1.0, 1.0)
    assert contained(np.zeros_like(inner), outer, success) == (0.0, 0.5)


def test_a_gap_of_exactly_the_threshold_reaches_it() -> None:
    """3/10 - 1/10 is less than 0.2 in binary."""
    codes = [LACKING] * 3 + [PRESENT] * 7 + [LACKING] + [PRESENT] * 9
    found = one([codes] * 10, [False] * 10 + [True] * 10)
    assert found.passes_kept == 10
