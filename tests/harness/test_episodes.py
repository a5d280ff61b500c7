from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
from hypothesis import given
from hypothesis import strategies as st

from harness.environment import Act, Goals, Task
from harness.episodes import run_episode, run_episodes
from harness.policies import (
    CallEverything,
    ChatPolicy,
    CopyTheExample,
    EchoPolicy,
    LapsePolicy,
    NullPolicy,
    OneArgumentWrong,
    RandomValidCall,
    ReferencePolicy,
    random_arguments,
)
from tests.harness.conformance import check_conformance
from tests.harness.desk import LoanDesk, lapse


def _successes(policy: Any, seeds: Sequence[int] = range(20)) -> float:
    episodes = asyncio.run(run_episodes(LoanDesk, seeds, policy))
    assert all(e.score is not None for e in episodes), [e.error for e in episodes]
    return sum(e.score.success for e in episodes if e.score) / len(episodes)


def test_the_hand_written_desk_conforms():
    check_conformance(LoanDesk, range(8))


def test_the_reference_solves_every_seed_and_policies_that_do_not_understand_solve_none():
    assert _successes(ReferencePolicy()) == 1.0
    lazy = (NullPolicy(), EchoPolicy(), RandomValidCall(), CallEverything(), LapsePolicy(lapse), OneArgumentWrong())
    for policy in (*lazy, CopyTheExample.from_seed(LoanDesk(), 1000)):
        assert _successes(policy) == 0.0, policy


def test_an_example_learned_by_heart_does_not_solve_even_itself():
    assert _successes(CopyTheExample.from_seed(LoanDesk(), 3), [3]) == 0.0


def test_episodes_at_once_equal_episodes_one_by_one():
    seeds = list(range(12))
    together = asyncio.run(run_episodes(LoanDesk, seeds, RandomValidCall()))
    alone = [asyncio.run(run_episode(LoanDesk(), s, RandomValidCall())) for s in seeds]
    assert [e.messages for e in together] == [e.messages for e in alone]


def test_the_number_of_turns_is_bounded():
    class Chatter:
        async def act(self, messages: Sequence[Mapping[str, Any]], tools: Any) -> dict[str, Any]:
            return {"tool_calls": [{"id": "x", "function": {"name": "find_loans", "arguments": "{}"}}]}

    episode = asyncio.run(run_episode(LoanDesk(), 0, Chatter(), max_turns=3))
    assert (episode.turns, episode.calls, episode.ended) == (3, 3, "turns")


def test_arguments_that_are_no_object_are_answered_and_not_raised():
    class Broken:
        async def act(self, messages: Sequence[Mapping[str, Any]], tools: Any) -> dict[str, Any]:
            if messages[-1]["role"] == "tool":
                return {"content": "I give up"}
            return {"tool_calls": [{"id": "x", "function": {"name": "find_loans", "arguments": "{oops"}}]}

    episode = asyncio.run(run_episode(LoanDesk(), 0, Broken()))
    assert episode.error is None
    assert "not a JSON object" in episode.messages[-2]["content"]
    assert episode.score is not None
    assert episode.score.components["well_formed"] == 0


def test_a_fault_is_attributed_and_gives_no_score():
    class Raises:
        async def act(self, messages: Any, tools: Any) -> dict[str, Any]:
            raise httpx.ConnectError("no server")

    class BadDesk(LoanDesk):
        def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
            raise KeyError("bug")

    by_agent = asyncio.run(run_episode(LoanDesk(), 0, Raises()))
    assert by_agent.score is None
    assert by_agent.error is not None
    assert by_agent.error["boundary"] == "agent"
    by_environment = asyncio.run(run_episode(BadDesk(), 0, ReferencePolicy()))
    assert by_environment.score is None
    assert by_environment.error is not None
    assert by_environment.error["boundary"] == "environment"


def test_the_users_next_turns_follow_what_the_agent_says():
    class TwoTurns(LoanDesk):
        def reset(self, seed: int) -> Task:
            self.turn = 0
            return super().reset(seed)

        def respond(self, text: str) -> str | None:
            self.turn += 1
            return "And now?" if self.turn == 1 else None

        def goals(self) -> Goals:
            return Goals(said=(("later",),))

        def reference(self) -> Sequence[Act]:
            return (Act(text="wait"), Act(text="later"))

    episode = asyncio.run(run_episode(TwoTurns(), 0, ReferencePolicy()))
    assert [m["role"] for m in episode.messages[episode.start :]] == ["assistant", "user", "assistant"]
    assert episode.score is not None
    assert episode.score.success


def test_a_chat_policy_speaks_the_openai_protocol():
    seen: list[dict[str, Any]] = []

    def reply(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/chat/completions"
        body = json.loads(request.content)
        seen.append(body)
        member = body["messages"][1]["content"].split()[2].rstrip(".")
        call = {
            "id": "c1",
            "type": "function",
            "function": {"name": "find_loans", "arguments": json.dumps({"member": member})},
        }
        done = body["messages"][-1]["role"] == "tool"
        message = {"role": "assistant", "content": "done"} if done else {"content": None, "tool_calls": [call]}
        return httpx.Response(200, json={"choices": [{"message": message}]})

    async def play():
        async with httpx.AsyncClient(transport=httpx.MockTransport(reply)) as client:
            policy = ChatPolicy("http://host/v1/", "cap@1", temperature=0.5, client=client)
            return await run_episode(LoanDesk(), 4, policy)

    episode = asyncio.run(play())
    assert episode.error is None
    assert episode.score is not None
    assert episode.score.components["progress"] == 0.5
    assert [body["model"] for body in seen] == ["cap@1", "cap@1"]
    assert seen[0]["tools"][0]["function"]["name"] == "find_loans"


@given(st.integers(0, 10_000))
def test_random_arguments_fit_their_schema(seed: int):
    import random

    from harness.arguments import problems

    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "enum": ["x", "y"]},
            "b": {"type": "array", "items": {"type": "integer"}},
            "c": {"type": "object", "properties": {"d": {"type": "boolean"}}, "required": ["d"]},
            "e": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        },
        "required": ["a", "b"],
    }
    assert problems(schema, random_arguments(schema, random.Random(seed), ["pool"])) == []
