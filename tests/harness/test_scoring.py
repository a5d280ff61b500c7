from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.environment import Act, Goals, RequiredCall
from harness.scoring import ABSENT, changed_paths, occurs, same, score, snapshot
from tests.harness.desk import LoanDesk

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab.", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab.", min_size=1, max_size=3), inner),
    max_leaves=8,
)
STATES = st.dictionaries(st.text("abc", min_size=1, max_size=2), VALUES, max_size=4)
PLAIN = st.none() | st.booleans() | st.sampled_from([0, 1, -1, 0.0, 1.0, float("nan"), "", "1", "a.b"])
KEYS = st.sampled_from(["", "a", "b", "a.b", "0"])
ANYTHING = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.dictionaries(KEYS, inner, max_size=3).map(MappingProxyType)
    ),
    max_leaves=12,
)


@st.composite
def altered(draw: st.DrawFn, value: Any) -> Any:
    """``value``, rebuilt; here and there something else stands in its place, or the same in another type."""
    if draw(st.integers(0, 9)) == 0:
        return draw(ANYTHING)
    if isinstance(value, Mapping):
        inner = {key: draw(altered(v)) for key, v in value.items() if draw(st.integers(0, 9))}
        return draw(st.sampled_from([inner, dict(reversed(inner.items())), MappingProxyType(inner)]))
    if isinstance(value, (list, tuple)):
        items = [draw(altered(v)) for v in value]
        return draw(st.sampled_from([items, tuple(items)]))
    return float(value) if type(value) is int and draw(st.booleans()) else value


PAIRS = ANYTHING.flatmap(lambda value: st.tuples(st.just(value), altered(value)))


def plainly_same(a: Any, b: Any) -> bool:
    """The definition of `same`, with no thought of time."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a is b or (set(a) == set(b) and all(plainly_same(a[k], b[k]) for k in a))
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return a is b or (len(a) == len(b) and all(plainly_same(x, y) for x, y in zip(a, b, strict=True)))
    return a is b or bool(a == b)


def plainly_changed(a: Any, b: Any, exempt: Sequence[str], path: str = "") -> list[str]:
    """The definition of `changed_paths`: level by level, each subtree compared again at each."""
    if any(path == e or path.startswith(f"{e}.") for e in exempt) or plainly_same(a, b):
        return []
    holds_exempt = not path or any(e.startswith(f"{path}.") for e in exempt)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        keys = [*a, *(k for k in b if k not in a)]
        places = [(a.get(k, ABSENT), b.get(k, ABSENT), f"{path}.{k}" if path else k) for k in keys]
    elif isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b):
        places = [(x, y, f"{path}.{n}") for n, (x, y) in enumerate(zip(a, b, strict=True))]
    elif holds_exempt and a is ABSENT and isinstance(b, Mapping):
        places = [(ABSENT, b[k], f"{path}.{k}") for k in b]
    else:
        return [path]
    return [found for x, y, inner in places for found in plainly_changed(x, y, exempt, inner)]


def _call(tool: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": function}]}


def _say(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def _play(env: LoanDesk, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    played: list[dict[str, Any]] = []
    for message in messages:
        played.append(message)
        for call in message.get("tool_calls", ()):
            function = call["function"]
            result = env.call(function["name"], json.loads(function["arguments"]))
            played.append({"role": "tool", "tool_call_id": "1", "content": result})
    return played


def _desk_score(*messages: dict[str, Any]):
    env = LoanDesk()
    env.reset(3)
    before = env.state()
    played = _play(env, list(messages))
    return score(env.goals(), before, env.state(), played, reference=env.reference(), tools=env.tools)


def _solution() -> tuple[Act, Act, Act]:
    env = LoanDesk()
    env.reset(3)
    look, write, say = env.reference()
    return look, write, say


def test_credit_rises_along_the_way_to_the_solution_and_only_the_whole_is_success():
    look, write, say = _solution()
    ladder = [
        _desk_score(),
        _desk_score(_call("extend_loan", loan_id="L-1", days=3), _say("Done.")),
        _desk_score(_call(look.tool or "", **look.arguments), _say("Done.")),
        _desk_score(
            _call(look.tool or "", **look.arguments), _call("extend_loan", loan_id="L-1", days=3), _say("Done.")
        ),
        _desk_score(
            _call(look.tool or "", **look.arguments), _call(write.tool or "", **write.arguments), _say("Done.")
        ),
        _desk_score(
            _call(look.tool or "", **look.arguments), _call(write.tool or "", **write.arguments), _say(say.text)
        ),
    ]
    shaped = [s.shaped for s in ladder]
    assert shaped == sorted(shaped)
    assert len(set(shaped)) == len(shaped)
    assert [s.success for s in ladder] == [False] * 5 + [True]
    assert [s.total for s in ladder] == [0, 0, 0, 0, 0.5, 1.0]


def test_a_change_that_nobody_asked_for_costs_more_than_stopping_before_it():
    look, write, say = _solution()
    env = LoanDesk()
    env.reset(3)
    other = next(i for i in env.state()["loans"] if i != write.arguments["loan_id"])
    stopped = _desk_score(_call(look.tool or "", **look.arguments))
    harmed = _desk_score(_call(look.tool or "", **look.arguments), _call("extend_loan", loan_id=other, days=15))
    assert harmed.shaped < stopped.shaped
    assert harmed.components["unchanged"] < 1
    also = _desk_score(
        _call("extend_loan", loan_id=other, days=15),
        _call(write.tool or "", **write.arguments),
        _say(say.text),
    )
    assert not also.success
    assert any("should not have been" in reason for reason in also.reasons)


def test_calling_the_same_thing_many_times_is_worth_less_than_once():
    look, _, _ = _solution()
    once = _desk_score(_call(look.tool or "", **look.arguments))
    often = _desk_score(*[_call(look.tool or "", **look.arguments)] * 30)
    assert often.shaped < once.shaped


def test_a_detour_lowers_the_reward_of_a_solution_but_never_below_an_unsolved_task():
    look, write, say = _solution()
    right = (_call(look.tool or "", **look.arguments), _call(write.tool or "", **write.arguments), _say(say.text))
    rewards = [_desk_score(*right[:1] * n, *right).shaped for n in range(6)]
    assert rewards[0] == 1.0
    assert all(a > b for a, b in pairwise(rewards))
    assert rewards[-1] > _desk_score(*right[:2], _say("Done.")).shaped


def test_going_round_in_circles_earns_less_with_every_turn():
    look, _, _ = _solution()
    around = (_call(look.tool or "", **look.arguments), _call("extend_loan", loan_id="L-1"))
    rewards = [_desk_score(*around * n).shaped for n in range(2, 6)]
    assert all(a > b for a, b in pairwise(rewards))


def test_a_malformed_call_lowers_the_reward_but_not_the_success():
    look, write, say = _solution()
    right = (_call(look.tool or "", **look.arguments), _call(write.tool or "", **write.arguments), _say(say.text))
    clean, clumsy = _desk_score(*right), _desk_score(_call("extend_loan", loan=1), *right)
    assert clumsy.success
    assert clumsy.total == 1.0
    assert clumsy.shaped < clean.shaped == 1.0


def test_required_and_forbidden_calls_decide():
    goals = Goals(required=(RequiredCall("a", {"x": 1}),), forbidden=(RequiredCall("b"),))
    assert score(goals, {}, {}, [_call("a", x=1, y=2)]).success
    assert not score(goals, {}, {}, [_call("a", x=2)]).success
    assert not score(goals, {}, {}, [_call("a", x=True)]).success
    broken = score(goals, {}, {}, [_call("a", x=1), _call("b", z=0)])
    assert not broken.success
    assert broken.total == 0


def test_a_tool_result_handed_on_verbatim_tells_the_user_nothing():
    result = json.dumps({"status": "shipped", "note": "x" * 100})
    goals = Goals(said=(("shipped", "sent"),))
    told = [{"role": "tool", "content": result}]
    assert not score(goals, {}, {}, [*told, _say(f"Here: {result}")]).success
    assert score(goals, {}, {}, [*told, _say("It has been Shipped.")]).success


@pytest.mark.parametrize(
    ("text", "told", "expected"),
    [
        ("12", "there are 12.", True),
        ("12", "there are 312", False),
        ("12", "it costs 12.50", False),
        ("O-1", "order o-1 is on its way", True),
        ("O-1", "order O-12", False),
        ("#W5", "order **#W5**", True),
        ("two  words", "TWO\nwords", True),
        ("", "anything", False),
    ],
)
def test_a_text_is_said_only_as_a_whole(text: str, told: str, expected: bool):
    assert occurs(text, [told]) is expected


@given(st.text("a1é., ", max_size=4), st.text("a1é., ", max_size=12))
def test_what_is_said_is_what_a_pattern_of_its_own_finds(text: str, told: str):
    needle = " ".join(text.split())
    before = r"(?<!\w)" if needle[:1].isalnum() else ""
    after = r"(?!\w)(?![.,]\d)" if needle[-1:].isdigit() else r"(?!\w)" if needle[-1:].isalnum() else ""
    found = re.search(before + re.escape(needle) + after, " ".join(told.split()))
    assert occurs(text, [told]) is (bool(needle) and found is not None)


@given(PAIRS)
def test_two_values_are_the_same_by_the_plain_definition(pair: tuple[Any, Any]):
    a, b = pair
    assert same(a, b) is plainly_same(a, b)
    assert same(b, a) is plainly_same(b, a)
    assert same(a, a)
    assert not same(a, ABSENT)
    assert not same(ABSENT, a)


@given(PAIRS, st.lists(st.lists(KEYS, max_size=3).map(".".join), max_size=2))
def test_changes_are_those_of_the_plain_definition(pair: tuple[Any, Any], exempt: list[str]):
    assert changed_paths(*pair, except_under=exempt) == plainly_changed(*pair, exempt)


def test_twelve_is_twelve_and_true_is_not_one():
    assert same(12, 12.0)
    assert not same(True, 1)
    assert not same([False], [0])
    assert same(ABSENT, ABSENT)
    assert not same(ABSENT, None)
    assert same({"a": (1, [2])}, MappingProxyType({"a": [1.0, (2,)]}))


@given(VALUES)
def test_a_snapshot_shares_nothing_that_could_be_changed(value: Any):
    def holders(v: Any) -> list[Any]:
        inner = v.values() if isinstance(v, dict) else v if isinstance(v, list) else ()
        return [v, *(h for i in inner for h in holders(i))] if isinstance(v, (dict, list)) else []

    taken = snapshot(value)
    assert same(taken, value)
    assert not {id(h) for h in holders(taken)} & {id(h) for h in holders(value)}


def test_a_snapshot_copies_what_is_no_json_as_well():
    value = {"kept": ({"a", "b"}, bytearray(b"x"))}
    taken = snapshot(value)
    assert taken == value
    value["kept"][0].clear()
    value["kept"][1].clear()
    assert taken == {"kept": ({"a", "b"}, bytearray(b"x"))}


@given(STATES)
def test_an_equal_state_has_no_changes(state: dict[str, Any]):
    assert changed_paths(state, json.loads(json.dumps(state))) == []


@given(STATES, STATES)
def test_states_differ_exactly_when_paths_changed(a: dict[str, Any], b: dict[str, Any]):
    assert (changed_paths(a, b) == []) is same(a, b)
    assert changed_paths(a, b, except_under=list({*a, *b})) == []


@given(STATES, STATES)
def test_components_and_totals_stay_between_zero_and_one(before: dict[str, Any], after: dict[str, Any]):
    goals = Goals(state={"a.b": 1, "b": 2}, said=(("x",),))
    result = score(goals, before, after, [_say("x")], reference=[Act("t", {"a": 1})])
    for value in (result.total, result.shaped, *result.components.values()):
        assert 0 <= value <= 1
    assert result.success is (result.total == 1.0)


def test_a_key_with_dots_is_found():
    assert score(Goals(state={"a.b.c": 1}), {}, {"a.b": {"c": 1}}, []).components["state"] == 1
