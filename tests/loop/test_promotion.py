from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loop.promotion import GateSettings, decide


def outcomes(*runs: tuple[int, bool]) -> dict[str, bool]:
    flat = [solved for count, solved in runs for _ in range(count)]
    return {str(i): solved for i, solved in enumerate(flat)}


def test_a_clear_gain_is_promoted():
    decision = decide(outcomes((10, True), (20, False)), outcomes((25, True), (5, False)))
    assert decision.verdict == "promote"
    assert decision.paired.gains == 15
    assert decision.paired.losses == 0


def test_a_gain_that_may_be_chance_is_held():
    assert decide(outcomes((10, True), (10, False)), outcomes((12, True), (8, False))).verdict == "hold"


def test_a_candidate_that_is_worse_is_rejected():
    assert decide(outcomes((10, True), (10, False)), outcomes((5, True), (15, False))).verdict == "reject"


def test_a_candidate_that_trades_old_successes_for_new_ones_is_rejected():
    serving = outcomes((10, True), (40, False))
    candidate = outcomes((10, False), (40, True))
    decision = decide(serving, candidate)
    assert decision.verdict == "reject"
    assert decision.lost_share == 1.0


def test_a_real_but_tiny_gain_is_held():
    serving = outcomes((1000, True), (1000, False))
    candidate = outcomes((1010, True), (990, False))
    assert decide(serving, candidate, GateSettings(min_gain=0.05)).verdict == "hold"


@given(st.dictionaries(st.text(min_size=1, max_size=3), st.booleans(), min_size=1))
def test_a_candidate_equal_to_the_serving_policy_is_never_promoted(runs):
    assert decide(runs, dict(runs)).verdict == "hold"
