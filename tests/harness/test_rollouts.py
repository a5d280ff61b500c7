"""Token-level episodes: ids only grow, the environment's tokens are masked, a fault is never a reward."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest

from harness.environment import Environment
from harness.rendering import Marked
from harness.rollouts import NOT_SAMPLED, RolloutBatch, RolloutSettings, collect, reference_rollout
from tests.harness.desk import LoanDesk
from tests.harness.toy import CoinEnvironment

END = 3
SETTINGS = RolloutSettings(max_turns=3, max_tokens=16, max_context=400, concurrency=4, timeout=5.0)


class Mismatch(Exception):
    kind = "prefix"


class ByteRenderer:
    """A message is its characters between a mark for its role and END; a call is "!" and its arguments."""

    def prompt_ids(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        return [i for m in messages for i in self._message(m)] + [1]

    def parse(self, text: str) -> dict[str, Any]:
        if text.startswith("!"):
            call = {"id": "c0", "type": "function", "function": {"name": "flip", "arguments": text[1:]}}
            return {"role": "assistant", "content": "", "tool_calls": [call]}
        return {"role": "assistant", "content": text}

    def extend(
        self, ids: Sequence[int], messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> list[int]:
        if "unrenderable" in str(messages[-2]["content"]):
            raise Mismatch
        return [*self._message(messages[-1]), 1]

    def marked(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> Marked:
        ids = [(i, int(own and at > 0)) for m in messages for own, at, i in self._owned(m)]
        return Marked(tuple(i for i, _ in ids), tuple(own for _, own in ids))

    def _owned(self, message: Mapping[str, Any]) -> list[tuple[bool, int, int]]:
        return [(message["role"] == "assistant", at, i) for at, i in enumerate(self._message(message))]

    def _message(self, message: Mapping[str, Any]) -> list[int]:
        calls = "".join(f"!{call['function']['arguments']}" for call in message.get("tool_calls") or ())
        return [1 if message["role"] == "assistant" else 2, *(ord(c) for c in message["content"] + calls), END]


class Model:
    """Stands in for vLLM: ``reply`` gives the text for a decoded prompt. Keeps the requests."""

    def __init__(self, reply: Callable[[str], str | int]) -> None:
        self.reply = reply
        self.requests: list[dict[str, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.requests.append(body)
        assert request.url.path == "/v1/completions"
        answer = self.reply("".join(chr(i) for i in body["prompt"]))
        if isinstance(answer, int):
            return httpx.Response(answer, json={"error": {"message": "no"}})
        ids = [*(ord(c) for c in answer), END][: body["max_tokens"]]
        choice = {
            "text": answer,
            "token_ids": ids,
            "logprobs": {"token_logprobs": [-0.5] * len(ids)},
            "finish_reason": "stop" if ids[-1] == END else "length",
        }
        return httpx.Response(200, json={"choices": [choice]})


def play(
    reply: Callable[[str], str | int],
    *,
    seeds: Sequence[int] = (1,),
    size: int = 2,
    settings: RolloutSettings = SETTINGS,
    env: Callable[[], Environment] = CoinEnvironment,
) -> tuple[RolloutBatch, Model]:
    model = Model(reply)
    transport = httpx.MockTransport(model)
    batch = collect("http://nowhere/v1", "a@1", ByteRenderer(), env, seeds, size, settings, transport=transport)
    return batch, model


def test_ids_only_grow_and_the_environments_tokens_are_masked() -> None:
    batch, model = play(lambda prompt: "more" if "And again." in prompt else "one")
    (first, second) = batch.groups[0]
    assert first == second
    text = "".join(chr(i) for i in first.completion_ids)
    assert text == "one\x03\x02And again.\x03\x01more\x03"
    assert [c for c, m in zip(text, first.env_mask, strict=True) if m] == list("one\x03more\x03")
    assert first.logprobs == tuple(-0.5 * m for m in first.env_mask)
    assert (first.turns, first.finish) == (2, "done")
    assert batch.sampled == 2 * sum(first.env_mask)
    prompts = [r["prompt"] for r in model.requests[1:]]
    assert all(p[: len(first.prompt_ids)] == list(first.prompt_ids) for p in prompts)
    assert {r["model"] for r in model.requests} == {"a@1"}
    assert all(r["return_token_ids"] and r["logprobs"] == 0 for r in model.requests)


def test_the_shared_prefix_goes_first_and_every_reply_of_a_group_is_sampled_anew() -> None:
    _, model = play(lambda prompt: "x", seeds=(1, 2), size=3)
    first, *rest = model.requests
    assert first["max_tokens"] == 1
    assert all(r["prompt"][: len(first["prompt"])] == first["prompt"] for r in rest)
    assert len(first["prompt"]) > len("Turn the coins.")
    assert len({r["seed"] for r in rest}) == len(rest) == 12


def test_groups_keep_the_order_of_the_seeds_and_the_reward_is_the_shaped_score() -> None:
    # The low bits of "o" are all set, those of "p" are not: at table 9 every coin is turned once.
    batch, _ = play(lambda p: "o" if "Table 9" in p and "again" not in p else "p", seeds=(8, 9))
    assert [[r.seed for r in group] for group in batch.groups] == [[8, 8], [9, 9]]
    (lost, _), (won, _) = batch.groups
    assert (lost.success, lost.reward, lost.components["state"]) == (False, 0.0, 0.0)
    assert (won.success, won.reward, won.components["state"]) == (True, 0.95, 1.0)


def test_calls_are_answered_and_broken_arguments_are_a_result() -> None:
    batch, _ = play(lambda prompt: "!{}" if "\x01" not in prompt[:-1] else "![" if "no such tool" in prompt else "end")
    text = "".join(chr(i) for i in batch.groups[0][0].completion_ids)
    assert "there is no such tool" in text
    assert "not a JSON object" in text
    assert batch.groups[0][0].turns == 3


def test_a_reply_that_hits_its_cap_ends_the_episode() -> None:
    batch, _ = play(lambda prompt: "x" * 100)
    rollout = batch.groups[0][0]
    assert (rollout.finish, rollout.turns, len(rollout.completion_ids)) == ("length", 1, 16)


def test_a_full_context_ends_the_episode() -> None:
    settings = RolloutSettings(max_turns=9, max_tokens=16, max_context=60)
    batch, _ = play(lambda prompt: "![", settings=settings)
    rollout = batch.groups[0][0]
    assert rollout.finish == "context"
    assert len(rollout.prompt_ids) + len(rollout.completion_ids) <= 60
    assert rollout.env_mask[-1] == 1


@pytest.mark.parametrize(
    ("reply", "kind"), [(lambda p: 500, "provider"), (lambda p: "unrenderable", "rendering:prefix")]
)
def test_a_fault_drops_the_episode_and_is_counted(reply: Callable[[str], str | int], kind: str) -> None:
    batch, _ = play(reply)
    assert batch.groups == [[]]
    assert batch.faults == {kind: 2}


def test_a_broken_connection_is_tried_once_more() -> None:
    broken: set[str] = set()

    def reply(prompt: str) -> str:
        if prompt not in broken:
            broken.add(prompt)
            raise httpx.ReadError("reset")
        return "x"

    batch, _ = play(reply, size=1)
    assert not batch.faults
    assert len(batch.groups[0]) == 1


def test_one_episodes_fault_leaves_the_others_alone() -> None:
    batch, _ = play(lambda prompt: 503 if "Table 1" in prompt else "x", seeds=(1, 2))
    assert [len(group) for group in batch.groups] == [0, 2]


def test_an_environment_that_raises_is_its_own_fault() -> None:
    class Broken(CoinEnvironment):
        def respond(self, text: str) -> str | None:
            raise RuntimeError("torn")

    batch, _ = play(lambda prompt: "x", env=Broken)
    assert batch.faults == {"environment": 2}


def test_a_late_episode_begins_inside_the_reference_and_is_scored_as_a_whole_one() -> None:
    late = replace(SETTINGS, late=1.0, max_context=2000, max_tokens=200)
    batch, _ = play(lambda prompt: "I can't.", seeds=(1, 2), settings=late, env=LoanDesk)
    for group in batch.groups:
        assert len({rollout.prompt_ids for rollout in group}) == 1
        text = "".join(chr(i) for i in group[0].prompt_ids)
        assert '"loans": [' in text  # what the first call found stands in the prompt
        assert not group[0].success
        assert group[0].components["progress"] == 0.5  # the call that was played counts; the second is missing
    whole, _ = play(lambda prompt: "I can't.", seeds=(1, 2), settings=replace(late, late=0.0), env=LoanDesk)
    assert '"loans": [' not in "".join(chr(i) for i in whole.groups[0][0].prompt_ids)


def test_a_task_of_one_call_has_no_late_beginning() -> None:
    batch, _ = play(lambda prompt: "x", settings=replace(SETTINGS, late=1.0))
    assert batch.groups[0][0].prompt_ids == tuple(ByteRenderer().prompt_ids(CoinEnvironment().reset(1).messages, ()))


@pytest.mark.parametrize("late", [0.0, 1.0])
def test_the_reference_as_an_episode_goes_on_from_its_groups_prompt(late: float) -> None:
    settings = replace(SETTINGS, late=late, max_context=2000)
    batch, _ = play(lambda prompt: "x", settings=settings, env=LoanDesk)
    episode = asyncio.run(reference_rollout(ByteRenderer(), LoanDesk(), 1, settings))
    assert episode is not None
    assert episode.success
    assert episode.prompt_ids == batch.groups[0][0].prompt_ids
    assert episode.turns == (2 if late else 3)
    desk = LoanDesk()
    desk.reset(1)
    own = "".join(chr(i) for i, m in zip(episode.completion_ids, episode.env_mask, strict=True) if m)
    assert own.endswith(f"{desk.reference()[2].text}\x03")
    assert episode.logprobs == tuple(NOT_SAMPLED * m for m in episode.env_mask)


def test_a_reference_that_solves_nothing_or_has_no_room_is_none() -> None:
    assert asyncio.run(reference_rollout(ByteRenderer(), CoinEnvironment(), 1, SETTINGS)) is None
    short = replace(SETTINGS, max_context=50)
    assert asyncio.run(reference_rollout(ByteRenderer(), LoanDesk(), 1, short)) is None
