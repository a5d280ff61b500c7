"""Getting rewards without the work: goals that change or hold anyway, knowledge of who is watching, chance."""

from __future__ import annotations

import asyncio
import inspect
import json
from pathlib import Path

from harness.admission import AdmissionReport, Thresholds, admit
from harness.environment import Goals
from harness.episodes import run_episode
from harness.policies import NullPolicy
from harness.sandbox.host import ModuleFactory, open_module
from loop.synthesis.loading import fingerprint_elsewhere
from tests.attacks.arena import GOOD, Arena
from tests.harness import desk

# Few seeds; and how fast this machine is has no say.
FEW = Thresholds(seeds=6, distinct_seeds=8, reset_s=60, call_s=60, episode_s=600)


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


def judged(arena: Arena, source: str) -> AdmissionReport:
    path: Path = arena.module(source)
    make = open_module(path)
    try:
        tools = [dict(t) for t in make().tools]
        return admit(make, tools, elsewhere=lambda seeds: fingerprint_elsewhere(path, seeds), thresholds=FEW)
    finally:
        make.close()
        arena.check_health()


def failed(report: AdmissionReport) -> set[str]:
    return {check.name for check in report.checks if not check.passed}


def test_a_good_module_is_admitted(arena: Arena):
    report = judged(arena, f"{inspect.getsource(desk)}\n\nmake = LoanDesk\n")
    assert report.admitted, report.lines()
    assert {"deterministic", "order_independent", "reference", "null"} <= {check.name for check in report.checks}


def test_goals_that_change_after_reset_are_not_heard(arena: Arena):
    source = changed(
        'return Goals(state={"pulled": True})',
        'self.asked = getattr(self, "asked", 0) + 1\n        return Goals(state={"pulled": self.asked == 1})',
    )

    def play(make: ModuleFactory) -> str:
        env = make()
        env.reset(1)
        said = {json.dumps([dict(env.goals().state), env.state()]) for _ in range(3)}
        env.call("pull", {})
        said.add(json.dumps([dict(env.goals().state), {"pulled": False}]))
        return "".join(said)

    assert arena.outcome(source, play) == '[{"pulled": true}, {"pulled": false}]'


def test_goals_that_the_caller_changes_stay_as_they_were(arena: Arena):
    def play(make: ModuleFactory) -> str:
        env = make()
        env.reset(1)
        state = env.goals().state
        assert isinstance(state, dict)
        state.clear()
        return str(env.goals() == Goals(state={"pulled": True}))

    assert arena.outcome(GOOD, play) == "True"


def test_goals_that_always_hold_are_not_admitted(arena: Arena):
    report = judged(arena, changed('return Goals(state={"pulled": True})', "return Goals()"))
    assert "null" in failed(report)


def test_a_state_that_claims_success_is_not_admitted(arena: Arena):
    report = judged(arena, changed('return {"pulled": self.pulled}', 'return {"pulled": True}'))
    assert "null" in failed(report)


def test_a_module_cannot_score_itself(arena: Arena):
    fake = """
import sys, types
fake = types.ModuleType("harness.scoring")
fake.score = lambda *a, **k: 1.0
sys.modules["harness.scoring"] = fake
"""
    source = fake + changed("def respond", "score = reward = lambda self: 1.0\n\n    def respond")

    def play(make: ModuleFactory) -> str:
        episode = asyncio.run(run_episode(make(), 1, NullPolicy()))
        assert episode.score is not None
        return f"{episode.score.success} {episode.score.total}"

    assert arena.outcome(source, play) == "False 0.0"


def test_the_scorers_code_cannot_be_imported(arena: Arena):
    said = arena.outcome("import harness.scoring", lambda make: "imported")
    assert "ModuleNotFoundError" in said


def test_results_that_depend_on_the_hash_seed_are_found(arena: Arena):
    source = changed('return "done"', 'return "".join({str(n) for n in range(40)})')
    assert "deterministic" in failed(judged(arena, source))


def test_episodes_that_learn_from_each_other_are_found(arena: Arena):
    source = changed(
        "self.pulled = False\n", "self.pulled = False\n        Lever.played = getattr(Lever, 'played', 0) + 1\n"
    )
    source = source.replace('f"Pull lever {seed}."', 'f"Pull lever {seed} {Lever.played}."')
    assert "order_independent" in failed(judged(arena, source))


def test_tasks_drawn_from_the_kernels_dice_are_found(arena: Arena):
    source = changed('f"Pull lever {seed}."', "f\"Pull lever {seed} {__import__('os').urandom(4).hex()}.\"")
    assert "order_independent" in failed(judged(arena, source))


def test_a_module_that_fails_now_and_then_is_an_environments_fault(arena: Arena):
    source = changed('return "done"', 'raise RuntimeError("out of order")')

    def play(make: ModuleFactory) -> str:
        from harness.policies import ReferencePolicy

        episode = asyncio.run(run_episode(make(), 1, ReferencePolicy()))
        assert episode.score is None
        return json.dumps(dict(episode.error or {}))

    fault = json.loads(arena.outcome(source, play))
    assert fault["boundary"] == "environment"
    assert fault["type"] == "SandboxError"
    assert "RuntimeError: out of order" in fault["message"]
