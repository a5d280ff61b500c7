"""GRPO: what is shared is computed once and exactly; a run survives its death; a real step moves a served adapter."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.rendering import Renderer
from harness.rollouts import Rollout, RolloutBatch, RolloutSettings, common_prefix, reference_rollout
from harness.serving.adapters import read_adapter
from loop.training import grpo
from loop.training.grpo import train_grpo
from loop.training.steps import GRPOSettings, StepMetrics
from storage.errors import TraceError
from tests.harness.desk import LoanDesk
from tests.harness.toy import CoinEnvironment

pytestmark = pytest.mark.heavy

SETTINGS = GRPOSettings(
    steps=3,
    groups_per_step=2,
    group_size=4,
    learning_rate=1e-2,
    rank=4,
    max_turns=2,
    max_tokens=12,
    max_context=512,
    late=0.0,
    guide=False,
    threads=1,
)


class FakeServer:
    """Remembers what was loaded; a name is bound to its weights for good, as on the real one."""

    base_url = "http://nowhere/v1"

    def __init__(self) -> None:
        self.bound: dict[str, str] = {}
        self.loaded: set[str] = set()

    def load_adapter(self, name: str, path: Path) -> None:
        sha = read_adapter(path).sha256
        assert self.bound.setdefault(name, sha) == sha
        self.loaded.add(name)

    def unload_adapter(self, name: str) -> None:
        self.loaded.remove(name)


def fake_collect(
    url: str, model: str, renderer: Any, env_factory: Any, seeds: Sequence[int], size: int, settings: Any
) -> RolloutBatch:
    """Episodes that follow from seed and place in the group alone: about half of their tokens are the world's."""
    groups = []
    for seed in seeds:
        rng = random.Random(seed)
        prompt = tuple([1, 2, 3, 4, 5, 6] + [rng.randrange(250) for _ in range(rng.randrange(2, 6))])
        group = []
        for _ in range(size):
            length = rng.randrange(3, 20)
            ids = tuple(rng.randrange(250) for _ in range(length))
            mask = tuple(1 if i < 2 or i == length - 1 or rng.random() < 0.5 else 0 for i in range(length))
            logprobs = tuple(-5.5 * m for m in mask)
            group.append(Rollout(prompt, ids, logprobs, mask, rng.random(), rng.random() < 0.5, {}, seed, 1, "done"))
        groups.append(group)
    return RolloutBatch(groups, sampled=sum(sum(r.env_mask) for g in groups for r in g), seconds=0.1)


def run(out: Path, model: Path, config: GRPOSettings = SETTINGS, **options: Any) -> Any:
    options.setdefault("server", FakeServer())
    fixed: dict[str, Any] = {"env_factory": CoinEnvironment, "name": "toy@1", "renderer": object()}
    return train_grpo(model_dir=model, out_dir=out, config=config, **fixed, **options)


def test_common_prefix_leaves_every_prompt_a_token() -> None:
    assert common_prefix([[1, 2, 3], [1, 2, 4]]) == 2
    assert common_prefix([[1, 2, 3], [1, 2, 3]]) == 2
    assert common_prefix([[1, 2], [1, 2, 3]]) == 1
    assert common_prefix([[7]]) == 0


def test_the_widest_episodes_carry_the_gradient() -> None:
    def group(*rewards: float) -> list[Rollout]:
        return [Rollout((1,), (2,), (0.0,), (1,), r, False, {}, 0, 1, "done") for r in rewards]

    assert [r.reward for r in grpo.widest(group(0.5, 0.1, 0.9, 0.4, 1.0), 4)] == [0.1, 0.4, 0.9, 1.0]
    assert [r.reward for r in grpo.widest(group(0.2, 0.2, 1.0, 0.2), 2)] == [0.2, 1.0]
    assert [r.reward for r in grpo.widest(group(0.3, 0.1), 4)] == [0.3, 0.1]


def test_shared_prompts_give_the_log_probabilities_and_gradients_of_whole_sequences(tiny_model: Path) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from loop.training.shared_prompt import Prefix, score_group, supports

    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    model = get_peft_model(base, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    core = model.get_base_model()
    assert supports(core)
    rng = random.Random(0)
    system = [rng.randrange(250) for _ in range(60)]
    prompts = [system + [rng.randrange(250) for _ in range(n)] for n in (4, 11)]
    groups = [[[rng.randrange(250) for _ in range(n)] for n in lengths] for lengths in ((1, 6, 9, 31), (8, 8, 20, 22))]
    groups[1][1] = list(groups[1][0])  # equal completions are run once
    masks, weights = [], []
    for group in groups:
        width = max(len(c) for c in group)
        mask = torch.tensor([[i < len(c) and i % 3 != 1 for i in range(width)] for c in group])
        masks.append(mask)
        weights.append(torch.randn(mask.shape, generator=torch.Generator().manual_seed(width)))

    def plain(index: int) -> Any:
        rows = []
        for completion in groups[index]:
            ids = torch.tensor([prompts[index] + completion])
            logits = core(ids).logits[0, len(prompts[index]) - 1 : -1] / 0.7
            row = torch.log_softmax(logits, -1).gather(-1, torch.tensor(completion)[:, None])[:, 0]
            rows.append(torch.nn.functional.pad(row, (0, masks[index].size(1) - len(completion))))
        return torch.stack(rows) * masks[index]

    expected = [plain(i) for i in range(2)]
    sum((e * w).sum() for e, w in zip(expected, weights, strict=True)).backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    assert len(gradients) == 28  # A and B of seven projections in two layers
    model.zero_grad()

    prefix = Prefix(core, prompts[0][: common_prefix(prompts)])
    assert prefix.length == len(system)
    for index in range(2):
        scores = score_group(core, prompts[index], groups[index], masks[index], temperature=0.7, prefix=prefix)
        assert (scores.logps - expected[index]).abs().max() < 2e-5
        (scores.logps * weights[index]).sum().backward()
    prefix.backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            scale = gradients[name].abs().max()
            assert (parameter.grad - gradients[name]).abs().max() < 2e-5 * max(scale, 1), name


def test_a_step_with_shared_prompts_is_the_step_of_plain_trl(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpo, "collect", fake_collect)
    one = replace(SETTINGS, steps=1)
    shared = run(tmp_path / "shared", tiny_model, one)
    plain = run(tmp_path / "plain", tiny_model, replace(one, share_prompts=False))
    a, b = shared.steps[0], plain.steps[0]
    assert a.grad_norm == pytest.approx(b.grad_norm, rel=1e-3)
    assert a.loss == pytest.approx(b.loss, abs=1e-5)
    assert a.logprob_difference == pytest.approx(b.logprob_difference, rel=1e-3)
    assert a.reward == b.reward


def test_a_killed_run_goes_on_after_its_last_finished_step(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpo, "collect", fake_collect)
    seen: list[StepMetrics] = []
    whole = run(tmp_path / "whole", tiny_model, on_step=seen.append)
    assert [s.step for s in seen] == [1, 2, 3]
    assert list(whole.steps) == seen

    calls = 0

    def dies(*args: Any, **kwargs: Any) -> RolloutBatch:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return fake_collect(*args, **kwargs)

    monkeypatch.setattr(grpo, "collect", dies)
    server = FakeServer()
    again: list[StepMetrics] = []
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed", tiny_model, server=server, on_step=again.append)
    assert server.loaded == set()
    resumed = run(tmp_path / "killed", tiny_model, server=server, on_step=again.append)
    assert [s.step for s in again] == [1, 2, 3]
    assert resumed.sha256 == whole.sha256
    assert [s.adapter for s in resumed.steps] == [s.adapter for s in whole.steps]
    assert len(set(server.bound.values())) == len(server.bound) == 3
    # A finished run is returned as it is: nothing is run again.
    assert run(tmp_path / "killed", tiny_model, server=server) == resumed
    assert calls == 4
    # More steps can be asked for; other settings make it another run.
    longer = run(tmp_path / "killed", tiny_model, replace(SETTINGS, steps=4))
    assert [s.step for s in longer.steps] == [1, 2, 3, 4]
    with pytest.raises(TraceError, match="other settings"):
        run(tmp_path / "killed", tiny_model, replace(SETTINGS, learning_rate=1.0))


def test_groups_of_equal_rewards_are_resampled_and_dropped_episodes_leave_their_place(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def collect(*args: Any, **kwargs: Any) -> RolloutBatch:
        batch = fake_collect(*args, **kwargs)
        asked.extend(args[4])
        for index, seed in enumerate(args[4]):
            if seed % 2:
                batch.groups[index] = [replace(r, reward=0.5) for r in batch.groups[index]]
            else:
                del batch.groups[index][0]
                batch.faults["rendering:prefix"] += 1
        return batch

    monkeypatch.setattr(grpo, "collect", collect)
    result = run(tmp_path / "run", tiny_model, replace(SETTINGS, steps=1), seeds=lambda draw: draw + 1)
    step = result.steps[0]
    assert asked == [1, 2, 3]  # 1 and 2; then 3 for the constant 1
    assert (step.groups, step.used, step.rollouts) == (3, 1, 11)
    assert step.informative == pytest.approx(1 / 3)
    assert step.faults == {"rendering:prefix": 1}
    assert step.grad_norm > 0
    # Fewer rows for the gradient, the same episodes measured.
    fewer = run(tmp_path / "fewer", tiny_model, replace(SETTINGS, steps=1, train_size=2), seeds=lambda draw: draw + 1)
    assert fewer.steps[0].reward == step.reward
    assert fewer.steps[0].grad_norm > 0


def test_a_group_in_which_nothing_is_solved_learns_from_the_reference(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    renderer, desk = Renderer(tiny_model), LoanDesk()
    config = replace(SETTINGS, steps=2, max_context=4000)

    def alike(*args: Any, **kwargs: Any) -> RolloutBatch:
        batch = fake_collect(*args, **kwargs)
        for index, seed in enumerate(args[4]):
            prompt = tuple(renderer.prompt_ids(desk.reset(seed).messages, desk.tools))
            batch.groups[index] = [
                replace(r, prompt_ids=prompt, success=False, reward=0.2) for r in batch.groups[index]
            ]
        return batch

    monkeypatch.setattr(grpo, "collect", alike)

    def trained(name: str, guide: bool) -> Any:
        settings = replace(config, guide=guide)
        given: dict[str, Any] = {"env_factory": LoanDesk, "renderer": renderer, "seeds": lambda draw: 1 + draw % 2}
        return train_grpo(
            model_dir=tiny_model, server=FakeServer(), out_dir=tmp_path / name, name="d@1", config=settings, **given
        )

    def likelihood(adapter: Path) -> float:
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_model), str(adapter))
        solution = asyncio.run(reference_rollout(renderer, desk, 1, RolloutSettings(max_context=4000)))
        assert solution is not None
        ids = torch.tensor([[*solution.prompt_ids, *solution.completion_ids]])
        with torch.no_grad():
            logps = torch.log_softmax(model(ids).logits[0, :-1], -1).gather(1, ids[0, 1:, None])[:, 0]
        own = torch.tensor([0] * len(solution.prompt_ids) + list(solution.env_mask))[1:]
        return float((logps * own).sum() / own.sum())

    plain, guided = trained("plain", False), trained("guided", True)
    assert [(s.used, s.guided, s.informative) for s in plain.steps] == [(0, 0, 0.0)] * 2
    assert [(s.used, s.guided, s.informative) for s in guided.steps] == [(2, 2, 0.0)] * 2
    # What the policy did itself is what is reported; the reference is no rollout.
    assert [(s.rollouts, s.success, s.reward) for s in guided.steps] == [(8, 0.0, pytest.approx(0.2))] * 2
    # Tokens that nobody sampled have no ratio to a server's.
    assert all(s.logprob_difference < 3 for s in guided.steps)
    assert likelihood(guided.adapter_path) > likelihood(plain.adapter_path) + 0.01


def test_no_episode_at_all_is_an_error_that_keeps_what_was_trained(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(*args: Any, **kwargs: Any) -> RolloutBatch:
        batch = RolloutBatch([[] for _ in args[4]])
        batch.faults["provider"] = 8
        return batch

    monkeypatch.setattr(grpo, "collect", fake_collect)
    run(tmp_path / "run", tiny_model, replace(SETTINGS, steps=1))
    monkeypatch.setattr(grpo, "collect", nothing)
    with pytest.raises(TraceError, match="16 provider"):
        run(tmp_path / "run", tiny_model, replace(SETTINGS, steps=2))
    assert json.loads((tmp_path / "run" / "result.json").read_text())["steps"][0]["step"] == 1


def test_a_real_step_against_vllm_trains_what_the_server_then_serves(vllm_tiny: Any, tmp_path: Path) -> None:
    from loop.training.activity import verify_adapter

    server, model = vllm_tiny.server, vllm_tiny.model
    # A model that writes noise ends a turn by chance; a reply that is cut off scores nothing, and teaches nothing.
    long = replace(SETTINGS, max_tokens=400, max_context=1200, resample_rounds=2)
    config = replace(long, steps=2, groups_per_step=2, group_size=6, learning_rate=3e-2)
    result = train_grpo(
        model_dir=model,
        server=server,
        env_factory=CoinEnvironment,
        out_dir=tmp_path / "run",
        name="coins@1",
        config=config,
        renderer=Renderer(model),
    )
    assert [s.step for s in result.steps] == [1, 2]
    for step in result.steps:
        # Noise does not always render to the tokens that were sampled; such an episode is dropped and counted.
        assert 0 < step.rollouts <= 6 * step.groups
        assert step.rollouts + sum(step.faults.values()) >= 6 * step.groups
        assert step.used > 0
        assert step.grad_norm > 0
        # Server and trainer run the same weights, also once the adapter is no longer zero.
        assert step.logprob_difference < 0.01
    assert len({step.adapter_sha256 for step in result.steps} | {result.sha256}) == 3
    assert not [name for name in server.models() if name.startswith("coins@1-step")]

    server.load_adapter("coins@1", result.adapter_path)
    try:
        check = verify_adapter(server, "coins@1", result.adapter_path, model)
        assert check.telling > 0
        assert check.active is True
        # The base served under another name must not pass for the adapter.
        assert verify_adapter(server, "base", result.adapter_path, model).active is False
    finally:
        server.unload_adapter("coins@1")
