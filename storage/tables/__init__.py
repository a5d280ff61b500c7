"""The schema, in the order of the loop: what was `recorded`, what was `concluded`, how it was `improved`.

Times are seconds since the epoch, lengths of time are seconds, rates are fractions 0..1. Ids are the 26
characters of `storage.ids`. Columns named ``state`` follow `storage.states`, checked on every assignment.
JSON columns hold what is shown and never filtered by; what is filtered by is a column with an index.
"""

from typing import Any

from sqlalchemy import event

from storage import states
from storage.tables.base import Row
from storage.tables.concluded import (
    Analysis,
    Capability,
    CapabilityObservation,
    Label,
)
from storage.tables.improved import (
    Adapter,
    AdmissionCheck,
    Cycle,
    Environment,
    Evaluation,
    EvaluationEpisode,
    GateDecision,
    Policy,
    Router,
    TrainingRun,
    TrainingStep,
)
from storage.tables.recorded import (
    Agent,
    MessageList,
    ModelCall,
    Outcome,
    RunEvent,
    Session,
    SpoolSegment,
    Tag,
    ToolSet,
    Trajectory,
    User,
)

__all__ = [
    "STATEFUL",
    "Adapter",
    "AdmissionCheck",
    "Agent",
    "Analysis",
    "Capability",
    "CapabilityObservation",
    "Cycle",
    "Environment",
    "Evaluation",
    "EvaluationEpisode",
    "GateDecision",
    "Label",
    "MessageList",
    "ModelCall",
    "Outcome",
    "Policy",
    "Router",
    "Row",
    "RunEvent",
    "Session",
    "SpoolSegment",
    "Tag",
    "ToolSet",
    "TrainingRun",
    "TrainingStep",
    "Trajectory",
    "User",
]

STATEFUL: dict[str, type[Row]] = {
    "trajectory": Trajectory,
    "analysis": Analysis,
    "capability": Capability,
    "environment": Environment,
    "training_run": TrainingRun,
    "adapter": Adapter,
    "policy": Policy,
    "evaluation": Evaluation,
    "cycle": Cycle,
}


def _guard(machine: str, table: type[Row]) -> None:
    def changed(_target: Row, value: str, old: Any, _initiator: Any) -> None:
        states.check(machine, old if isinstance(old, str) else None, value)

    event.listen(table.state, "set", changed, active_history=True)  # type: ignore[attr-defined]


for _machine, _table in STATEFUL.items():
    _guard(_machine, _table)
