"""The base: taught on tools that are nobody's, built once, rebuilt when its recipe changes."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.rendering import TOOL_TEMPLATE, Renderer
from loop.demo import base_model
from loop.demo.base_model import BaseRecipe, build_base
from loop.demo.unrelated_tools import REGISTERS, SIMPLE, unrelated_dialogues
from loop.training.sft import Dialogue
from storage.errors import TraceError
from tests.tiny import build_model

SMALL = BaseRecipe(steps=2, group=2, first_layer=1)
SHOP = re.compile(r"order|customer|refund|cancel|address|shop|buy|purchase|deliver|parcel|price", re.IGNORECASE)


@pytest.fixture(scope="module")
def dialogues() -> list[Dialogue]:
    return unrelated_dialogues(60, 6, register_share=0.7, multi_share=0.5, three_share=0.5, seed=3)


def calls_of(dialogue: Dialogue) -> list[tuple[str, dict[str, Any], str]]:
    """Name and arguments of each call, with all that was said before it."""
    found = []
    for index, message in enumerate(dialogue.messages):
        before = json.dumps([m["content"] for m in dialogue.messages[:index] if m["content"]])
        for call in message.get("tool_calls", []):
            found.append((call["function"]["name"], json.loads(call["function"]["arguments"]), before))
    return found


def test_nothing_is_about_a_shop(dialogues: list[Dialogue]) -> None:
    text = json.dumps([[d.messages, d.tools] for d in dialogues])
    # A file says "buy seeds": the only purchase, and nobody makes it through a tool.
    assert not SHOP.search(text.replace("buy seeds", ""))


def test_there_are_many_tools_of_many_names(dialogues: list[Dialogue]) -> None:
    assert len(SIMPLE) + 4 * len(REGISTERS) >= 13
    assert len({tool["function"]["name"] for d in dialogues for tool in d.tools}) >= 40


def test_calls_fit_the_schemas_and_say_only_what_was_said_before(dialogues: list[Dialogue]) -> None:
    for dialogue in dialogues:
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in dialogue.tools}
        assert len(schemas) == len(dialogue.tools)
        for name, arguments, before in calls_of(dialogue):
            assert list(arguments) == schemas[name]["required"]
            for value in arguments.values():
                assert str(value) in before


def test_the_shares_decide_how_many_calls_a_dialogue_takes() -> None:
    def counts(multi: float, three: float) -> set[int]:
        made = unrelated_dialogues(12, 4, register_share=1.0, multi_share=multi, three_share=three, seed=0)
        return {len(calls_of(dialogue)) for dialogue in made}

    assert counts(0.0, 0.0) == {1}
    assert counts(1.0, 0.0) == {2}
    assert counts(1.0, 1.0) == {3}


def test_the_seed_decides_the_dialogues() -> None:
    made = [unrelated_dialogues(4, 2, register_share=0.5, multi_share=0.5, three_share=0.5, seed=s) for s in (1, 1, 2)]
    assert made[0] == made[1] != made[2]


def test_the_recipes_hash_depends_on_every_knob() -> None:
    recipe = BaseRecipe()
    changed = [
        replace(recipe, **{name: value + 1})
        for name, value in ((f, getattr(recipe, f)) for f in BaseRecipe.__dataclass_fields__)
    ]
    assert len({recipe.digest(), *(other.digest() for other in changed)}) == len(changed) + 1


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Converts a tiny model instead of the demo's, and notes each time it is asked to."""
    made: list[Path] = []

    def convert(folder: Path) -> None:
        build_model(folder)
        shutil.copyfile(TOOL_TEMPLATE, folder / "chat_template.jinja")
        made.append(folder)

    monkeypatch.setattr(base_model, "convert", convert)
    return made


def test_the_base_is_built_once_and_again_when_the_recipe_changes(conversions: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "base"
    stages: list[tuple[str, int, int]] = []
    assert build_base(out, recipe=SMALL, progress=lambda *stage: stages.append(stage)) == out
    weights = (out / "model.safetensors").read_bytes()
    assert stages[0] == ("convert", 0, 1)
    assert ("tune", 2, 2) in stages
    assert stages[-1] == ("tune", 2, 2)
    assert json.loads((out / "base.json").read_text())["recipe"] == SMALL.digest()
    assert Renderer(out).prompt_ids([{"role": "user", "content": "Hi"}])
    assert "quantization_config" not in json.loads((out / "config.json").read_text())

    build_base(out, recipe=SMALL)
    assert len(conversions) == 1
    build_base(out, recipe=replace(SMALL, lr=5e-2))
    assert len(conversions) == 2
    assert (out / "model.safetensors").read_bytes() != weights
    assert [path.name for path in tmp_path.iterdir()] == ["base"]


def test_an_interrupted_build_leaves_no_base_and_goes_on_after_the_conversion(
    conversions: list[Path], tmp_path: Path
) -> None:
    def interrupt(stage: str, done: int, total: int) -> None:
        if (stage, done) == ("tune", 1):
            raise KeyboardInterrupt

    out = tmp_path / "base"
    with pytest.raises(KeyboardInterrupt):
        build_base(out, recipe=SMALL, progress=interrupt)
    assert not out.exists()
    build_base(out, recipe=SMALL)
    assert len(conversions) == 1
    assert (out / "base.json").is_file()


def test_missing_weights_are_a_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(base_model, "PACKAGE", "no_such_package_here")
    with pytest.raises(TraceError, match="weights are not installed"):
        build_base(tmp_path / "base", recipe=SMALL)
    assert not (tmp_path / "base").exists()
