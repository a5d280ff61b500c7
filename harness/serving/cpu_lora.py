"""LoRA on the CPU, grouped by adapter: a vLLM plugin (entry point ``vllm.general_plugins``).

vLLM's own CPU path (0.32, `vllm.lora.ops.torch_ops`) gathers the two matrices of *each token's* adapter. That copies
an adapter once per token, nine times slower here for a prompt of 1,000 tokens; and for tokens of the base model,
whose index is -1, it gathers the last slot, so that in a mixed batch base requests are answered with the adapter
that sits there. Grouping the rows by adapter is two plain products for each and leaves base rows alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

Rows = Any
"""What selects an adapter's rows: a slice where they lie together (no copy), else their indices."""


def register() -> None:
    """Called by vLLM in each of its processes. Does nothing where the platform is not the CPU."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

        install(PunicaWrapperCPU)


def install(wrapper: Any) -> None:
    """Replace the linear and output-head products of a PunicaWrapper class. Idempotent."""
    if getattr(wrapper, "grouped_lora", False):
        return
    stock_update = wrapper.update_metadata

    def update_metadata(self: Any, *args: Any, **kwargs: Any) -> None:
        stock_update(self, *args, **kwargs)
        self.groups = rows_by_slot(self.token_lora_indices)
        self.sampler_groups = rows_by_slot(self.sampler_indices)

    def add_lora_linear(
        self: Any,
        y: Tensor,
        x: Tensor,
        lora_a_stacked: Sequence[Tensor],
        lora_b_stacked: Sequence[Tensor],
        scale: float,
        output_slices: Sequence[int],
        **_: Any,
    ) -> None:
        add(self.groups, y, x, lora_a_stacked, lora_b_stacked, scale, output_slices)

    def add_lora_logits(
        self: Any, y: Tensor, x: Tensor, lora_a_stacked: Tensor, lora_b_stacked: Tensor, scale: float, **_: Any
    ) -> None:
        # The adapter may be padded beyond the vocabulary that is put out.
        width = min(y.shape[-1], lora_b_stacked.shape[-2])
        add(self.sampler_groups, y, x, [lora_a_stacked], [lora_b_stacked], scale, [width])

    wrapper.groups = wrapper.sampler_groups = ()
    wrapper.update_metadata = update_metadata
    wrapper.add_lora_linear = add_lora_linear
    wrapper.add_lora_logits = add_lora_logits
    wrapper.grouped_lora = True


def rows_by_slot(indices: Tensor) -> list[tuple[int, Rows]]:
    """The rows of each adapter slot; rows of the base model (index -1) are in none."""
    groups: list[tuple[int, Rows]] = []
    for slot in indices.unique().tolist():
        if slot >= 0:
            rows = (indices == slot).nonzero().squeeze(1)
            first, last = int(rows[0]), int(rows[-1])
            groups.append((slot, slice(first, last + 1) if last - first + 1 == len(rows) else rows))
    return groups


def add(
    groups: Sequence[tuple[int, Rows]],
    y: Tensor,
    x: Tensor,
    a_stacked: Sequence[Tensor],
    b_stacked: Sequence[Tensor],
    scale: float,
    sizes: Sequence[int],
) -> None:
    """``y[rows, part] += scale · x[rows] Aᵀ Bᵀ`` for each slot and each part of the output, in place.

    Shapes: ``a_stacked`` (slots, 1, rank, in) and ``b_stacked`` (slots, 1, size, rank), one pair for each part.
    """
    y = y.view(-1, y.shape[-1])
    x = x.view(-1, x.shape[-1])
    for slot, rows in groups:
        chosen = x[rows].to(a_stacked[0].dtype)
        offset = 0
        for a, b, size in zip(a_stacked, b_stacked, sizes, strict=True):
            down, up = a[slot].flatten(0, -2), b[slot].flatten(0, -2)
            delta = (chosen @ down.t()) @ up[:size].t()
            y[rows, offset : offset + size] += (delta * scale).to(y.dtype)
            offset += size
