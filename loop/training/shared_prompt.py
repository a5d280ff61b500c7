"""Log-probabilities of many completions without computing what they share more than once.

Agent prompts are long and mostly the same: every prompt of a step begins with one system prompt and tool list, and
all completions of a group follow one prompt. So the tokens of a step are a tree: prefix → rest of a group's prompt
→ completions. Each node is run once, and its keys and values are the cache of those below it. The gradient is
exact: it flows back through the caches. A step's groups are separate backward passes (one group's activations in
memory at a time), so the prefix hands out *leaf* tensors, collects their gradients, and runs its own backward once
at the end (`Prefix.backward`).

Works for decoders with full attention and a plain head (`supports`); others take TRL's own path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache

HEAD_CHUNK = 4096
"""Positions that go through the output head at once: bounds the logits in memory (positions × vocabulary)."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Per token, shape (rows, width), zero where not asked for. ``logps`` under ``temperature``, in nats, with
    gradient; ``raw`` at temperature 1 and ``entropies`` without."""

    logps: Tensor
    raw: Tensor
    entropies: Tensor


def supports(model: Any) -> bool:
    """Whether the tree computation gives this model's exact log-probabilities."""
    config = model.config.get_text_config()
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
        return _cache_of(model, self._leaves, 1)

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
    waste: float = 0.25,
) -> Scores:
    """Scores of ``completions`` (none empty) that all follow ``prompt``; ``scored`` (rows, width) says which tokens.

    ``model`` is the causal model (with LoRA layers inside, if any), not a PEFT wrapper. ``prefix``, if given, is what
    ``prompt`` begins with. Equal completions are run once; the others run in batches of similar length, so that
    padding stays below about ``waste`` of the tokens.
    """
    prefix = prefix if prefix is not None else Prefix(model, ())
    device = scored.device
    cache = prefix.cache(model)
    rest = torch.tensor([list(prompt[prefix.length :])], device=device)
    last = _run(model, rest, cache)[:, -1]
    below = _pairs(cache)

    rows: dict[tuple[int, ...], list[int]] = {}
    for index, completion in enumerate(completions):
        rows.setdefault(tuple(completion), []).append(index)
    hidden: list[Tensor] = []
    targets: list[Tensor] = []
    places: list[list[tuple[int, Tensor]]] = []
    for batch in _batches(sorted(rows, key=len), waste):
        width = len(batch[-1])
        padded = torch.tensor([[*ids, *([ids[-1]] * (width - len(ids)))] for ids in batch], device=device)
        # The last prompt token predicts the first token of a completion, so a completion's own last is not run.
        states = last.expand(len(batch), -1).unsqueeze(1)
        if width > 1:
            # Padding is on the right and attention is causal: real tokens never see it, so no mask is needed.
            states = torch.cat([states, _run(model, padded[:, :-1], _cache_of(model, below, len(batch)))], dim=1)
        for row, ids in enumerate(batch):
            wanted = scored[rows[ids][0], : len(ids)].nonzero()[:, 0]
            hidden.append(states[row, wanted])
            targets.append(padded[row, wanted])
            places.append([(index, wanted) for index in rows[ids]])

    pieces = _through_head(model, torch.cat(hidden), torch.cat(targets), temperature)
    sizes = [len(ids) for ids in targets]
    where = (
        torch.cat([torch.full_like(wanted, index) for copies in places for index, wanted in copies]),
        torch.cat([wanted for copies in places for _, wanted in copies]),
    )
    filled = []
    for piece in pieces:
        copied = [part for part, copies in zip(piece.split(sizes), places, strict=True) for _ in copies]
        filled.append(piece.new_zeros(scored.shape).index_put(where, torch.cat(copied)))
    return Scores(*filled)


def _batches(ordered: Sequence[tuple[int, ...]], waste: float) -> list[list[tuple[int, ...]]]:
    """Split completions, shortest first, so that no batch is padded by more than ``waste`` of its own tokens."""
    batches: list[list[tuple[int, ...]]] = []
    real = 0
    for ids in reversed(ordered):
        if batches and len(batches[-1][0]) * (len(batches[-1]) + 1) <= (real + len(ids)) * (1 + waste):
            batches[-1].append(ids)
            real += len(ids)
        else:
            batches.append([ids])
            real = len(ids)
    return [batch[::-1] for batch in batches]


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


def _cache_of(model: Any, pairs: Sequence[tuple[Tensor, Tensor]], rows: int) -> DynamicCache:
    cache = DynamicCache(config=model.config)
    for layer, (keys, values) in enumerate(pairs):
        cache.update(keys, values, layer)
    if rows > 1 and pairs:
        cache.batch_repeat_interleave(rows)
    return cache
