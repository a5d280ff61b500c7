"""TRL's GRPO trainer, made cheap for agent prompts and safe to interrupt.

What differs from `trl.GRPOTrainer`: a micro-batch is one group, whose prompt is computed once, and what all prompts
of a step share is computed once for the step (`shared_prompt`); a group of equal rewards, which has no gradient, is
not computed; where the sampling temperature is 1, the probability ratio is taken against the log-probabilities the
server sampled with, so that the difference between the two engines is corrected for; a checkpoint is written after
each step, whole or not at all, with the step's metrics in it.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PrinterCallback

from harness.rollouts import NOT_SAMPLED, common_prefix
from loop.training.activity import PROBE
from loop.training.artifacts import publish_folder
from loop.training.shared_prompt import Prefix, score_group, supports
from loop.training.steps import StepMetrics

with warnings.catch_warnings():
    # It warns about the version of vLLM that its own integration supports, which isn't used here.
    warnings.filterwarnings("ignore", message="TRL currently supports vLLM")
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

TRAINER_STATE = "trainer_state.json"
STEPS = "steps.json"


@dataclass(slots=True)
class _Meter:
    """Sums over the sampled tokens of one step."""

    tokens: int = 0
    difference: float = 0.0
    ratio: float = 0.0
    ratio_max: float = 0.0
    clipped: int = 0

    def add(self, raw: Tensor, served: Tensor, mask: Tensor, epsilon: float) -> None:
        """``raw`` and ``served``: log-probabilities at temperature 1 by the trainer and by the server."""
        off = (raw - served)[mask]
        ratio = off.exp()
        self.tokens += off.numel()
        self.difference += off.abs().sum().item()
        self.ratio += ratio.sum().item()
        self.ratio_max = max(self.ratio_max, ratio.max().item() if ratio.numel() else 0.0)
        self.clipped += int(((ratio - 1).abs() > epsilon).sum().item())

    def mean(self, total: float) -> float:
        return total / max(self.tokens, 1)


@dataclass(slots=True)
class StepRecorder:
    """Metrics of the steps so far. The rollout side opens a step and leaves a probe, the trainer completes it."""

    steps: list[StepMetrics] = field(default_factory=list)
    open: dict[str, Any] = field(default_factory=dict)
    probe: list[list[int]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)


class GroupTrainer(GRPOTrainer):
    """``recorder`` gets each step's metrics; ``on_step`` is called when a step is on disk under ``checkpoints``."""

    args: GRPOConfig
    model: Any  # a PeftModel

    def __init__(
        self,
        *args: Any,
        checkpoints: Path,
        recorder: StepRecorder,
        on_step: Callable[[StepMetrics], None] | None = None,
        share_prompts: bool = True,
        keep: int = 2,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        # It writes each step's logs to stdout, which belongs to the command that runs us.
        self.remove_callback(PrinterCallback)
        self._checkpoints = checkpoints
        self._recorder = recorder
        self._on_step = on_step
        self._keep = keep
        core = self.model.get_base_model()
        # Under DDP the reducer has to see the forward pass, so several processes take TRL's own path.
        self._shared = share_prompts and supports(core) and self.accelerator.num_processes == 1
        self._prefix: Prefix | None = None
        self._meter = _Meter()
        self._window: dict[str, Tensor] = {}

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        index = self._step % self.args.gradient_accumulation_steps
        if index == 0 or self._buffered_inputs is None:
            self._recorder.began = time.monotonic()
            batch = self._generate_and_score_completions(generation_batch)
            self._buffered_inputs = split_groups(batch, self.args.per_device_train_batch_size)
            self._meter = _Meter()
            self._begin_update(self._buffered_inputs)
        return self._buffered_inputs[index]

    def _begin_update(self, groups: Sequence[dict[str, Tensor]]) -> None:
        if self.temperature == 1.0:
            for group in groups:
                # Importance correction: the served model is the behaviour policy, not the trainer's copy of it.
                group["old_per_token_logps"] = group["sampling_per_token_logps"]
        if self._shared:
            prompts = [_prompt(group) for group in groups if group["advantages"].any()]
            with self.accelerator.autocast():
                self._prefix = Prefix(self._core(), prompts[0][: common_prefix(prompts)] if prompts else ())

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        loss = super().training_step(model, inputs, num_items_in_batch)
        if self._prefix is not None and self._step % self.args.gradient_accumulation_steps == 0:
            self._prefix.backward()
            self._prefix = None
        return loss

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        if not inputs["advantages"].any():
            # No gradient comes from a group of equal rewards, so neither does a forward pass.
            return next(p for p in model.parameters() if p.requires_grad).sum() * 0.0
        self._window = inputs
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        inputs, mask = self._window, sampled_mask(self._window)
        if not self._shared:
            result = super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy, **kwargs
            )
            if self.temperature == 1.0:
                self._compare(result[0].detach(), result[0].detach(), mask)
            return result
        rows = zip(inputs["completion_ids"], inputs["completion_mask"].bool(), strict=True)
        with self.accelerator.autocast():
            scores = score_group(
                self._core(),
                _prompt(inputs),
                [ids[real].tolist() for ids, real in rows],
                mask,
                temperature=self.temperature,
                prefix=self._prefix,
            )
        self._compare(scores.raw, scores.logps.detach(), mask)
        return scores.logps, scores.entropies, None

    def _compare(self, raw: Tensor, now: Tensor, mask: Tensor) -> None:
        """Meter what trainer and server make of the sampled tokens. Tokens of a reference, which no policy sampled,
        are left out, and get the ratio 1: their gradient is that of their likelihood, times the advantage."""
        served = self._window["sampling_per_token_logps"]
        given = served == NOT_SAMPLED
        self._meter.add(raw, served, mask & ~given, self.epsilon_high)
        old = self._window.get("old_per_token_logps")
        if old is not None:
            self._window["old_per_token_logps"] = torch.where(given, now, old)

    def _core(self) -> Any:
        return self.accelerator.unwrap_model(self.model).get_base_model()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        super().log(logs, start_time)
        if "grad_norm" in logs:  # not in the summary that ends a training run
            self._recorder.open |= {
                "loss": logs["loss"],
                "grad_norm": float(logs["grad_norm"]),
                "learning_rate": logs["learning_rate"],
                "entropy": logs.get("entropy") or 0.0,
            }

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """One step is done: its adapter, optimizer, RNG and metrics go to disk together, then it is reported."""
        meter, recorder = self._meter, self._recorder
        metrics = StepMetrics(
            **recorder.open,
            logprob_difference=meter.mean(meter.difference),
            ratio_mean=meter.mean(meter.ratio),
            ratio_max=meter.ratio_max,
            clipped=meter.mean(meter.clipped),
            seconds_training=time.monotonic() - recorder.began - recorder.open["seconds_rollouts"],
        )
        recorder.steps.append(metrics)

        def fill(folder: Path) -> None:
            self.model.save_pretrained(str(folder))
            self._save_optimizer_and_scheduler(str(folder))
            self._save_rng_state(str(folder))
            self.state.save_to_json(str(folder / TRAINER_STATE))
            (folder / PROBE).write_text(json.dumps(recorder.probe))
            (folder / STEPS).write_text(json.dumps([asdict(step) for step in recorder.steps]))

        publish_folder(checkpoint_path(self._checkpoints, self.state.global_step), fill)
        recorder.open = {}
        if self._on_step is not None:
            self._on_step(metrics)


def checkpoint_path(checkpoints: Path, step: int) -> Path:
    """Where the state after ``step`` optimizer steps lies; that of step 0 is the adapter training began with."""
    return checkpoints / f"step-{step:04d}"


def split_groups(batch: dict[str, Tensor], size: int) -> list[dict[str, Tensor]]:
    """Cut a generation batch into its groups, each without the padding that the other groups needed."""
    rows = batch["advantages"].size(0)
    groups = []
    for start in range(0, rows, size):
        group = {k: v if v.dim() == 0 else v[start : start + size] for k, v in batch.items()}
        prompt = int(group["prompt_mask"].sum(1).max())
        width = int(group["completion_mask"].sum(1).max())
        for key in ("prompt_ids", "prompt_mask"):
            group[key] = group[key][:, -prompt:]
        for key in ("completion_ids", "completion_mask", "tool_mask", "sampling_per_token_logps"):
            group[key] = group[key][:, :width]
        groups.append(group)
    return groups


def sampled_mask(inputs: dict[str, Tensor]) -> Tensor:
    """Which completion tokens the policy sampled: neither padding nor the environment's."""
    return (inputs["completion_mask"] * inputs["tool_mask"]).bool()


def _prompt(group: dict[str, Tensor]) -> list[int]:
    return group["prompt_ids"][0][group["prompt_mask"][0].bool()].tolist()
