import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from harness.mixtures import mix
from harness.serving.adapters import check_fits, linear_shapes, read_adapter
from storage.errors import TraceError
from tests.tiny import build_adapter


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Two adapters that differ in rank, scaling and in the modules that they have."""
    return (
        build_adapter(tmp_path / "a", seed=1, rank=8, alpha=16),
        build_adapter(tmp_path / "b", seed=2, rank=4, alpha=6, modules=("self_attn.q_proj", "mlp.down_proj")),
    )


def delta(folder: Path, module: str) -> np.ndarray:
    """scaling · B·A of one module, zero when the adapter doesn't have it."""
    adapter, tensors = read_adapter(folder), load_file(folder / "adapter_model.safetensors")
    if module not in adapter.modules:
        return np.zeros(())
    key = f"base_model.model.{module}"
    product = tensors[f"{key}.lora_B.weight"] @ tensors[f"{key}.lora_A.weight"]
    return product * adapter.scaling(module)


def test_the_mixture_is_the_weighted_sum_on_every_module(two: tuple[Path, Path], tmp_path: Path, tiny_model: Path):
    mixed = mix([(two[0], 0.7), (two[1], 0.3)], tmp_path / "cache")
    folder = read_adapter(mixed)
    assert folder.rank == 12
    for module in folder.modules:
        expected = 0.7 * delta(two[0], module) + 0.3 * delta(two[1], module)
        np.testing.assert_allclose(delta(mixed, module), expected, atol=1e-5)
    check_fits(folder, linear_shapes(tiny_model), max_rank=32)


def test_the_mixture_equals_the_one_peft_makes(two: tuple[Path, Path], tmp_path: Path, tiny_model: Path):
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    mixed = mix([(two[0], 0.7), (two[1], 0.3)], tmp_path / "cache")
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_model), two[0], adapter_name="a")
    model.load_adapter(two[1], adapter_name="b")
    model.add_weighted_adapter(["a", "b"], [0.7, 0.3], "peft", combination_type="cat")
    model.load_adapter(mixed, adapter_name="ours")
    compared = 0
    for name, module in model.named_modules():
        if hasattr(module, "lora_A") and "ours" in module.lora_A:
            torch.testing.assert_close(
                module.get_delta_weight("ours"), module.get_delta_weight("peft"), atol=1e-5, rtol=1e-5, msg=name
            )
            compared += 1
    assert compared == 14


def test_the_mixture_is_built_once_whatever_the_order(two: tuple[Path, Path], tmp_path: Path):
    cache = tmp_path / "cache"
    first = mix([(two[0], 0.7), (two[1], 0.3)], cache)
    written = (first / "adapter_model.safetensors").stat().st_mtime_ns
    assert mix([(two[1], 0.3), (two[0], 0.7)], cache) == first
    assert (first / "adapter_model.safetensors").stat().st_mtime_ns == written
    assert mix([(two[0], 0.6), (two[1], 0.4)], cache) != first
    assert sorted(p.name[:4] for p in cache.iterdir()) == ["mix-", "mix-"]  # nothing left aside


def test_rank_stabilised_scaling_and_patterns_are_kept(two: tuple[Path, Path], tmp_path: Path):
    config_file = two[0] / "adapter_config.json"
    config = json.loads(config_file.read_text())
    config_file.write_text(json.dumps({**config, "use_rslora": True, "alpha_pattern": {"mlp.up_proj": 4}}))
    adapter = read_adapter(two[0])
    assert adapter.scaling("model.layers.0.self_attn.q_proj") == pytest.approx(16 / 8**0.5)
    assert adapter.scaling("model.layers.1.mlp.up_proj") == pytest.approx(4 / 8**0.5)
    mixed = mix([(two[0], 1.0)], tmp_path / "cache")
    for module in adapter.modules:
        np.testing.assert_allclose(delta(mixed, module), delta(two[0], module), atol=1e-5)


def test_ranks_that_add_up_to_too_much_are_refused(two: tuple[Path, Path], tmp_path: Path):
    with pytest.raises(TraceError, match="add up to 12"):
        mix([(two[0], 0.5), (two[1], 0.5)], tmp_path / "cache", max_rank=8)
    assert not (tmp_path / "cache").exists()


def test_adapters_of_different_models_are_refused(two: tuple[Path, Path], tmp_path: Path):
    file = two[1] / "adapter_config.json"
    file.write_text(file.read_text().replace('"tiny"', '"another"'))
    with pytest.raises(TraceError, match="different models"):
        mix([(two[0], 0.5), (two[1], 0.5)], tmp_path / "cache")


def test_a_broken_adapter_is_a_clear_error(two: tuple[Path, Path], tmp_path: Path):
    weights = two[0] / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TraceError, match="cut short"):
        read_adapter(two[0])
    weights.write_bytes(b"\x01")
    with pytest.raises(TraceError, match="cannot be read"):
        read_adapter(two[0])
    weights.unlink()
    with pytest.raises(TraceError, match="missing"):
        read_adapter(two[0])
    save_file({"lm_head.weight": np.zeros((2, 2), np.float32)}, weights)
    with pytest.raises(TraceError, match="not LoRA"):
        read_adapter(two[0])


@pytest.mark.parametrize("feature", [{"use_dora": True}, {"modules_to_save": ["lm_head"]}])
def test_what_is_not_plain_lora_is_refused(two: tuple[Path, Path], feature: dict[str, object]):
    file = two[0] / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **feature}))
    with pytest.raises(TraceError, match=next(iter(feature))):
        read_adapter(two[0])


def test_an_adapter_of_another_model_does_not_fit(two: tuple[Path, Path], tmp_path: Path, tiny_model: Path):
    served = linear_shapes(tiny_model)
    check_fits(read_adapter(two[0]), served, max_rank=8)
    renamed = build_adapter(tmp_path / "r", seed=3, rename="_x")
    with pytest.raises(TraceError, match="not in the served model"):
        check_fits(read_adapter(renamed), served, max_rank=8)
    with pytest.raises(TraceError, match="rank 8"):
        check_fits(read_adapter(two[0]), served, max_rank=4)
    wider = {name: (shape[0], shape[1] + 1) for name, shape in served.items()}
    with pytest.raises(TraceError, match="trained on another model"):
        check_fits(read_adapter(two[0]), wider, max_rank=8)
