"""Is the adapter that the server lists under a name the one that was trained?

vLLM ignores adapters whose modules don't match and may answer from stale caches, and a listed name proves nothing.
So the trainer's own log-probabilities decide: on tokens where the trained model differs from the base by more than
two engines differ anyway, what is served has to follow the trained model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from storage.errors import TraceError

PROBE = "probe.json"
"""Beside an adapter's weights: token ids of a few episodes it was trained on, as [[prompt and completion], …]."""


class ProbedServer(Protocol):
    """The part of `harness.serving.client.VLLMClient` that the check uses."""

    def prompt_logprobs(self, token_ids: Sequence[int], *, model: str) -> list[float]: ...


@dataclass(frozen=True, slots=True)
class Activity:
    """``active`` is None when no token tells: the adapter changes nothing by more than the tolerance (a new LoRA
    equals its base). Distances are means over the ``telling`` tokens, in nats."""

    active: bool | None
    tokens: int
    telling: int
    moved: float
    """Trained from base, by the trainer."""
    off_trained: float
    """Served from trained."""
    off_base: float
    """Served from base."""


def verify_adapter(
    server: ProbedServer,
    name: str,
    adapter_path: Path,
    model_dir: Path,
    *,
    probes: Sequence[Sequence[int]] | None = None,
    tolerance: float = 0.15,
) -> Activity:
    """Compare what is served under ``name`` with the model of ``model_dir`` plus the adapter, run here.

    ``probes`` are token ids (default: those saved with the adapter). ``tolerance`` (nats) must be above the
    difference between engines: 0.055 in bfloat16. Raises TraceError when there is nothing to probe with.
    """
    probes = probes if probes is not None else _saved(adapter_path)
    trained, base = trainer_logprobs(adapter_path, model_dir, probes)
    served = [value for ids in probes for value in server.prompt_logprobs(list(ids), model=name)]
    telling = [i for i, (a, b) in enumerate(zip(trained, base, strict=True)) if abs(a - b) > tolerance]
    moved, off_trained, off_base = (
        sum(abs(x[i] - y[i]) for i in telling) / max(len(telling), 1)
        for x, y in ((trained, base), (served, trained), (served, base))
    )
    active = off_trained < 0.5 * moved and off_trained < off_base if telling else None
    return Activity(active, len(trained), len(telling), moved, off_trained, off_base)


def trainer_logprobs(
    adapter_path: Path, model_dir: Path, probes: Sequence[Sequence[int]]
) -> tuple[list[float], list[float]]:
    """Log-probabilities (nats) of every token after the first of each probe, with the adapter and without it."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    gpu = torch.cuda.is_available()
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.bfloat16 if gpu else torch.float32)
    model: Any = PeftModel.from_pretrained(base, str(adapter_path)).eval().to("cuda" if gpu else "cpu")

    @torch.no_grad()
    def logprobs() -> list[float]:
        found: list[float] = []
        for ids in probes:
            tokens = torch.tensor([list(ids)], device=model.device)
            scores = torch.log_softmax(model(input_ids=tokens).logits[0, :-1].float(), dim=-1)
            found += scores.gather(-1, tokens[0, 1:, None])[:, 0].tolist()
        return found

    trained = logprobs()
    with model.disable_adapter():
        return trained, logprobs()


def _saved(adapter_path: Path) -> list[list[int]]:
    try:
        return json.loads((adapter_path / PROBE).read_text())
    except FileNotFoundError:
        raise TraceError(
            "there is nothing to probe this adapter with", where=str(adapter_path / PROBE), fix="Train it again."
        ) from None
