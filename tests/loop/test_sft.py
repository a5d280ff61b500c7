"""Supervised tuning: the loss is on what the assistant writes, the shared beginning changes no gradient."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from harness.rendering import TOOL_TEMPLATE, Renderer
from harness.serving.adapters import check_fits, linear_shapes, read_adapter
from loop.training.sft import PROJECTIONS, Dialogue, _batches, _loss, _rows, train_sft
from storage.errors import TraceError
from tests.tiny import build_model

TOOL = {"type": "function", "function": {"name": "ring", "parameters": {"type": "object", "properties": {}}}}


def dialogue(word: str, system: str = "Be kind.") -> Dialogue:
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": f"Say {word}."},
        {"role": "assistant", "content": f"{word} {word}"},
        {"role": "user", "content": "Again!"},
        {"role": "assistant", "content": word},
    ]
    return Dialogue(messages, [TOOL])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = build_model(tmp_path_factory.mktemp("sft") / "model")
    shutil.copyfile(TOOL_TEMPLATE, folder / "chat_template.jinja")
    return folder


def test_the_loss_falls_and_the_adapter_fits_the_model(model: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    result = train_sft(
        model,
        [dialogue("yes"), dialogue("moon")],
        tmp_path / "adapter",
        rank=4,
        alpha=8,
        lr=1e-2,
        steps=12,
        batch=2,
        progress=lambda step, steps, loss: told.append((step, steps)),
    )
    assert result.losses[-1] < 0.7 * result.losses[0]
    assert told == [(step, 12) for step in range(1, 13)]
    adapter = read_adapter(result.adapter)
    assert adapter.sha256 == result.sha256
    check_fits(adapter, linear_shapes(model), max_rank=4)
    targets = json.loads((result.adapter / "adapter_config.json").read_text())["target_modules"]
    assert sorted(targets) == sorted(PROJECTIONS)


def test_the_same_inputs_give_the_same_adapter_and_another_seed_another(model: Path, tmp_path: Path) -> None:
    dialogues = [dialogue(word) for word in ("yes", "no", "moon")]

    def train(name: str, seed: int) -> str:
        return train_sft(model, dialogues, tmp_path / name, rank=2, steps=2, batch=2, seed=seed).sha256

    assert train("a", 0) == train("b", 0) != train("c", 1)


def test_training_goes_on_from_an_adapter(model: Path, tmp_path: Path) -> None:
    first = train_sft(model, [dialogue("yes")], tmp_path / "first", rank=2, lr=1e-2, steps=6, batch=1)
    second = train_sft(model, [dialogue("yes")], tmp_path / "second", steps=1, batch=1, init_adapter=first.adapter)
    assert second.losses[0] < first.losses[0]
    assert read_adapter(second.adapter).rank == 2


def test_losses_of_a_group_are_those_of_its_rows_alone_and_only_of_targets(model: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    causal = AutoModelForCausalLM.from_pretrained(str(model), dtype=torch.float32)
    rows = _rows(Renderer(model), [dialogue("yes"), dialogue("a longer reply"), dialogue("no")], 4096)
    weight = causal.model.layers[0].mlp.down_proj.weight

    expected = torch.zeros(())
    for row in rows:
        ids = torch.tensor([row.ids])
        logps = causal(ids).logits[0, :-1].float().log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
        expected = expected - logps[torch.tensor(row.mask[1:], dtype=torch.bool)].sum()
    expected.backward()
    plain = weight.grad.clone()
    weight.grad = None
    loss = _loss(causal, rows)
    loss.backward()

    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(weight.grad, plain, rtol=1e-3, atol=1e-5)


def test_groups_share_system_prompt_and_tools_and_a_pass_uses_every_row(model: Path) -> None:
    dialogues = [dialogue(word, system) for system in ("Be kind.", "Be brief.") for word in ("a", "b", "c", "d")]
    rows = _rows(Renderer(model), dialogues, 4096)
    batches = _batches(rows, steps=2, batch=4, group=2, rng=random.Random(0))
    assert [[len(group) for group in groups] for groups in batches] == [[2, 2], [2, 2]]
    assert all(len({row.family for row in group}) == 1 for groups in batches for group in groups)
    used = [row.ids for groups in batches for group in groups for row in group]
    assert sorted(used) == sorted(row.ids for row in rows)


def test_a_missing_model_or_no_dialogue_is_a_clear_error_and_leaves_nothing(model: Path, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no tokenizer"):
        train_sft(tmp_path / "nothing", [dialogue("yes")], tmp_path / "adapter", steps=1)
    with pytest.raises(TraceError, match="no dialogues"):
        train_sft(model, [], tmp_path / "adapter", steps=1)
    with pytest.raises(TraceError, match="no dialogues"):
        train_sft(model, [dialogue("yes")], tmp_path / "adapter", steps=1, max_tokens=8)
    assert not (tmp_path / "adapter").exists()
