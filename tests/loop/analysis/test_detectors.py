"""One conformance test that every detector passes, and what each of them sees."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from harness.environment import Act
from harness.tool_kinds import is_error, is_write
from loop.analysis.detectors import DETECTORS, find, registered
from loop.analysis.detectors.sequence import Rule, cross_fit, fold_of, mine
from loop.analysis.labels import Detector, LapseContext, is_valid
from loop.analysis.view import View
from storage.errors import TraceError
from storage.trajectory import Message, ToolCall, Trajectory
from tests.loop.analysis.shop import TOOLS, Shop, play

SEEDS = range(12)
BY_ID = {d.id: d for d in DETECTORS}
ALL = (*DETECTORS, Rule("before", "find_bouquets", "cancel_bouquet").detector())


def label(detector: str, run: Trajectory) -> str:
    return BY_ID[detector].label(run).value


def context(shop: Shop) -> LapseContext:
    return LapseContext(messages=({"role": "user", "content": shop.request},), tools=TOOLS)


@pytest.mark.parametrize("detector", ALL, ids=lambda d: d.id)
class TestConformance:
    def test_a_good_solution_is_never_lacking(self, detector: Detector) -> None:
        for seed in SEEDS:
            shop = Shop(seed)
            assert detector.label(play(shop, shop.reference())).value != "LACKING"

    def test_its_lapse_is_lacking_and_cites_what_exists(self, detector: Detector) -> None:
        for seed in SEEDS:
            shop = Shop(seed)
            acts = detector.lapse(shop.reference(), context(shop))
            assert acts is not None
            run = play(shop, acts)
            found = detector.label(run)
            assert found.value == "LACKING"
            assert found.evidence
            assert is_valid(found, View.of(run))

    def test_it_does_not_see_the_outcome(self, detector: Detector) -> None:
        shop = Shop(3)
        for acts in (shop.reference(), detector.lapse(shop.reference(), context(shop)) or []):
            run = play(Shop(3), acts)
            told = dataclasses.replace(
                run,
                success=False,
                score=0.0,
                status="raised",
                error={"type": "E", "message": "m", "boundary": "agent"},
                metadata={"reward": 0},
            )
            assert detector.label(run) == detector.label(told)

    def test_it_labels_anything_without_raising(self, detector: Detector) -> None:
        odd = [
            Trajectory("a", "x", ()),
            Trajectory("b", "x", (Message("tool", "answer to nothing"),), TOOLS),
            Trajectory("c", "x", (Message("assistant", "", (ToolCall.parse("1", "nope", "{broken"),)),), TOOLS),
            Trajectory("d", "x", (Message("assistant", "", (ToolCall.parse("1", "get", "[]"),)), Message("tool", ""))),
            Trajectory("e", "x", (Message("user", "cancel"), Message("assistant", "")), ({"function": {"name": "f"}},)),
        ]
        for run in odd:
            found = detector.label(run)
            assert found.value in ("NA", "PRESENT", "LACKING")
            assert is_valid(found, View.of(run))

    def test_it_can_be_found_by_its_id_and_advises(self, detector: Detector) -> None:
        again = find(detector.id)
        assert again is not None
        assert again.id == detector.id
        assert again.hint.endswith(".")
        assert "\n" not in again.hint


def test_an_address_for_an_id_is_a_missing_look_up_even_if_the_user_said_it() -> None:
    shop = Shop(1)
    acts = [Act("cancel_bouquet", {"bouquet_id": shop.email}), Act(text="Done.")]
    assert label("lookup_before_change", play(shop, acts)) == "LACKING"


def test_an_id_that_the_user_gave_and_the_tool_accepted_needs_no_look_up() -> None:
    shop = Shop(1)
    shop.request = f"Cancel {shop.open_id}."
    acts = [Act("cancel_bouquet", {"bouquet_id": shop.open_id}), Act(text="Done.")]
    assert label("lookup_before_change", play(shop, acts)) == "NA"


def test_a_record_that_was_read_by_the_id_counts_as_looked_up() -> None:
    shop = Shop(1)
    shop.request = f"Cancel {shop.open_id}."
    acts = [Act("get_bouquet", {"bouquet_id": shop.open_id}), Act("cancel_bouquet", {"bouquet_id": shop.open_id})]
    assert label("lookup_before_change", play(shop, acts)) == "PRESENT"


def test_parallel_calls_do_not_ground_each_other() -> None:
    shop = Shop(1)
    calls = (
        ToolCall.parse("1", "find_bouquets", json.dumps({"email": shop.email})),
        ToolCall.parse("2", "cancel_bouquet", json.dumps({"bouquet_id": shop.open_id})),
    )
    results = [Message("tool", shop.call(c.name, c.arguments or {}), tool_call_id=c.id) for c in calls]
    run = Trajectory("r", "x", (Message("user", shop.request), Message("assistant", "", calls), *results), TOOLS)
    assert label("grounded_arguments", run) == "LACKING"


def test_an_identifier_in_a_refusal_does_not_ground_it() -> None:
    messages = (
        Message("user", "Cancel my tulips."),
        Message("assistant", "", (ToolCall.parse("1", "get_bouquet", '{"bouquet_id": "BQ-1"}'),)),
        Message("tool", "Error: no bouquet BQ-1", tool_call_id="1"),
        Message("assistant", "", (ToolCall.parse("2", "cancel_bouquet", '{"bouquet_id": "BQ-1"}'),)),
        Message("tool", "Error: no bouquet BQ-1", tool_call_id="2"),
    )
    assert BY_ID["grounded_arguments"].label(Trajectory("r", "x", messages, TOOLS)).step == 0
    assert BY_ID["lookup_before_change"].label(Trajectory("r", "x", messages, TOOLS)).step == 1


def test_recovery_is_present_when_the_refused_call_succeeds_later() -> None:
    shop = Shop(2)
    acts = [Act("cancel_bouquet", {"bouquet_id": shop.email}), *shop.reference()]
    assert label("recovery_after_error", play(shop, acts)) == "PRESENT"
    assert label("lookup_before_change", play(Shop(2), acts)) == "LACKING"


def test_looking_again_after_a_change_is_no_repetition() -> None:
    shop = Shop(2)
    look = Act("find_bouquets", {"email": shop.email})
    change = Act("change_delivery", {"bouquet_id": shop.open_id, "day": 3})
    assert label("no_identical_repeats", play(shop, [look, change, look])) == "PRESENT"
    assert label("no_identical_repeats", play(shop, [look, look])) == "LACKING"


def test_a_change_that_the_record_ruled_out_is_seen() -> None:
    shop = Shop(4)
    acts = [Act("find_bouquets", {"email": shop.email}), Act("cancel_bouquet", {"bouquet_id": shop.done_id})]
    assert label("respects_results", play(shop, acts)) == "LACKING"
    assert label("lookup_before_change", play(Shop(4), acts)) == "PRESENT"


def test_without_schemas_what_needs_them_is_na() -> None:
    shop = Shop(1)
    run = play(shop, shop.reference(), tools=())
    for detector in DETECTORS:
        if detector.needs_schemas:
            assert detector.label(run).value == "NA"


def test_a_call_written_as_text_is_not_well_formed() -> None:
    run = play(Shop(1), [Act(text='<tool_call>{"name": "find_bouquets"')])
    assert label("well_formed_calls", run) == "LACKING"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("I'll look that up now. One moment, please.", "LACKING"),
        ("Let me know if you need anything else.", "PRESENT"),
        ("", "LACKING"),
        ("Your bouquet is on its way.", "PRESENT"),
        ("I'll need your address. Could you tell me?", "PRESENT"),
    ],
)
def test_an_announcement_is_no_ending(text: str, value: str) -> None:
    assert label("complete_ending", play(Shop(1), [Act(text=text)])) == value


@pytest.mark.parametrize(
    ("name", "schema", "evidence", "kind"),
    [
        ("get_user", None, (), False),
        ("cancelReservation", None, (), True),
        ("orders.update", None, (), True),
        ("order_status", None, (), False),
        ("transfer_to_human_agents", None, (), False),
        ("frobnicate", None, (), None),
        ("frobnicate", {"description": "Deletes a widget."}, (), True),
        ("frobnicate", {"description": "Returns the widget."}, (), False),
        ("frobnicate", None, ("Widget was successfully created", "Widget was updated"), True),
        ("frobnicate", None, ('{"a": 1}', "[]"), False),
        ("cancel_dry_run", {"annotations": {"readOnlyHint": True}}, (), False),
    ],
)
def test_the_kind_of_a_tool(name: str, schema: dict | None, evidence: tuple[str, ...], kind: bool | None) -> None:
    assert is_write(name, schema, evidence) is kind


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("Error: user not found", True),
        ('{"error": "no such order"}', True),
        ('{"error": null, "id": 3}', False),
        ('{"success": false}', True),
        ('{"note": "error handling guide", "title": "x"}', False),
        ("Order cancelled.", False),
        ("bash: foo: command not found", True),
        ("Traceback (most recent call last): …", True),
        ("", False),
        (None, False),
    ],
)
def test_refusals_are_told_from_answers(text: str | None, error: bool) -> None:
    assert is_error(text) is error


def test_mining_finds_the_order_that_successes_keep_and_failures_break() -> None:
    rules = mine([["look", "act"]] * 9 + [["look", "other", "act"]], [["act"]] * 10)
    assert rules[0] == Rule("before", "look", "act")


def test_a_tool_that_every_run_calls_makes_no_rule_of_what_comes_after() -> None:
    rules = mine([["start", "look", "act"]] * 10, [["start", "act"]] * 10)
    assert Rule("before", "look", "act") in rules
    assert not [rule for rule in rules if rule.kind == "after"]


def test_a_run_is_never_labelled_by_a_rule_from_its_own_fold() -> None:
    runs = [(f"t{i}", i % 2 == 0, ["look", "act"] if i % 2 == 0 else ["act"]) for i in range(60)]
    fitted = cross_fit(runs)
    rule = Rule("before", "look", "act")
    assert fitted[rule]("t0")
    # Successes that keep the order stand in one fold only: no other fold's runs may be judged by what they show,
    # and their own fold's complement shows nothing.
    lonely = [(f"s{i}", True, ["look", "act"]) for i in range(200) if fold_of(f"s{i}") == 0]
    assert not cross_fit(lonely + [(f"f{i}", False, ["act"]) for i in range(60)]).get(rule, lambda _: False)(
        lonely[0][0]
    )


def test_a_rule_names_the_call_that_the_missing_one_prepares() -> None:
    """Whatever else comes later is also called without it, and equally often."""
    good = [["start", "quote", "sign", "audit"]] * 10
    rules = mine(good, [["start", "sign", "audit"]] * 10)
    assert [rule for rule in rules if rule.needed == "quote" and rule.kind == "before"] == [
        Rule("before", "quote", "sign")
    ]


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("Please cancel my tulips.", "LACKING"),
        ("I'd like my tulips to be cancelled.", "LACKING"),
        ("Can you help me with cancelling the tulips?", "LACKING"),
        ("I'd like to make a change to my delivery.", "LACKING"),
        ("My tulips were cancelled, is that correct? Who did it?", "NA"),
        ("Where do I see what the shop cancelled, and are we all set?", "NA"),
        ("What is the weather like?", "NA"),
    ],
)
def test_a_change_is_asked_for_not_merely_mentioned(said: str, value: str) -> None:
    shop = Shop(1)
    shop.request = said
    assert label("follow_through", play(shop, [Act(text="I see.")])) == value


def install(folder: Path, value: str) -> None:
    """What an installed package leaves behind that registers a detector."""
    (folder / "florist_detectors.py").write_text(
        "from loop.analysis.labels import Detector, Label\n"
        "POLITE = Detector('polite', 'Politeness', 'Says please.', 'Say please.',\n"
        "                  lambda view: Label('PRESENT'), lambda acts, context: None)\n"
        "NUMBER = 3\n"
    )
    info = folder / "florist_detectors-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: florist-detectors\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[trace_sdk.detectors]\npolite = {value}\n")


def test_a_team_registers_a_detector_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "florist_detectors:POLITE")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert registered() == (*DETECTORS, find("polite"))
    shop = Shop(1)
    found = registered()[-1]
    assert found.label(play(shop, shop.reference())).value == "PRESENT"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("florist_detectors:NUMBER", "int, no detector"),
        ("florist_detectors:NOTHING", "cannot be loaded"),
        ("loop.analysis.detectors.calls:GROUNDED", "already"),
    ],
)
def test_what_cannot_be_registered_is_named(
    value: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, value)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(TraceError, match=said) as raised:
        registered()
    assert value in raised.value.where
