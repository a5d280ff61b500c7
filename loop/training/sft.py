"""Supervised tuning on dialogues: a LoRA for the warm start before GRPO, a whole model for the demo's base.

Only what the assistant writes has a loss. Dialogues that begin alike (one agent's system prompt and tools) are run
as one group whose shared beginning is computed once, with the exact gradient; on a CPU that is most of the cost.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from harness.rendering import Renderer
from harness.serving.adapters import read_adapter
from loop.training.artifacts import publish_folder
from storage.errors import TraceError

log = structlog.get_logger()

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear layers that get a LoRA: all seven of a decoder block."""

Progress = Callable[[int, int, float], None]
"""Called after each step with the step (from 1), the number of steps, and the step's loss."""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """Chat-completions messages with the tools they were held with; every assistant message is a target."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Learned:
    """``losses``: mean over the step's target tokens, in nats. ``tokens``: all tokens of the dialogues trained on,
    shared ones counted each time."""

    losses: tuple[float, ...]
    seconds: float
    tokens: int


@dataclass(frozen=True, slots=True)
class SFTResult:
    """As `Learned`; ``sha256`` covers the adapter's weights and configuration, as in `harness.serving.adapters`."""

    adapter: Path
    sha256: str
    losses: tuple[float, ...]
    seconds: float
    tokens: int


@dataclass(frozen=True, slots=True)
class _Row:
    """``family``: rows of one family have the same system prompt and tools."""

    family: str
    ids: tuple[int, ...]
    mask: tuple[int, ...] = field(repr=False)

    @property
    def first_target(self) -> int:
        return self.mask.index(1)


def train_sft(
    model_dir: Path,
    dialogues: Sequence[Dialogue],
    out_dir: Path,
    *,
    rank: int = 16,
    alpha: int = 32,
    lr: float = 1e-3,
    steps: int = 8,
    batch: int = 8,
    group: int | None = None,
    seed: int = 0,
    init_adapter: Path | None = None,
    first_layer: int = 0,
    max_tokens: int = 4096,
    progress: Progress | None = None,
) -> SFTResult:
    """Train a LoRA adapter and write it to ``out_dir``, whole or not at all. Same inputs, same batches.

    A step takes ``batch`` dialogues, in groups of up to ``group`` (default: the batch) that have the same tools and
    system prompt. AdamW, warm-up over a tenth of the steps, then linear decay to a tenth of ``lr``; gradients are
    clipped at norm 1. ``init_adapter`` goes on from an adapter instead of a new one (``rank``, ``alpha`` are then
    its own). Blocks before ``first_layer`` get no LoRA: the gradient ends there, which saves its share of the
    backward pass. Dialogues of more than ``max_tokens`` tokens are left out, with a warning.

    Raises TraceError when the model folder or all dialogues are missing.
    """
    import torch

    rows = _rows(Renderer(model_dir), dialogues, max_tokens)
    torch.manual_seed(seed)
    model, causal = _model(model_dir, rank, alpha, init_adapter, first_layer)
    batches = _batches(rows, steps, batch, group or batch, random.Random(seed))
    learned = _learn(causal, batches, lr, progress)
    publish_folder(out_dir, lambda folder: model.save_pretrained(str(folder)))
    return SFTResult(out_dir, read_adapter(out_dir).sha256, learned.losses, learned.seconds, learned.tokens)


def tune_whole(
    model_dir: Path,
    dialogues: Sequence[Dialogue],
    out_dir: Path,
    *,
    lr: float = 2e-4,
    steps: int = 8,
    batch: int = 8,
    group: int | None = None,
    seed: int = 0,
    first_layer: int = 0,
    max_tokens: int = 4096,
    progress: Progress | None = None,
) -> Learned:
    """Tune the model itself, as `train_sft` tunes an adapter, and write model and tokenizer into ``out_dir``.

    Embeddings and the blocks before ``first_layer`` stay as they are. Raises TraceError as `train_sft` does.
    """
    import torch

    renderer = Renderer(model_dir)
    rows = _rows(renderer, dialogues, max_tokens)
    torch.manual_seed(seed)
    causal = _load(model_dir)
    # A few hundred dialogues see few of the embeddings: what they would learn there does not carry over.
    for part in (causal.get_input_embeddings(), causal.get_output_embeddings(), *_blocks(causal)[:first_layer]):
        part.requires_grad_(False)
    learned = _learn(causal, _batches(rows, steps, batch, group or batch, random.Random(seed)), lr, progress)
    causal.save_pretrained(str(out_dir))
    renderer.tokenizer.save_pretrained(str(out_dir))
    return learned


def _learn(causal: Any, batches: Sequence[Sequence[Sequence[_Row]]], lr: float, progress: Progress | None) -> Learned:
    """Take one optimizer step for each batch, on whatever of the model wants a gradient."""
    import torch

    began = time.monotonic()
    steps = len(batches)
    trainable = [p for p in causal.parameters() if p.requires_grad]
    # One pass over the weights instead of a dozen: on a CPU the plain loop is memory traffic.
    optimizer = torch.optim.AdamW(trainable, lr=lr, weight_decay=0.0, fused=True)
    warmup = max(1, steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: min(1.0, (n + 1) / warmup) * (1 - 0.9 * max(0, n - warmup) / max(1, steps - warmup))
    )
    losses: list[float] = []
    tokens = 0
    causal.train()
    for step, groups in enumerate(batches, start=1):
        targets = sum(sum(row.mask) for members in groups for row in members)
        total = 0.0
        for members in groups:
            loss = _loss(causal, members) / targets
            loss.backward()
            total += float(loss.detach())
            tokens += sum(len(row.ids) for row in members)
        torch.nn.utils.clip_grad_norm_(trainable, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(total)
        log.debug("sft_step", step=step, loss=round(total, 4))
        if progress is not None:
            progress(step, steps, total)
    return Learned(tuple(losses), time.monotonic() - began, tokens)


def _model(model_dir: Path, rank: int, alpha: int, init_adapter: Path | None, first_layer: int) -> tuple[Any, Any]:
    """The PEFT model and the causal model inside it."""
    from peft import LoraConfig, PeftModel, get_peft_model

    base = _load(model_dir)
    if init_adapter is not None:
        model: Any = PeftModel.from_pretrained(base, str(init_adapter), is_trainable=True)
    else:
        layers = list(range(first_layer, base.config.num_hidden_layers)) if first_layer else None
        lora = LoraConfig(
            r=rank,
            lora_alpha=alpha,
            target_modules=list(PROJECTIONS),
            layers_to_transform=layers,
            task_type="CAUSAL_LM",
        )
        model = get_peft_model(base, lora)
    return model, model.get_base_model()


def _blocks(causal: Any) -> Sequence[Any]:
    return list(causal.get_decoder().layers)


def _load(model_dir: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    if not (model_dir / "config.json").is_file():
        raise TraceError("no model in the folder", where=str(model_dir), fix="Give the folder of a model.")
    gpu = torch.cuda.is_available()
    # float32 on the CPU: without AVX512-BF16, bfloat16 is emulated and slower.
    model: Any = AutoModelForCausalLM.from_pretrained(str(model_dir), dtype=torch.bfloat16 if gpu else torch.float32)
    return model.to("cuda" if gpu else "cpu")


def _rows(renderer: Renderer, dialogues: Sequence[Dialogue], max_tokens: int) -> list[_Row]:
    every: list[_Row] = []
    for dialogue in dialogues:
        marked = renderer.marked(dialogue.messages, dialogue.tools)
        system = [m.get("content") for m in dialogue.messages[:1] if m["role"] == "system"]
        every.append(_Row(json.dumps([system, list(dialogue.tools)]), marked.ids, marked.mask))
    rows = [row for row in every if len(row.ids) <= max_tokens]
    if len(rows) < len(every):
        log.warning("dialogues_left_out", count=len(every) - len(rows), max_tokens=max_tokens)
    if not rows:
        raise TraceError("no dialogues to train on", fix="Give at least one dialogue with an assistant message.")
    return rows


def _batches(rows: Sequence[_Row], steps: int, batch: int, group: int, rng: random.Random) -> list[list[list[_Row]]]:
    """``steps`` batches of groups. Passes over the rows are shuffled; a row comes again when all have been used.

    Groups hold rows of one family, dealt at random, not by length: the scoring runs similar lengths together.
    """
    families: dict[str, list[_Row]] = {}
    for row in rows:
        families.setdefault(row.family, []).append(row)
    per_step = max(1, batch // group)
    queue: list[list[_Row]] = []
    batches: list[list[list[_Row]]] = []
    while len(batches) < steps:
        if len(queue) < per_step:
            fresh: list[list[_Row]] = []
            for members in families.values():
                dealt = rng.sample(members, len(members))
                fresh += [dealt[i : i + group] for i in range(0, len(dealt), group)]
            rng.shuffle(fresh)
            queue += fresh
        taken, queue = queue[:per_step], queue[per_step:]
        batches.append(taken)
    return batches


def _loss(causal: Any, members: Sequence[_Row]) -> Any:
    """Sum of the negative log-probabilities of the targets of rows that begin alike."""
    import torch

    from loop.training.shared_prompt import score_group

    shared = _agreement(members, min(row.first_target for row in members))
    first = members[0].ids
    rests = [row.ids[shared:] for row in members]
    scored = torch.zeros((len(members), max(map(len, rests))), dtype=torch.bool, device=causal.device)
    for index, row in enumerate(members):
        scored[index, : len(rests[index])] = torch.tensor(row.mask[shared:], dtype=torch.bool)
    return -score_group(causal, first[:shared], rests, scored).logps[scored].sum()


def _agreement(members: Sequence[_Row], limit: int) -> int:
    """How many of the first ``limit`` tokens all rows have in common, at least one."""
    for position, column in enumerate(zip(*(row.ids[:limit] for row in members), strict=True)):
        if len(set(column)) > 1:
            return max(1, position)
    return limit
