"""Train one LoRA adapter in one environment with GRPO: rollouts on vLLM, the gradient by TRL and PEFT.

Each step serves the adapter as it is now under a name of its own (a name is never given other weights), runs groups
of episodes on it, and makes one optimizer step. After each step everything needed to go on is on disk, so a run
that was killed or interrupted goes on after its last finished step.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from harness.environment import Environment
from harness.rollouts import NOT_SAMPLED, Rollout, RolloutSettings, TokenRenderer, collect, reference_rollout
from harness.serving.adapters import CONFIG, WEIGHTS, read_adapter
from loop.training.activity import PROBE
from loop.training.artifacts import publish_folder, publish_text
from loop.training.steps import GRPOResult, GRPOSettings, StepMetrics
from storage.errors import TraceError

if TYPE_CHECKING:
    from loop.training.group_trainer import StepRecorder

log = structlog.get_logger()

RUN, RESULT = "run.json", "result.json"


class AdapterServer(Protocol):
    """The part of `harness.serving.client.VLLMClient` that training uses."""

    @property
    def base_url(self) -> str: ...

    def load_adapter(self, name: str, path: Path) -> Any: ...

    def unload_adapter(self, name: str) -> None: ...


def train_grpo(
    *,
    model_dir: Path,
    server: AdapterServer,
    env_factory: Callable[[], Environment],
    out_dir: Path,
    name: str,
    init_adapter: Path | None = None,
    config: GRPOSettings | None = None,
    seed: int = 0,
    seeds: Callable[[int], int] = lambda draw: draw,
    on_step: Callable[[StepMetrics], None] | None = None,
    resume: bool = True,
    renderer: TokenRenderer | None = None,
) -> GRPOResult:
    """Train ``name`` (`capability@version`) and return the finished adapter, under ``out_dir / "adapter"``.

    ``server`` serves the model of ``model_dir``. ``seeds`` maps the n-th draw to a task's seed: give a stream that
    gate and report tasks don't come from. ``on_step`` is called once a step is on disk (a run killed between the
    two doesn't repeat the call: `GRPOResult.steps` is the whole list). ``resume`` goes on with what ``out_dir``
    holds; a finished run is returned as it is. Raises TraceError when ``out_dir`` holds a run with other settings,
    or when no episode can be run.
    """
    config = config or GRPOSettings()
    checkpoints = out_dir / "checkpoints"
    init_sha = read_adapter(init_adapter).sha256 if init_adapter is not None else None
    if not resume:
        shutil.rmtree(out_dir, ignore_errors=True)
    _check_same_run(out_dir, {"name": name, "seed": seed, "init": init_sha, "config": asdict(replace(config, steps=0))})
    finished = read_result(out_dir)
    if finished is not None and len(finished.steps) >= config.steps:
        return finished

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # `rollout_func` may change: the version is pinned
    import torch

    from loop.training.group_trainer import STEPS, GroupTrainer, StepRecorder, checkpoint_path

    if config.threads or not torch.cuda.is_available():
        torch.set_num_threads(config.threads or os.cpu_count() or 1)
    last = _last_checkpoint(checkpoints)
    recorder = StepRecorder()
    if last is not None:
        recorder.steps = [StepMetrics(**step) for step in json.loads((last / STEPS).read_text())]
        log.info("grpo resumes", name=name, steps=len(recorder.steps))
    if len(recorder.steps) < config.steps:
        if renderer is None:
            renderer = _renderer(model_dir)
        rollouts = _Rollouts(name, server, renderer, env_factory, seeds, config, checkpoints, recorder)
        trainer = _trainer(
            GroupTrainer,
            model_dir,
            init_adapter,
            config,
            seed,
            rollouts,
            checkpoints=checkpoints,
            recorder=recorder,
            on_step=on_step,
            share_prompts=config.share_prompts,
        )
        if last is None:
            publish_folder(checkpoint_path(checkpoints, 0), lambda folder: trainer.model.save_pretrained(str(folder)))
        try:
            trainer.train(resume_from_checkpoint=str(last) if last is not None else None)
        finally:
            rollouts.close()
        last = checkpoint_path(checkpoints, len(recorder.steps))
    assert last is not None
    return _finish(out_dir, last, init_sha, recorder.steps)


def read_result(out_dir: Path) -> GRPOResult | None:
    """The finished run in ``out_dir``, or None."""
    try:
        raw = json.loads((out_dir / RESULT).read_text())
    except FileNotFoundError:
        return None
    steps = tuple(StepMetrics(**step) for step in raw["steps"])
    return GRPOResult(out_dir / "adapter", raw["sha256"], raw["init_sha256"], steps)


class _Rollouts:
    """TRL's `rollout_func`: serve the adapter as it is, run groups, give token ids, log-probabilities and rewards."""

    def __init__(
        self,
        name: str,
        server: AdapterServer,
        renderer: TokenRenderer,
        env_factory: Callable[[], Environment],
        seeds: Callable[[int], int],
        config: GRPOSettings,
        checkpoints: Path,
        recorder: StepRecorder,
    ) -> None:
        self._name = name
        self._server = server
        self._renderer = renderer
        self._env_factory = env_factory
        self._seeds = seeds
        self._config = config
        self._checkpoints = checkpoints
        self._recorder = recorder
        self._served: str | None = None
        self._settings = RolloutSettings(
            temperature=config.temperature,
            max_turns=config.max_turns,
            max_tokens=config.max_tokens,
            max_context=config.max_context,
            concurrency=config.concurrency,
            timeout=config.timeout,
            late=config.late,
        )

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        from loop.training.group_trainer import checkpoint_path

        began = time.monotonic()
        step = trainer.state.global_step
        adapter = checkpoint_path(self._checkpoints, step)
        served, sha256 = self._serve(adapter, step)
        used, sampled, faults = self._sample(served, step)
        episodes = [rollout for group in sampled for rollout in group]
        self._recorder.open = {
            "step": step + 1,
            "adapter": served,
            "adapter_sha256": sha256,
            "reward": _mean([r.reward for r in episodes]),
            "success": _mean([float(r.success) for r in episodes]),
            "informative": _mean([float(informative(group)) for group in sampled]),
            "groups": len(sampled),
            "used": sum(informative(group) for group in used),
            "guided": sum(NOT_SAMPLED in rollout.logprobs for group in used for rollout in group),
            "rollouts": len(episodes),
            "turns": _mean([float(r.turns) for r in episodes]),
            "prompt_tokens": sum(len(r.prompt_ids) for r in episodes),
            "sampled_tokens": sum(sum(r.env_mask) for r in episodes),
            "faults": dict(faults),
            "seconds_rollouts": time.monotonic() - began,
        }
        # The best episode of each group: what the adapter was pushed towards, to tell later whether it is served.
        best = [max(group, key=lambda r: r.reward) for group in used]
        self._recorder.probe = [[*r.prompt_ids, *r.completion_ids] for r in best[:4]]
        rows = [row for group in used for row in self._rows(group)]
        return {
            "prompt_ids": [list(rollout.prompt_ids) for rollout, _ in rows],
            "completion_ids": [list(rollout.completion_ids) for rollout, _ in rows],
            "logprobs": [list(rollout.logprobs) for rollout, _ in rows],
            "env_mask": [list(rollout.env_mask) for rollout, _ in rows],
            "episode_reward": [reward for _, reward in rows],
        }

    def close(self) -> None:
        """Take the last step's adapter off the server."""
        if self._served is not None:
            try:
                self._server.unload_adapter(self._served)
            except TraceError as error:  # the server may be what failed
                log.warning("adapter not unloaded", name=self._served, error=error.what)
            self._served = None

    def _serve(self, adapter: Path, step: int) -> tuple[str, str]:
        sha256 = read_adapter(adapter).sha256
        # The weights are in the name: a run started anew in the same folder can't meet the names of the old one.
        name = f"{self._name}-step{step}-{sha256[:8]}"
        self._server.load_adapter(name, adapter)
        if self._served is not None and self._served != name:
            self._server.unload_adapter(self._served)
        self._served = name
        return name, sha256

    def _sample(self, model: str, step: int) -> tuple[list[list[Rollout]], list[list[Rollout]], Counter[str]]:
        """The groups to train on, all groups that were sampled, and the dropped episodes by kind."""
        config = self._config
        wanted = config.groups_per_step
        draw = step * wanted * (1 + config.resample_rounds)
        used: list[list[Rollout]] = []
        sampled: list[list[Rollout]] = []
        faults: Counter[str] = Counter()
        for _ in range(1 + config.resample_rounds):
            missing = wanted - len(used)
            if not missing:
                break
            seeds = [self._seeds(draw + i) for i in range(missing)]
            draw += missing
            batch = collect(
                self._server.base_url,
                model,
                self._renderer,
                self._env_factory,
                seeds,
                config.group_size,
                self._settings,
            )
            faults.update(batch.faults)
            sampled += [group for group in batch.groups if group]
            used += [group for group in map(self._guided, batch.groups) if informative(group)]
        if not sampled:
            kinds = ", ".join(f"{count} {kind}" for kind, count in faults.most_common())
            raise TraceError(
                f"no episode could be run in step {step + 1} ({kinds})",
                where=self._server.base_url,
                fix="See the log for the first cause; what was trained so far is kept, run again to go on.",
            )
        # TRL wants whole groups. The rest is filled with groups that carry no gradient and cost no computation.
        constant = [group for group in sampled if not informative(group)] or used
        while len(used) < wanted:
            filler = constant[len(used) % len(constant)]
            used.append([replace(rollout, reward=0.0) for rollout in filler])
        return used, sampled, faults

    def _guided(self, group: list[Rollout]) -> list[Rollout]:
        """The group, in which the reference takes a place when no episode is solved. Else a policy that has settled
        on a wrong choice would never hear of the right one: all its episodes fail alike, without a gradient."""
        if not self._config.guide or not group or any(rollout.success for rollout in group):
            return group
        seed = group[0].seed
        try:
            reference = asyncio.run(reference_rollout(self._renderer, self._env_factory(), seed, self._settings))
        except Exception as error:  # an environment may be anybody's code; its sampled episodes are still good
            log.warning("reference not played", seed=seed, error=repr(error))
            return group
        return group if reference is None else [*group[: self._config.group_size - 1], reference]

    def _rows(self, group: list[Rollout]) -> list[tuple[Rollout, float | None]]:
        """One row per place in the group; the places of dropped episodes get a copy without a reward, which TRL
        leaves out of the baseline and gives no advantage."""
        size = self._config.train_size or self._config.group_size
        group = widest(group, size)
        missing = size - len(group)
        return [*((rollout, rollout.reward) for rollout in group), *((group[0], None) for _ in range(missing))]


def informative(group: Sequence[Rollout]) -> bool:
    """Whether a group has a gradient: its rewards differ."""
    rewards = [rollout.reward for rollout in group]
    return bool(rewards) and max(rewards) - min(rewards) > 1e-6


def widest(group: Sequence[Rollout], size: int) -> list[Rollout]:
    """The ``size`` episodes whose rewards have the largest variance: some of the lowest and some of the highest
    (Xu et al. 2025, "Not All Rollouts are Useful", arXiv 2504.13818)."""
    ordered = sorted(group, key=lambda rollout: rollout.reward)
    if len(ordered) <= size:
        return list(group)
    choices = [ordered[:low] + ordered[len(ordered) - size + low :] for low in range(size + 1)]
    return max(choices, key=lambda chosen: statistics.pvariance([rollout.reward for rollout in chosen]))


def _trainer(
    kind: type,
    model_dir: Path,
    init_adapter: Path | None,
    config: GRPOSettings,
    seed: int,
    rollouts: _Rollouts,
    **options: Any,
) -> Any:
    """The TRL trainer on the model with its adapter. Imports torch, PEFT and TRL."""
    import torch
    from datasets import Dataset
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed
    from trl.trainer.grpo_config import GRPOConfig

    # It warns of each place that a dropped episode left, which `_rows` leaves without a reward on purpose.
    logging.getLogger("trl.trainer.grpo_trainer").setLevel(logging.ERROR)
    gpu = torch.cuda.is_available()
    rows = config.train_size or config.group_size
    set_seed(seed)
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.bfloat16 if gpu else torch.float32)
    if init_adapter is not None:
        model = PeftModel.from_pretrained(base, str(init_adapter), is_trainable=True)
    else:
        lora = LoraConfig(r=config.rank, lora_alpha=2 * config.rank, target_modules="all-linear", task_type="CAUSAL_LM")
        model = get_peft_model(base, lora)
    arguments = GRPOConfig(
        output_dir=str(options["checkpoints"]),
        max_steps=config.steps,
        # One micro-batch is one group; one optimizer step is all groups of one generation.
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=config.groups_per_step,
        steps_per_generation=config.groups_per_step,
        num_generations=rows,
        max_completion_length=config.max_turns * config.max_tokens,
        temperature=config.temperature,
        learning_rate=config.learning_rate,
        lr_scheduler_type="linear",
        weight_decay=0.0,
        max_grad_norm=config.max_grad_norm,
        beta=0.0,
        epsilon=config.clip,
        loss_type=config.loss,
        scale_rewards=config.scale_rewards,
        seed=seed,
        bf16=gpu,
        use_cpu=not gpu,
        dataloader_pin_memory=gpu,
        gradient_checkpointing=False,
        shuffle_dataset=False,
        ignore_data_skip=True,
        logging_steps=1,
        save_strategy="steps",
        save_steps=1,
        report_to="none",
        disable_tqdm=True,
    )
    # Tasks come from seeds, by step; TRL only counts these rows and repeats each for its group.
    tasks = Dataset.from_dict({"prompt": ["task"] * config.groups_per_step})
    return kind(
        model=model,
        args=arguments,
        train_dataset=tasks,
        processing_class=AutoTokenizer.from_pretrained(model_dir),
        reward_funcs=_episode_reward,
        rollout_func=rollouts,
        **options,
    )


def _episode_reward(episode_reward: list[float | None], **_: Any) -> list[float | None]:
    return episode_reward


def _renderer(model_dir: Path) -> TokenRenderer:
    from harness.rendering import Renderer

    return Renderer(model_dir)


def _check_same_run(out_dir: Path, wanted: dict[str, Any]) -> None:
    """More steps may be asked for later; anything else makes it another run."""
    try:
        found = json.loads((out_dir / RUN).read_text())
    except FileNotFoundError:
        publish_text(out_dir / RUN, json.dumps(wanted))
        return
    if found != json.loads(json.dumps(wanted)):
        raise TraceError(
            "this folder holds a training run with other settings",
            where=str(out_dir),
            fix="Give another folder, or start anew there without resuming.",
        )


def _last_checkpoint(checkpoints: Path) -> Path | None:
    found = sorted(path for path in checkpoints.glob("step-*") if (path / "trainer_state.json").exists())
    return found[-1] if found else None


def _finish(out_dir: Path, last: Path, init_sha: str | None, steps: Sequence[StepMetrics]) -> GRPOResult:
    def fill(folder: Path) -> None:
        for file in (WEIGHTS, CONFIG, PROBE):
            shutil.copyfile(last / file, folder / file)

    adapter = publish_folder(out_dir / "adapter", fill)
    sha256 = read_adapter(adapter).sha256
    body = {"sha256": sha256, "init_sha256": init_sha, "steps": [asdict(step) for step in steps]}
    publish_text(out_dir / RESULT, json.dumps(body))
    return GRPOResult(adapter, sha256, init_sha, tuple(steps))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
