"""The exact weighted sum of LoRA adapters, as one adapter that stock vLLM serves.

(w₁·s₁·B₁A₁ + w₂·s₂·B₂A₂) = [B₁ B₂]·[w₁s₁A₁ ; w₂s₂A₂]: A's are stacked, scaled by weight and scaling, B's are
put side by side, and ranks add up. This is what PEFT's `add_weighted_adapter(combination_type="cat")` computes,
without a model in memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.serving.adapters import CONFIG, WEIGHTS, AdapterFolder, read_adapter
from storage.errors import TraceError


def mix(parts: Sequence[tuple[Path, float]], cache: Path, *, max_rank: int = 32) -> Path:
    """The folder below ``cache`` that holds the weighted sum of the adapters in ``parts``; built if it isn't there.

    Its name, "mix-…", follows from what the adapters hold and the weights, whatever their order. Raises TraceError
    when an adapter can't be read, two are of different base models, or their ranks add up to more than ``max_rank``.
    """
    if not parts:
        raise ValueError("a mixture needs at least one adapter")
    folders = sorted(((read_adapter(path), weight) for path, weight in parts), key=lambda part: part[0].sha256)
    rank = sum(folder.rank for folder, _ in folders)
    if rank > max_rank:
        raise TraceError(
            f"the adapters' ranks add up to {rank}, the server takes at most {max_rank}",
            where=", ".join(str(folder.path) for folder, _ in folders),
            fix="Mix fewer adapters, or start the server with a larger maximal rank.",
        )
    bases = {folder.config.get("base_model_name_or_path") for folder, _ in folders}
    if len(bases) > 1:
        raise TraceError(
            f"adapters of different models cannot be mixed: {', '.join(sorted(map(str, bases)))}",
            where=str(folders[0][0].path),
            fix="Train them on the same base.",
        )
    identity = json.dumps([(folder.sha256, weight) for folder, weight in folders])
    target = cache / f"mix-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
    if not target.is_dir():
        _write(target, folders, rank)
    return target


def _write(target: Path, folders: Sequence[tuple[AdapterFolder, float]], rank: int) -> None:
    """Write aside, sync and rename, so that a folder of this name is always whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        from safetensors.torch import save_file

        save_file(_concatenated(folders, rank), str(aside / WEIGHTS), metadata={"format": "pt"})
        (aside / CONFIG).write_text(json.dumps(_config(folders, rank), indent=1))
        for path in (aside / WEIGHTS, aside / CONFIG, aside):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        aside.chmod(0o755)
        try:
            aside.rename(target)
        except OSError:
            if not target.is_dir():  # else another process has built the same one
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _concatenated(folders: Sequence[tuple[AdapterFolder, float]], rank: int) -> dict[str, Any]:
    """Tensors of the sum. A module that an adapter doesn't have gets zeros there, so all have the same rank."""
    import torch
    from safetensors.torch import load_file

    tensors: dict[str, Any] = {}
    loaded = [(folder, weight, load_file(str(folder.path / WEIGHTS))) for folder, weight in folders]
    for module in sorted({name for folder, _ in folders for name in folder.modules}):
        key = f"base_model.model.{module}"
        a_rows, b_columns = [], []
        for folder, weight, own in loaded:
            if module in folder.modules:
                factor = weight * folder.scaling(module)
                a_rows.append(own[f"{key}.lora_A.weight"].to(torch.float32) * factor)
                b_columns.append(own[f"{key}.lora_B.weight"].to(torch.float32))
        a, b = torch.cat(a_rows), torch.cat(b_columns, dim=1)
        missing = rank - len(a)
        tensors[f"{key}.lora_A.weight"] = torch.nn.functional.pad(a, (0, 0, 0, missing)).contiguous()
        tensors[f"{key}.lora_B.weight"] = torch.nn.functional.pad(b, (0, missing)).contiguous()
    return tensors


def _config(folders: Sequence[tuple[AdapterFolder, float]], rank: int) -> dict[str, Any]:
    modules = {name.rsplit(".", 1)[-1] for folder, _ in folders for name in folder.modules}
    return {
        "peft_type": "LORA",
        "task_type": folders[0][0].config.get("task_type", "CAUSAL_LM"),
        "base_model_name_or_path": folders[0][0].config.get("base_model_name_or_path"),
        "r": rank,
        "lora_alpha": rank,  # a scaling of 1: weights and scalings are in A
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
        "target_modules": sorted(modules),
    }
