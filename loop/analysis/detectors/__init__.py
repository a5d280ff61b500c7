"""The detectors that come with the project. A team adds its own by passing more to `loop.analysis.analyze`."""

from __future__ import annotations

from loop.analysis.detectors.calls import GROUNDED, NO_REPEATS, SCHEMA_VALID, WELL_FORMED
from loop.analysis.detectors.changes import FOLLOW_THROUGH, LOOKUP_BEFORE_CHANGE, RECOVERY, RESPECTS_RESULTS
from loop.analysis.detectors.endings import COMPLETE_ENDING, CONSULTS_TOOLS, GROUNDED_ANSWER
from loop.analysis.labels import NA, Detector, Label, LapseContext

DETECTORS: tuple[Detector, ...] = (
    WELL_FORMED,
    SCHEMA_VALID,
    GROUNDED,
    LOOKUP_BEFORE_CHANGE,
    RESPECTS_RESULTS,
    FOLLOW_THROUGH,
    RECOVERY,
    NO_REPEATS,
    CONSULTS_TOOLS,
    COMPLETE_ENDING,
    GROUNDED_ANSWER,
)

__all__ = ["DETECTORS", "NA", "Detector", "Label", "LapseContext", "find"]


def find(id: str) -> Detector | None:
    """The detector with this id: one that comes with the project, or a sequence rule rebuilt from its id."""
    from loop.analysis.detectors.sequence import rule_from_id

    return next((d for d in DETECTORS if d.id == id), None) or rule_from_id(id)
