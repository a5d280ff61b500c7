import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.router import BASE, Router, featurize, route_of

ARMS = [BASE, "refund@1", "address@2"]
WORDS = {
    0: ["what is the status of order", "where is my order", "has order shipped already, number"],
    1: ["i want my money back for order", "please refund the broken item of", "give me a refund for"],
    2: ["send my parcel to a new address, order", "i moved house, change the delivery place of", "new address for"],
}


def tasks(count: int, seed: int) -> tuple[list[str], np.ndarray]:
    """Texts of three kinds; on each kind another arm is good (0.9 against 0.2)."""
    source = random.Random(seed)
    texts, rewards = [], np.full((count, 3), 0.2)
    for i in range(count):
        kind = source.randrange(3)
        polite = source.choice(["hello, ", "hi there! ", "good day. ", ""])
        texts.append(f"{polite}{source.choice(WORDS[kind])} O-{source.randrange(10**5)}, mail x{i}@mail.com")
        rewards[i, kind] = 0.9
    return texts, rewards


def test_recovers_a_separable_assignment_on_texts_it_has_not_seen():
    router = Router.fit(*tasks(90, seed=1), ARMS)
    texts, rewards = tasks(120, seed=2)
    right = sum(
        router.choose(text).name == ARMS[int(best)] for text, best in zip(texts, rewards.argmax(1), strict=True)
    )
    assert right >= 114


def test_base_when_adapters_do_not_help():
    texts, rewards = tasks(60, seed=3)
    rewards[:, 1:] = rewards[:, :1] - 0.05
    router = Router.fit(texts, rewards, ARMS)
    assert router.arms == (BASE,)
    assert all(router.choose(text).name == BASE for text in texts)


def test_base_when_adapters_equal_it():
    texts, _ = tasks(40, seed=4)
    assert Router.fit(texts, np.full((40, 3), 0.5), ARMS).arms == (BASE,)


def test_an_adapter_that_helps_everywhere_is_used_everywhere():
    texts, _ = tasks(40, seed=5)
    rewards = np.tile([0.2, 0.8, 0.2], (40, 1))
    router = Router.fit(texts, rewards, ARMS)
    assert {router.choose(text).name for text in [*texts, "something else entirely"]} == {"refund@1"}


def test_noise_does_not_earn_a_place():
    texts, _ = tasks(60, seed=6)
    kept = 0
    for seed in range(10):
        rewards = np.random.default_rng(seed).integers(0, 2, (60, 3)).astype(float)
        rewards[:, 1:] -= 0.15  # worse on average, and independent of the text
        kept += len(Router.fit(texts, rewards, ARMS).arms) > 1
    assert kept <= 2


def test_the_order_of_arms_does_not_matter():
    texts, rewards = tasks(60, seed=7)
    one = Router.fit(texts, rewards, ARMS)
    other = Router.fit(texts, rewards[:, [2, 0, 1]], [ARMS[2], ARMS[0], ARMS[1]])
    assert [one.choose(t).name for t in texts] == [other.choose(t).name for t in texts]


def test_fitting_twice_gives_the_same_gate():
    first, second = (Router.fit(*tasks(50, seed=8), ARMS).to_json() for _ in range(2))
    assert first == second


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 12).flatmap(
        lambda n: st.tuples(
            st.lists(st.text(max_size=40), min_size=n, max_size=n),
            st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=n, max_size=n),
        )
    ),
    st.text(max_size=60),
)
def test_weights_are_a_distribution_and_survive_json(data: tuple[list[str], list[list[float]]], text: str):
    router = Router.fit(data[0], data[1], ARMS)
    weights = router.weights(text, ["get_order"])
    assert sum(weights.values()) == pytest.approx(1.0)
    assert min(weights.values()) >= 0
    again = Router.from_json(json.loads(json.dumps(router.to_json())))
    assert again.weights(text, ["get_order"]) == weights
    assert again.choose(text) == router.choose(text)


@given(st.dictionaries(st.sampled_from([BASE, "a", "b", "c", "d"]), st.floats(0.001, 1), min_size=1))
def test_a_route_has_at_most_two_parts_on_the_grid(raw: dict[str, float]):
    weights = {arm: value / sum(raw.values()) for arm, value in raw.items()}
    route = route_of(weights)
    assert len(route.parts) <= 2
    assert BASE not in dict(route.parts)
    if route.parts:
        assert sum(weight for _, weight in route.parts) == pytest.approx(1.0)
        assert all(round(weight * 10, 6).is_integer() and weight > 0 for _, weight in route.parts)
        assert all(weights[arm] > weights.get(BASE, 0.0) for arm, _ in route.parts)


def test_ties_go_to_base():
    assert route_of({BASE: 0.5, "a": 0.5}).name == BASE
    # One that only ties with base is not mixed into what beats it.
    assert route_of({BASE: 7 / 22, "a": 7 / 22, "b": 8 / 22}).name == "b"


def test_two_arms_give_a_mixture_and_a_tail_is_dropped():
    assert route_of({BASE: 0.04, "a": 0.56, "b": 0.4}).name == "a*0.6+b*0.4"
    assert route_of({BASE: 0.04, "a": 0.93, "b": 0.03}).name == "a"
    assert route_of({BASE: 0.0, "a": 0.5, "b": 0.5}).name == route_of({BASE: 0.0, "b": 0.5, "a": 0.5}).name
    assert route_of({BASE: 0.04, "a": 0.56, "b": 0.4}, mixing=False).name == "a"


def test_numbers_and_addresses_do_not_tell_tasks_apart():
    assert np.array_equal(featurize("refund O-1234 to ann@mail.com"), featurize("refund O-9876 to bob@web.org"))


def test_wrong_shapes_are_named():
    with pytest.raises(ValueError, match="shape"):
        Router.fit(["a"], [[1.0, 0.0]], ARMS)
    with pytest.raises(ValueError, match="base"):
        Router.fit(["a"], [[1.0]], ["x"])
    with pytest.raises(ValueError, match="numbers"):
        Router.fit(["a"], [[1.0, float("nan"), 0.0]], ARMS)
    with pytest.raises(ValueError, match="version"):
        Router.from_json({"kind": "softmax-ngrams", "dimensions": 7})
