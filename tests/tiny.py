"""A tiny random Llama with a byte-level tokenizer and random adapters for it: real files, built in a second."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INNER = 128, 2, 4, 2, 32, 256
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|pad|>")
# ChatML with tools as the project's own templates write it: append-only, so a longer dialogue extends a shorter.
TEMPLATE = """{%- if tools %}{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n' }}{% endif %}
{%- for tool in tools %}{{- tool | tojson + '\\n' }}{% endfor %}{{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for m in messages if m.role != 'system' %}
{%- if m.role == 'tool' %}{{- '<|im_start|>user\\n<tool_response>' + m.content + '</tool_response><|im_end|>\\n' }}
{%- else %}{{- '<|im_start|>' + m.role + '\\n' + (m.content or '') }}
{%- for c in m.tool_calls or [] %}{%- set f = c.function %}
{{- '<tool_call>{"name": ' + (f.name | tojson) + ', "arguments": ' + (f.arguments | tojson) + '}</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""
MODULES = {
    "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
    "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
    "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}


def build_model(folder: Path, seed: int = 0) -> Path:
    """Write model and tokenizer in Hugging Face form to ``folder``."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = {symbol: i for i, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=SPECIAL[1],
        pad_token=SPECIAL[2],
        additional_special_tokens=[SPECIAL[0]],
        chat_template=TEMPLATE,
    )
    fast.save_pretrained(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(fast),
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=2048,
        # Wide enough that the next token is not uniform, so that an adapter has something to change.
        initializer_range=0.15,
        tie_word_embeddings=True,
        eos_token_id=int(fast.eos_token_id),  # type: ignore[arg-type]
        pad_token_id=int(fast.pad_token_id),  # type: ignore[arg-type]
        bos_token_id=None,
    )
    LlamaForCausalLM(config).float().save_pretrained(folder)
    return folder


def build_adapter(
    folder: Path,
    *,
    seed: int,
    rank: int = 8,
    alpha: int = 16,
    scale: float = 0.2,
    modules: tuple[str, ...] = tuple(MODULES),
    rename: str = "",
    negate: bool = False,
) -> Path:
    """Write a LoRA with non-zero random weights. ``rename`` is appended to module names, to break them;
    ``negate`` gives the adapter whose effect is the opposite."""
    from safetensors.numpy import save_file

    random = np.random.default_rng(seed)
    tensors: dict[str, np.ndarray] = {}
    for layer in range(LAYERS):
        for module in modules:
            rows, columns = MODULES[module]
            key = f"base_model.model.model.layers.{layer}.{module}{rename}"
            tensors[f"{key}.lora_A.weight"] = random.normal(0, scale, (rank, columns)).astype(np.float32)
            b = random.normal(0, scale, (rows, rank)).astype(np.float32)
            tensors[f"{key}.lora_B.weight"] = -b if negate else b
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "tiny",
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
        "target_modules": sorted({module.split(".")[-1] for module in modules}),
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
