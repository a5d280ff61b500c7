"""A LoRA adapter as a folder in PEFT's form, read without torch: what it is, and whether a model can take it."""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.errors import TraceError

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
_PREFIX = "base_model.model."
_KEY = re.compile(r"^(?P<module>.+)\.lora_(?P<side>[AB])\.weight$")
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AdapterFolder:
    """``modules`` maps a module of the base model ("model.layers.0.mlp.up_proj") to the shapes of its A and B.

    ``sha256`` covers weights and configuration: two folders with the same value serve the same model.
    """

    path: Path
    config: Mapping[str, Any]
    modules: Mapping[str, tuple[Shape, Shape]]
    sha256: str

    @property
    def rank(self) -> int:
        """The largest rank of any module."""
        return max(a[0] for a, _ in self.modules.values())

    def scaling(self, module: str) -> float:
        """What the product B·A of ``module`` is multiplied with (PEFT: alpha/r, or alpha/sqrt(r) for rsLoRA)."""
        alpha = _pattern(self.config.get("alpha_pattern"), module, self.config.get("lora_alpha", 8))
        rank = self.modules[module][0][0]
        return alpha / math.sqrt(rank) if self.config.get("use_rslora") else alpha / rank


def read_adapter(path: Path) -> AdapterFolder:
    """Read and check an adapter folder. Raises TraceError when it isn't one, or isn't plain LoRA."""
    weights, config_file = path / WEIGHTS, path / CONFIG
    for file in (config_file, weights):
        if not file.is_file():
            raise TraceError(
                "not an adapter folder: a file is missing", where=str(file), fix="Give a folder saved by PEFT."
            )
    try:
        config = json.loads(config_file.read_bytes())
        shapes = safetensors_shapes(weights)
    except (ValueError, KeyError, struct.error) as error:
        raise TraceError(f"the adapter cannot be read: {error}", where=str(path), fix="Train it again.") from error
    for feature in ("use_dora", "modules_to_save", "lora_bias", "layer_replication"):
        if config.get(feature):
            raise TraceError(
                f"the adapter uses {feature}, which is not served", where=str(path), fix="Train it as plain LoRA."
            )
    modules = _modules(shapes, path)
    digest = hashlib.sha256()
    digest.update(json.dumps(config, sort_keys=True).encode())
    digest.update(weights.read_bytes())
    return AdapterFolder(path, config, modules, digest.hexdigest())


def check_fits(adapter: AdapterFolder, served: Mapping[str, Shape], max_rank: int) -> None:
    """Raise TraceError unless every module of ``adapter`` exists among the ``served`` weights with fitting shapes.

    vLLM ignores adapters whose module names don't match (vllm-project/vllm issue 34186) and answers as the base
    would, so a wrong name has to be found before the load.
    """
    where = str(adapter.path)
    if adapter.rank > max_rank:
        raise TraceError(
            f"the adapter has rank {adapter.rank}, the server takes at most {max_rank}",
            where=where,
            fix=f"Start the server with a maximal rank of {adapter.rank}.",
        )
    unknown = [name for name in adapter.modules if f"{name}.weight" not in served]
    if unknown:
        raise TraceError(
            f"{len(unknown)} of {len(adapter.modules)} adapter modules are not in the served model, first {unknown[0]}",
            where=where,
            fix="It was trained on another model; train it on the one that is served.",
        )
    for name, (a, b) in adapter.modules.items():
        out_size, in_size = served[f"{name}.weight"][:2]
        if a[1] != in_size or b[0] != out_size:
            raise TraceError(
                f"adapter module {name} is {b[0]}x{a[1]}, the served one {out_size}x{in_size}",
                where=where,
                fix="It was trained on another model; train it on the one that is served.",
            )


def linear_shapes(folder: Path) -> dict[str, Shape]:
    """Name → shape (out, in) of the weights of the linear layers in a model's blocks: what adapters may change.

    From one file or shards; embeddings and the output head are left out. Empty when there are no safetensors.
    """
    shapes: dict[str, Shape] = {}
    for file in sorted(folder.glob("*.safetensors")):
        if file.name != WEIGHTS:
            shapes.update(safetensors_shapes(file))
    return {name: shape for name, shape in shapes.items() if len(shape) == 2 and re.search(r"\.\d+\..+\.weight$", name)}


def safetensors_shapes(file: Path) -> dict[str, Shape]:
    """Name → shape, from the header alone (8 bytes of length, then JSON). Raises ValueError when it is broken."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        if length > size - 8:
            raise ValueError(f"{file.name} is cut short")
        header = json.loads(stream.read(length))
    header.pop("__metadata__", None)
    if any(entry["data_offsets"][1] > size - 8 - length for entry in header.values()):
        raise ValueError(f"{file.name} is cut short")
    return {name: tuple(entry["shape"]) for name, entry in header.items()}


def _modules(shapes: Mapping[str, Shape], path: Path) -> dict[str, tuple[Shape, Shape]]:
    sides: dict[str, dict[str, Shape]] = {}
    for key, shape in shapes.items():
        match = _KEY.match(key)
        if match is None:
            raise TraceError(f"the adapter holds {key}, which is not LoRA", where=str(path), fix="Train plain LoRA.")
        sides.setdefault(match["module"].removeprefix(_PREFIX), {})[match["side"]] = shape
    if not sides:
        raise TraceError("the adapter is empty", where=str(path), fix="Train it again.")
    for module, pair in sides.items():
        if set(pair) != {"A", "B"} or pair["A"][0] != pair["B"][1]:
            raise TraceError(f"the adapter's {module} lacks one side", where=str(path), fix="Train it again.")
    return {module: (pair["A"], pair["B"]) for module, pair in sides.items()}


def _pattern(patterns: Mapping[str, float] | None, module: str, default: float) -> float:
    for pattern, value in (patterns or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default
