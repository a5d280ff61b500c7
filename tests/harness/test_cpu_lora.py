"""The grouped products against one token at a time, and base rows left as they are."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from harness.serving.cpu_lora import add, rows_by_slot  # noqa: E402

SLOTS, RANK, WIDTH, PARTS = 3, 4, 6, (5, 2, 2)


@pytest.mark.parametrize(
    "indices",
    [[-1, -1, -1, -1], [0, 0, 0, 0], [2, -1, 2, 0], [-1, 1, 1, -1], [1, 0, 1, 0], [2, 2, 2, -1]],
)
def test_each_row_gets_its_own_adapter_and_base_rows_get_none(indices: list[int]) -> None:
    torch.manual_seed(0)
    x, before = torch.randn(4, WIDTH), torch.randn(4, sum(PARTS))
    a = [torch.randn(SLOTS, 1, RANK, WIDTH) for _ in PARTS]
    b = [torch.randn(SLOTS, 1, size, RANK) for size in PARTS]
    y = before.clone()

    add(rows_by_slot(torch.tensor(indices)), y, x, a, b, 0.5, PARTS)

    for row, slot in enumerate(indices):
        delta = torch.cat([0.5 * b[i][slot, 0] @ (a[i][slot, 0] @ x[row]) for i in range(len(PARTS))])
        expected = before[row] + (delta if slot >= 0 else 0)
        torch.testing.assert_close(y[row], expected)


def test_rows_that_lie_together_are_a_slice_and_others_are_indices() -> None:
    groups = dict(rows_by_slot(torch.tensor([1, 1, 0, -1, 0])))
    assert groups[1] == slice(0, 2)
    assert groups[0].tolist() == [2, 4]
