"""What is published is there whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from loop.training.artifacts import publish_lines


def test_an_interrupt_in_the_middle_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    target = tmp_path / "folder" / "runs.jsonl"
    assert publish_lines(target, ["a\n", "b\n"]) == 2

    def interrupted() -> Iterator[str]:
        yield "c\n"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        publish_lines(target, interrupted())
    assert target.read_text() == "a\nb\n"
    assert list(target.parent.iterdir()) == [target]
