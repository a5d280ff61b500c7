"""The graph of one cycle: which stage follows which, checkpointed after each.

A stage is a method of `loop.cycle.stages.Stages`. LangGraph writes the state after every stage, so a cycle that was
killed resumes at the stage it was in; a stage looks first for what it already produced, so nothing is done twice.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph

from storage.errors import TraceError


class CycleState(TypedDict):
    """What one stage leaves for the next: ids of rows in the database ("" for none), never the things themselves."""

    cycle: str
    analysis: str
    pending: list[str]
    """Capability ids that were selected and not yet taken up, most urgent first."""
    capability: str
    environment: str
    warm_start: str
    adapter: str
    policy: str
    verdict: str
    promoted: list[str]
    """Adapter ids that this cycle promoted."""
    tried: list[str]
    """Capability ids that were taken up, in order."""
    trained: list[str]
    """Those of them that an adapter was trained for."""


Update = dict[str, Any]
"""The part of the state that a stage changed."""


def first_state(cycle: str) -> CycleState:
    """The state that a new cycle begins in."""
    return CycleState(
        cycle=cycle,
        analysis="",
        pending=[],
        capability="",
        environment="",
        warm_start="",
        adapter="",
        policy="",
        verdict="",
        promoted=[],
        tried=[],
        trained=[],
    )


class Stages(Protocol):
    """The work of each stage. Each returns the part of the state that it changed."""

    def analyze(self, state: CycleState) -> Update: ...
    def choose(self, state: CycleState) -> Update: ...
    def synthesize(self, state: CycleState) -> Update: ...
    def admit(self, state: CycleState) -> Update: ...
    def warm_start(self, state: CycleState) -> Update: ...
    def calibrate(self, state: CycleState) -> Update: ...
    def train(self, state: CycleState) -> Update: ...
    def fit_router(self, state: CycleState) -> Update: ...
    def gate(self, state: CycleState) -> Update: ...
    def promote(self, state: CycleState) -> Update: ...
    def finish(self, state: CycleState) -> Update: ...


def build_graph(stages: Stages) -> StateGraph[CycleState]:
    """Stages in order; a capability whose environment is not usable, or whose candidate fails, yields to the next."""
    graph: Any = StateGraph(CycleState)
    for name in STAGES:
        graph.add_node(name, getattr(stages, name))
    graph.add_edge(START, "analyze")
    graph.add_edge("analyze", "choose")
    graph.add_conditional_edges("choose", _when("capability", "synthesize", "finish"))
    graph.add_conditional_edges("synthesize", _when("environment", "admit", "choose"))
    graph.add_conditional_edges("admit", _when("environment", "warm_start", "choose"))
    graph.add_edge("warm_start", "calibrate")
    graph.add_conditional_edges("calibrate", _when("environment", "train", "choose"))
    graph.add_conditional_edges("train", _when("adapter", "fit_router", "choose"))
    graph.add_edge("fit_router", "gate")
    graph.add_conditional_edges("gate", lambda s: "promote" if s.get("verdict") == "promote" else "choose")
    graph.add_edge("promote", "choose")
    graph.add_edge("finish", END)
    return graph


STAGES = (
    "analyze",
    "choose",
    "synthesize",
    "admit",
    "warm_start",
    "calibrate",
    "train",
    "fit_router",
    "gate",
    "promote",
    "finish",
)


def _when(key: str, there: str, missing: str) -> Callable[[CycleState], str]:
    return lambda state: there if state.get(key) else missing


def run_graph(stages: Stages, cycle: str, checkpoints: Path) -> CycleState:
    """Run the cycle ``cycle`` to its end, from its last checkpoint if it has one. Returns the final state.

    Raises TraceError when the file of checkpoints is not one.
    """
    checkpoints.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(checkpoints, check_same_thread=False, timeout=30)
    try:
        saver = SqliteSaver(connection)
        try:
            saver.setup()
        except sqlite3.DatabaseError as error:
            raise TraceError(
                f"the checkpoints cannot be read: {error}",
                where=str(checkpoints),
                fix="Move the file away; cycles that were under way then start anew.",
            ) from error
        graph = build_graph(stages).compile(checkpointer=saver)
        config: Any = {"configurable": {"thread_id": cycle}, "recursion_limit": 200}
        begun = graph.get_state(config)
        if begun.values and not begun.next:
            return CycleState(**begun.values)
        start: Any = None if begun.values else first_state(cycle)
        # "sync": the checkpoint is on disk before the next stage begins, not while it runs.
        return CycleState(**graph.invoke(start, config, durability="sync"))
    finally:
        connection.close()
