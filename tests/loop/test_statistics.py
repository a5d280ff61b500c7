from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loop.statistics import paired_difference, sign_test, wilson_interval


@given(n=st.integers(1, 500), data=st.data())
def test_wilson_interval_holds_the_estimate_and_stays_in_bounds(n, data):
    successes = data.draw(st.integers(0, n))
    low, high = wilson_interval(successes, n)
    assert 0 <= low <= successes / n <= high <= 1
    assert low < high


def test_wilson_interval_matches_published_values():
    # 81 of 263: the worked example of Newcombe (1998), method 3: 0.2553 to 0.3662.
    low, high = wilson_interval(81, 263)
    assert (round(low, 4), round(high, 4)) == (0.2553, 0.3662)


def test_wilson_interval_without_trials_knows_nothing():
    assert wilson_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("successes", "n"), [(3, 2), (-1, 4), (0, -1)])
def test_wilson_interval_rejects_what_is_no_count(successes, n):
    with pytest.raises(ValueError, match="is not a count"):
        wilson_interval(successes, n)


def test_sign_test_is_exact():
    assert sign_test(5, 0) == 1 / 32
    assert sign_test(0, 0) == 1
    assert sign_test(0, 5) == 1
    assert sign_test(2, 1) == 0.5


@given(st.dictionaries(st.text(min_size=1, max_size=3), st.tuples(st.booleans(), st.booleans()), min_size=1))
def test_paired_difference_is_antisymmetric(outcomes):
    base = {task: pair[0] for task, pair in outcomes.items()}
    other = {task: pair[1] for task, pair in outcomes.items()}
    there, back = paired_difference(base, other), paired_difference(other, base)
    assert there.difference == pytest.approx(-back.difference)
    assert (there.gains, there.losses) == (back.losses, back.gains)
    assert there.interval[0] - 1e-9 <= there.difference <= there.interval[1] + 1e-9


def test_paired_difference_looks_at_shared_tasks_only():
    paired = paired_difference({"a": False, "b": True}, {"b": True, "c": True})
    assert (paired.n, paired.gains, paired.losses) == (1, 0, 0)


def test_arms_without_a_shared_task_cannot_be_compared():
    with pytest.raises(ValueError, match="share no task"):
        paired_difference({"a": True}, {"b": True})
