"""The detectors that come with the project. A team registers its own: see `registered`."""

from __future__ import annotations

from importlib.metadata import entry_points

from loop.analysis.detectors.calls import GROUNDED, NO_REPEATS, SCHEMA_VALID, WELL_FORMED
from loop.analysis.detectors.changes import FOLLOW_THROUGH, LOOKUP_BEFORE_CHANGE, RECOVERY, RESPECTS_RESULTS
from loop.analysis.detectors.endings import COMPLETE_ENDING, CONSULTS_TOOLS, GROUNDED_ANSWER
from loop.analysis.labels import NA, Detector, Label, LapseContext
from storage.errors import TraceError

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

GROUP = "trace_sdk.detectors"

__all__ = ["DETECTORS", "NA", "Detector", "Label", "LapseContext", "find", "registered"]


def registered() -> tuple[Detector, ...]:
    """The detectors that come with the project, then those that installed packages register.

    A package registers one with an entry point of the group `trace_sdk.detectors` that names a `Detector`. Raises
    TraceError for one that cannot be loaded, is something else, or has an id that is taken.
    """
    found = {detector.id: detector for detector in DETECTORS}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        where = f"entry point {point.name} = {point.value} of {GROUP}"
        try:
            detector = point.load()
        except Exception as error:
            fix = "mend or uninstall the package"
            raise TraceError(f"a detector cannot be loaded: {error!r:.200}", where=where, fix=fix) from error
        if not isinstance(detector, Detector):
            fix = "name a loop.analysis.labels.Detector"
            raise TraceError(f"this is a {type(detector).__name__}, no detector", where=where, fix=fix)
        if detector.id in found:
            raise TraceError(f"there is a detector {detector.id!r} already", where=where, fix="give it another id")
        found[detector.id] = detector
    return tuple(found.values())


def find(id: str) -> Detector | None:
    """The detector with this id: a registered one, or a sequence rule rebuilt from its id."""
    from loop.analysis.detectors.sequence import rule_from_id

    own = next((d for d in DETECTORS if d.id == id), None) or rule_from_id(id)
    return own or next((d for d in registered() if d.id == id), None)
