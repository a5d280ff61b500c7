"""Token-level episodes for training: what the model was given and what it sampled, as token ids.

Training must not re-tokenize text: the gradient belongs to the very tokens that were sampled. So prompts go to
`/v1/completions` as ids, sampled ids come back with their log-probabilities, and what the environment says is
appended as ids by the one renderer. Ids only ever grow; where the renderer can't extend them, the episode is
dropped and counted by its kind, and so is one whose provider, environment or grader fails: a fault is never a
reward of zero.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import httpx
import structlog

from harness.environment import Act, Environment
from harness.episodes import answer, run_episode
from harness.policies import ReferencePolicy, act_message
from harness.rendering import Marked
from harness.scoring import score, snapshot

log = structlog.get_logger()

Finish = Literal["done", "turns", "length", "context"]
"""How an episode ended: conversation over, turns ran out, a reply hit its token cap, or the context was full."""


class TokenRenderer(Protocol):
    """The part of `harness.rendering.Renderer` that episodes use."""

    def prompt_ids(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[int]: ...

    def parse(self, text: str) -> dict[str, Any]: ...

    def extend(
        self, ids: Sequence[int], messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> list[int]: ...

    def marked(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> Marked: ...


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """``max_tokens`` bounds one reply, ``max_context`` prompt and completion together (tokens), ``timeout`` one
    request (seconds), ``concurrency`` the episodes in flight. ``late``: for this share of the tasks an episode begins
    inside the reference solution (see `acts_played`)."""

    temperature: float = 1.0
    max_turns: int = 6
    max_tokens: int = 80
    max_context: int = 4096
    concurrency: int = 32
    timeout: float = 120.0
    late: float = 0.0


@dataclass(frozen=True, slots=True)
class Rollout:
    """One episode. ``reward`` is the shaped score of `harness.scoring`.

    ``completion_ids`` is all after the prompt; ``env_mask`` is 1 on sampled tokens and 0 on the environment's;
    ``logprobs`` (nats, at temperature 1) is 0.0 where the mask is. All three have one length.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    env_mask: tuple[int, ...]
    reward: float
    success: bool
    components: Mapping[str, float]
    seed: int
    turns: int
    finish: Finish


@dataclass(slots=True)
class RolloutBatch:
    """``groups``: the episodes of each seed, in the order of the seeds asked for, without the dropped ones.
    ``faults``: dropped episodes by kind. ``sampled`` counts sampled tokens, ``seconds`` the wall clock."""

    groups: list[list[Rollout]]
    faults: Counter[str] = field(default_factory=Counter)
    sampled: int = 0
    seconds: float = 0.0

    @property
    def rollouts(self) -> list[Rollout]:
        return [rollout for group in self.groups for rollout in group]


NOT_SAMPLED = 1.0
"""Stands for the log-probability of a token that no policy sampled: none can be above 0."""


class _Fault(Exception):
    """An episode that cannot be used. ``kind`` is one of provider, rendering:…, environment, grader."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


def collect(
    base_url: str,
    model: str,
    renderer: TokenRenderer,
    env_factory: Callable[[], Environment],
    seeds: Sequence[int],
    group_size: int,
    settings: RolloutSettings,
    *,
    transport: httpx.AsyncBaseTransport | None = None,
) -> RolloutBatch:
    """Run ``group_size`` episodes for each seed on the adapter or base that vLLM serves as ``model``.

    ``base_url`` ends in `/v1`; ``transport`` replaces the network. Not to be called inside a running event loop.
    """
    return asyncio.run(_collect(base_url, model, renderer, env_factory, seeds, group_size, settings, transport))


async def _collect(
    base_url: str,
    model: str,
    renderer: TokenRenderer,
    env_factory: Callable[[], Environment],
    seeds: Sequence[int],
    group_size: int,
    settings: RolloutSettings,
    transport: httpx.AsyncBaseTransport | None,
) -> RolloutBatch:
    began = time.monotonic()
    batch = RolloutBatch([[] for _ in seeds])
    slots = asyncio.Semaphore(settings.concurrency)
    async with httpx.AsyncClient(
        base_url=base_url.rstrip("/") + "/",
        timeout=httpx.Timeout(settings.timeout, connect=30.0),
        trust_env=False,
        transport=transport,
        # The server drops idle connections after 5 s; one that is reused just then is a lost episode.
        limits=httpx.Limits(max_connections=settings.concurrency + 4, keepalive_expiry=2.0),
    ) as client:
        await _warm(client, model, renderer, env_factory, seeds, settings)

        # A prompt is computed by the first episode of its group: requests that arrive together share nothing yet.
        computed = [asyncio.Event() for _ in seeds]

        async def one(index: int, seed: int, copy_number: int) -> None:
            if copy_number:
                await computed[index].wait()
            async with slots:
                try:
                    rollout = await _episode(
                        client, model, renderer, env_factory(), seed, copy_number, settings, computed[index].set
                    )
                except _Fault as fault:
                    batch.faults[fault.kind] += 1
                    log.warning("rollout dropped", kind=fault.kind, seed=seed, error=repr(fault.__cause__))
                    return
                finally:
                    computed[index].set()
            batch.groups[index].append(rollout)
            batch.sampled += sum(rollout.env_mask)

        await asyncio.gather(*(one(i, seed, k) for i, seed in enumerate(seeds) for k in range(group_size)))
    batch.seconds = time.monotonic() - began
    return batch


async def _warm(
    client: httpx.AsyncClient,
    model: str,
    renderer: TokenRenderer,
    env_factory: Callable[[], Environment],
    seeds: Sequence[int],
    settings: RolloutSettings,
) -> None:
    """Let the server compute what all prompts share. A fresh adapter starts with an empty prefix cache, and
    requests that arrive together would each compute the shared system prompt and tools."""
    try:
        prompts = []
        for seed in seeds[:2]:
            env = env_factory()
            prompts.append(renderer.prompt_ids(env.reset(seed).messages, env.tools))
        await _complete(client, model, prompts[0][: common_prefix(prompts)], 1, settings, seed=0)
    except Exception as error:  # the episodes that follow meet the same fault, and count it
        log.warning("prefix not warmed", error=repr(error.__cause__ or error))


def common_prefix(prompts: Sequence[Sequence[int]]) -> int:
    """Length of what all prompts begin with, short of any whole prompt: each keeps a token of its own."""
    shortest = min(len(prompt) for prompt in prompts) - 1
    for length in range(shortest):
        if any(prompt[length] != prompts[0][length] for prompt in prompts):
            return length
    return max(shortest, 0)


async def _episode(
    client: httpx.AsyncClient,
    model: str,
    renderer: TokenRenderer,
    env: Environment,
    seed: int,
    copy_number: int,
    settings: RolloutSettings,
    prompt_computed: Callable[[], None],
) -> Rollout:
    try:
        task = env.reset(seed)
        before = snapshot(dict(env.state()))
        goals, reference = env.goals(), env.reference()
        messages: list[dict[str, Any]] = [dict(message) for message in task.messages]
        for index, act in enumerate(reference[: acts_played(reference, settings.late, seed)]):
            message = act_message(act, index)
            messages += [message, *(_answers(env, message) or [])]
    except Exception as error:
        raise _Fault("environment") from error
    prompt = renderer.prompt_ids(messages, env.tools)
    ids: list[int] = list(prompt)
    logprobs: list[float] = []
    mask: list[int] = []
    finish: Finish = "turns"
    turns = 0
    while turns < settings.max_turns:
        room = settings.max_context - len(ids) - 1
        if room < 1:
            finish = "context"
            break
        reply = await _complete(
            client, model, ids, min(settings.max_tokens, room), settings, seed=_sampling_seed(seed, copy_number, turns)
        )
        prompt_computed()
        turns += 1
        ids += reply.ids
        logprobs += reply.logprobs
        mask += [1] * len(reply.ids)
        message = renderer.parse(reply.text)
        messages.append(message)
        if reply.finish_reason == "length":
            finish = "length"
            break
        try:
            # In a thread: an environment may wait for a process of its own.
            answers = await asyncio.to_thread(_answers, env, message)
        except Exception as error:
            raise _Fault("environment") from error
        if answers is None:
            finish = "done"
            break
        messages += answers
        if turns == settings.max_turns:
            break
        try:
            appended = renderer.extend(ids, messages, env.tools)
        except Exception as error:
            raise _Fault(f"rendering:{getattr(error, 'kind', type(error).__name__)}") from error
        ids += appended
        logprobs += [0.0] * len(appended)
        mask += [0] * len(appended)
    try:
        added = messages[len(task.messages) :]
        result = score(goals, before, env.state(), added, reference=reference, tools=env.tools)
    except Exception as error:
        raise _Fault("grader") from error
    # What the environment said last was not answered: it teaches nothing, and costs a row its length.
    while mask and not mask[-1]:
        mask.pop()
    length = len(prompt) + len(mask)
    return Rollout(
        prompt_ids=tuple(prompt),
        completion_ids=tuple(ids[len(prompt) : length]),
        logprobs=tuple(logprobs[: len(mask)]),
        env_mask=tuple(mask),
        reward=result.shaped,
        success=result.success,
        components=dict(result.components),
        seed=seed,
        turns=turns,
        finish=finish,
    )


async def reference_rollout(
    renderer: TokenRenderer, env: Environment, seed: int, settings: RolloutSettings
) -> Rollout | None:
    """The environment's own solution of a task as an episode: from where the episodes of its group begin, with the
    tokens that a policy would have sampled and `NOT_SAMPLED` for their log-probabilities.

    None where it is not solved, too long, or not rendered with its group's prompt. Raises what the environment and the
    renderer raise.
    """
    env.reset(seed)
    reference = env.reference()
    episode = await run_episode(env, seed, ReferencePolicy(), max_turns=len(reference))
    if episode.score is None or not episode.score.success:
        return None
    replies = [i for i, m in enumerate(episode.messages) if i >= episode.start and m["role"] == "assistant"]
    played = acts_played(reference, settings.late, seed)
    prompt = tuple(renderer.prompt_ids(episode.messages[: replies[played]], env.tools))
    marked = renderer.marked(episode.messages[: replies[-1] + 1], env.tools)
    if marked.ids[: len(prompt)] != prompt or len(marked.ids) > settings.max_context:
        return None
    mask = marked.mask[len(prompt) :]
    return Rollout(
        prompt_ids=prompt,
        completion_ids=marked.ids[len(prompt) :],
        logprobs=tuple(NOT_SAMPLED if own else 0.0 for own in mask),
        env_mask=mask,
        reward=episode.score.shaped,
        success=True,
        components=dict(episode.score.components),
        seed=seed,
        turns=len(replies) - played,
        finish="done",
    )


def acts_played(reference: Sequence[Act], share: float, seed: int) -> int:
    """How many acts of the reference are played before an episode begins: none for all but ``share`` of the seeds.

    Cut before one of its calls but the first, so that a policy meets the later choices of a long task without the
    price of the earlier ones, and the episodes of the task differ only from there on (Xi et al. 2024, arXiv
    2402.05808, start reinforcement learning inside demonstrations likewise). The same for each episode of a seed.
    """
    calls = [i for i, act in enumerate(reference) if act.tool]
    drawn = random.Random(f"late:{seed}")
    return drawn.choice(calls[1:]) if len(calls) > 1 and drawn.random() < share else 0


def _answers(env: Environment, message: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """What the world says next: a result for each call, or the user's turn. None when the conversation is over."""
    calls = message.get("tool_calls") or []
    if calls:
        return [answer(env, call) for call in calls]
    said = env.respond(str(message.get("content") or ""))
    return None if said is None else [{"role": "user", "content": said}]


@dataclass(frozen=True, slots=True)
class _Reply:
    text: str
    ids: list[int]
    logprobs: list[float]
    finish_reason: str


async def _complete(
    client: httpx.AsyncClient, model: str, ids: Sequence[int], max_tokens: int, settings: RolloutSettings, *, seed: int
) -> _Reply:
    body = {
        "model": model,
        "prompt": list(ids),
        "max_tokens": max_tokens,
        "temperature": settings.temperature,
        "seed": seed,
        "logprobs": 0,  # the sampled token's own
        "return_token_ids": True,
    }
    try:
        try:
            response = await client.post("completions", json=body)
        except (httpx.NetworkError, httpx.ConnectTimeout, httpx.RemoteProtocolError):
            # Once more: on a busy machine a connection breaks now and then, and a sample can be drawn again.
            response = await client.post("completions", json=body)
        response.raise_for_status()
        choice = response.json()["choices"][0]
        token_ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
        if not token_ids or len(token_ids) != len(logprobs):
            raise ValueError(f"{len(token_ids)} token ids with {len(logprobs)} log-probabilities")
    except (httpx.HTTPError, ValueError, KeyError, TypeError, IndexError) as error:
        raise _Fault("provider") from error
    return _Reply(choice["text"], token_ids, logprobs, choice["finish_reason"] or "stop")


def _sampling_seed(seed: int, copy_number: int, turn: int) -> int:
    """Different for every reply of a group, equal when the same step runs again after an interruption."""
    return (seed * 1_000_003 + copy_number * 1_009 + turn) % (1 << 31)
