"""Log-probabilities of many completions without computing anything twice that they share.

The tokens of a training step are a tree. Every prompt begins with one system prompt and tool list; all completions
of a group follow one prompt; and they often begin alike, with the same call and the same answer to it. Each node is
run once. What the whole step shares is a `Prefix`; a group's completions are one packed sequence in which a token
attends to its ancestors only, so there is no padding either.

The gradient is exact: it flows back through the caches. Groups are separate backward passes (one group's activations
in memory at a time), so the prefix hands out *leaf* tensors, collects their gradients, and runs its own backward
once at the end (`Prefix.backward`).

Works for decoders with full attention and a plain head (`supports`); others take TRL's own path.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache

HEAD_CHUNK = 4096
"""Positions that go through the output head at once: bounds the logits in memory (positions × vocabulary)."""
PACK = 512
"""Tokens in one packed sequence: bounds the attention mask, and the attention to tokens that are no ancestors. On a
CPU that attention counts: a step of two groups of four took 14.1 s with 2048, 11.9 s with 512."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Per token, shape (rows, width), zero where not asked for. ``logps`` under ``temperature``, in nats, with
    gradient; ``raw`` at temperature 1 and ``entropies`` without. ``computed``: tokens that were run."""

    logps: Tensor
    raw: Tensor
    entropies: Tensor
    computed: int


def supports(model: Any) -> bool:
    """Whether the tree computation gives this model's exact log-probabilities."""
    config = model.config.get_text_config()
    if getattr(model.config, "_attn_implementation", None) not in ("sdpa", "eager"):  # others take no such mask
        return False
    rescaled = ("final_logit_softcapping", "logit_scale", "output_multiplier", "lm_head_multiplier", "logits_scaling")
    if any(getattr(config, name, None) is not None for name in rescaled):
        return False
    layers = getattr(config, "layer_types", None) or []
    if set(layers) - {"full_attention"} or (not layers and getattr(config, "sliding_window", None)):
        return False
    return not getattr(config, "output_router_logits", False) and not getattr(config, "is_encoder_decoder", False)


class Prefix:
    """The tokens that all prompts of a step begin with, run once.

    Without gradient (under `torch.no_grad`) it is just a cache. With it, `backward` has to be called after the
    backward passes of everything that used `cache`, and before the optimizer's step.
    """

    def __init__(self, model: Any, ids: Sequence[int]) -> None:
        self.length = len(ids)
        self._outputs: list[tuple[Tensor, Tensor]] = []
        self._leaves: list[tuple[Tensor, Tensor]] = []
        if ids:
            cache = DynamicCache(config=model.config)
            _run(model, torch.tensor([list(ids)], device=model.device), cache)
            self._outputs = _pairs(cache)
            self._leaves = [
                (k.detach().requires_grad_(k.requires_grad), v.detach().requires_grad_(v.requires_grad))
                for k, v in self._outputs
            ]

    def cache(self, model: Any) -> DynamicCache:
        """A cache that begins with this prefix, to be extended by one user."""
        return _cache_of(model, self._leaves)

    def backward(self) -> None:
        """Hand the gradients that users left in the cache on to the model's parameters. Once."""
        outputs, gradients = [], []
        for output, leaf in zip(_flat(self._outputs), _flat(self._leaves), strict=True):
            if leaf.grad is not None:
                outputs.append(output)
                gradients.append(leaf.grad)
        if outputs:
            torch.autograd.backward(outputs, gradients)
        self._outputs = self._leaves = []


def score_group(
    model: Any,
    prompt: Sequence[int],
    completions: Sequence[Sequence[int]],
    scored: Tensor,
    *,
    temperature: float = 1.0,
    prefix: Prefix | None = None,
) -> Scores:
    """Scores of ``completions`` (none empty) that all follow ``prompt``; ``scored`` (rows, width) says which tokens.

    ``model`` is the causal model (with LoRA layers inside, if any), not a PEFT wrapper. ``prefix``, if given, is what
    ``prompt`` begins with.
    """
    prefix = prefix if prefix is not None else Prefix(model, ())
    device = scored.device
    cache = prefix.cache(model)
    rest = torch.tensor([list(prompt[prefix.length :])], device=device)
    # States that predict a token: the prompt's last first, then those of the packed tokens.
    states = [_run(model, rest, cache)[0, -1:]]
    below = _pairs(cache)
    wanted: dict[tuple[int, int], int] = {}
    where = torch.full(scored.shape, -1)
    computed = rest.size(1)
    for pack in _packs(completions):
        offset = sum(len(part) for part in states)
        if pack.tokens:
            states.append(_run_packed(model, pack, _cache_of(model, below), len(prompt)))
            computed += len(pack.tokens)
        for row, path in pack.paths.items():
            # The token before predicts it: the prompt's last one for the first token of a completion.
            before = [0, *(offset + node for node in path)]
            for place in scored[row, : len(before)].nonzero()[:, 0].tolist():
                pair = (before[place], completions[row][place])
                where[row, place] = wanted.setdefault(pair, len(wanted))
    nodes = torch.tensor([node for node, _ in wanted], device=device, dtype=torch.long)
    targets = torch.tensor([token for _, token in wanted], device=device, dtype=torch.long)
    logps, raw, entropies = (
        # A zero at the end, which is what index -1 takes.
        torch.cat([piece, piece.new_zeros(1)])[where.to(device)]
        for piece in _through_head(model, torch.cat(states)[nodes], targets, temperature)
    )
    return Scores(logps, raw, entropies, computed)


@dataclass(slots=True)
class _Pack:
    """Part of a group as one sequence. ``paths``: for each row, the places of its tokens but the last, whose state
    predicts nothing. ``pieces``: (start, end, ancestors) of runs of tokens that follow one another."""

    tokens: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    pieces: list[tuple[int, int, list[int]]] = field(default_factory=list)
    paths: dict[int, list[int]] = field(default_factory=dict)

    def add(self, row: int, ids: Sequence[int], shared: Sequence[int]) -> None:
        """Add a row whose first tokens are at the places ``shared`` already."""
        start, end = len(self.tokens), len(self.tokens) + len(ids) - len(shared)
        self.tokens += ids[len(shared) :]
        self.depths += range(len(shared), len(ids))
        if end > start:
            self.pieces.append((start, end, list(shared)))
        self.paths[row] = [*shared, *range(start, end)]


def _packs(completions: Sequence[Sequence[int]]) -> list[_Pack]:
    """Pack rows in lexical order, where each shares its beginning with the one before if with any."""
    packs = [_Pack()]
    last: tuple[list[int], list[int]] = ([], [])
    for row in sorted(range(len(completions)), key=lambda r: list(completions[r])):
        ids = list(completions[row])[:-1]
        before, path = last
        shared = len(os.path.commonprefix([before, ids]))  # noqa: RUF071  # token by token is what is meant
        if packs[-1].tokens and len(packs[-1].tokens) + len(ids) - shared > PACK:
            packs.append(_Pack())
            shared, path = 0, []
        packs[-1].add(row, ids, path[:shared])
        last = (ids, packs[-1].paths[row])
    return packs


def _run_packed(model: Any, pack: _Pack, cache: DynamicCache, past: int) -> Tensor:
    """States of the packed tokens, shape (tokens, hidden). ``past``: how many tokens the cache holds."""
    size, device = len(pack.tokens), model.device
    allowed = torch.zeros((size, past + size), dtype=torch.bool)
    allowed[:, :past] = True
    for start, end, ancestors in pack.pieces:
        if ancestors:
            allowed[start:end, past + torch.tensor(ancestors)] = True
        allowed[start:end, past + start : past + end] = torch.ones(end - start, end - start).tril().bool()
    output = model.base_model(
        input_ids=torch.tensor([pack.tokens], device=device),
        position_ids=past + torch.tensor([pack.depths], device=device),
        # Four dimensions: transformers takes such a mask as it is.
        attention_mask=allowed[None, None].to(device),
        past_key_values=cache,
        use_cache=True,
    )
    return output.last_hidden_state[0]


def _through_head(model: Any, hidden: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    head = model.get_output_embeddings()

    def scores(states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = head(states).float()
        plain = logits.detach()
        raw = plain.gather(-1, tokens[:, None])[:, 0] - plain.logsumexp(-1)
        logps = torch.log_softmax(logits / temperature, dim=-1)
        with torch.no_grad():
            entropies = -(logps.exp() * logps).sum(-1)
        return logps.gather(-1, tokens[:, None])[:, 0], raw, entropies

    if len(hidden) <= HEAD_CHUNK:
        return scores(hidden, targets)
    parts = [
        checkpoint(scores, states, tokens, use_reentrant=False)
        for states, tokens in zip(hidden.split(HEAD_CHUNK), targets.split(HEAD_CHUNK), strict=True)
    ]
    first, second, third = zip(*parts, strict=True)  # type: ignore[misc]  # checkpoint is untyped
    return torch.cat(first), torch.cat(second), torch.cat(third)


def _run(model: Any, ids: Tensor, cache: DynamicCache) -> Tensor:
    """Hidden states of ``ids`` after what is in ``cache``, which grows by them. Shape (rows, width, hidden)."""
    return model.base_model(input_ids=ids, past_key_values=cache, use_cache=True).last_hidden_state


def _pairs(cache: DynamicCache) -> list[tuple[Tensor, Tensor]]:
    return [(layer.keys, layer.values) for layer in cache.layers]  # type: ignore[misc]  # set once a layer has run


def _flat(pairs: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
    return [tensor for pair in pairs for tensor in pair]


def _cache_of(model: Any, pairs: Sequence[tuple[Tensor, Tensor]]) -> DynamicCache:
    cache = DynamicCache(config=model.config)
    for layer, (keys, values) in enumerate(pairs):
        cache.update(keys, values, layer)
    return cache
