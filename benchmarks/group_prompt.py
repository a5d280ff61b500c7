"""A group's prompt computed once, against K whole sequences: time, log-probabilities and gradients of one group.

Both sides run in this process on one random Llama of SmolLM2-135M's shape with LoRA on all linear layers, float32.
The completions have nothing in common (what episodes share beyond the prompt would be run once, too, and is not
what is measured) and half their tokens are the environment's. The plain side, too, computes the head on the
completion's positions only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from loop.training.shared_prompt import score_group

TARGETS = {"speedup": [">=", 2.5], "logprob_diff": ["<=", 1e-4], "grad_diff": ["<=", 1e-4]}
VOCABULARY = 49_152


def build(layers: int) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
    )
    model = get_peft_model(LlamaForCausalLM(config), LoraConfig(r=16, target_modules="all-linear"))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # zero at first, which would leave A without a gradient
            torch.nn.init.normal_(parameter, std=0.01)
    return model


def plain(core: Any, prompt: list[int], completions: list[list[int]], scored: torch.Tensor) -> torch.Tensor:
    width = scored.size(1)
    rows = torch.tensor([prompt + ids + [0] * (width - len(ids)) for ids in completions])
    hidden = core.base_model(input_ids=rows, use_cache=False).last_hidden_state[:, len(prompt) - 1 : -1]
    logps = torch.log_softmax(core.get_output_embeddings()(hidden[scored]).float(), dim=-1)
    picked = logps.gather(-1, rows[:, len(prompt) :][scored][:, None])[:, 0]
    return torch.zeros(scored.shape).masked_scatter(scored, picked)


def timed(model: Any, side: Callable[[], torch.Tensor], weights: torch.Tensor, rounds: int) -> tuple[float, Any, Any]:
    """Median seconds of forward and backward, the log-probabilities and the gradients."""
    seconds, logps, gradients = [], None, None
    for _ in range(rounds):
        model.zero_grad()
        began = time.perf_counter()
        logps = side()
        (logps * weights).sum().backward()
        seconds.append(time.perf_counter() - began)
        gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad}
    return statistics.median(seconds), logps, gradients


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer layers, one round")
    quick = parser.parse_args().quick
    prompt_length, size, layers, rounds = (512, 8, 6, 1) if quick else (768, 8, 30, 3)
    model = build(layers)
    core = model.get_base_model()
    draw = torch.Generator().manual_seed(1)
    prompt = torch.randint(VOCABULARY, (prompt_length,), generator=draw).tolist()
    lengths = [48 + 12 * i for i in range(size)]
    completions = [torch.randint(VOCABULARY, (n,), generator=draw).tolist() for n in lengths]
    scored = torch.tensor([[j < n and j % 2 == 0 for j in range(max(lengths))] for n in lengths])
    weights = torch.randn(scored.shape, generator=draw) / scored.sum()

    slow, expected, wanted = timed(model, lambda: plain(core, prompt, completions, scored), weights, rounds)
    fast, found, got = timed(model, lambda: score_group(core, prompt, completions, scored).logps, weights, rounds)
    scale = max(gradient.abs().max().item() for gradient in wanted.values())
    figures = {
        "speedup": round(slow / fast, 2),
        "logprob_diff": (found - expected).abs().max().item(),
        # Relative to the largest entry of any gradient.
        "grad_diff": max((got[n] - wanted[n]).abs().max().item() for n in wanted) / scale,
        "seconds_plain": round(slow, 3),
        "seconds_shared": round(fast, 3),
    }
    met = all(figures[n] >= bound if sign == ">=" else figures[n] <= bound for n, (sign, bound) in TARGETS.items())
    print(f"prompt {prompt_length}, {size} completions of {lengths[0]}–{lengths[-1]}, {layers} layers")
    print(json.dumps({"benchmark": "group_prompt", "figures": figures, "targets": TARGETS, "met": met}))


if __name__ == "__main__":
    main()
