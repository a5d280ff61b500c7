"""What was concluded from the runs: the capabilities an agent lacks, and the labels that show it."""

# No postponed annotations here: SQLModel reads the types of the fields when the class is made.
import time
from typing import Any, ClassVar

from sqlalchemy import Index
from sqlmodel import Field

from storage.ids import new_id
from storage.tables.base import Row, json_field


class Capability(Row, table=True):
    """One or more actions that some subset of tasks cannot be solved without. One name over all analyses."""

    id: str = Field(default_factory=new_id, primary_key=True)
    agent: str = Field(foreign_key="agent.name")
    name: str
    description: str = ""
    source: str = "detector"
    """"detector" or "llm"."""
    detector: str | None = None
    state: str = "candidate"
    created_at: float = Field(default_factory=time.time)

    __table_args__: ClassVar[Any] = (Index("uq_capability_agent_name", "agent", "name", unique=True),)


class Analysis(Row, table=True):
    """One contrast of failed with successful runs of one agent, under fixed thresholds."""

    id: str = Field(default_factory=new_id, primary_key=True)
    agent: str = Field(foreign_key="agent.name", index=True)
    state: str = "running"
    model: str | None = None
    policy: str | None = None
    version: str | None = None
    passes: int = 1
    min_gap: float = 0.20
    min_coverage: float = 0.10
    min_passes: int = 8
    failed: int = 0
    succeeded: int = 0
    unknown: int = 0
    excluded: int = 0
    reference: int = 0
    harness_problems: Any = json_field()
    report: Any = json_field()
    """The whole document as `analyze --json` printed it."""
    started_at: float = Field(default_factory=time.time)
    ended_at: float | None = None


class CapabilityObservation(Row, table=True):
    """What one analysis measured of one capability. Counts are runs (means over passes, hence not whole)."""

    __tablename__: ClassVar[str] = "capability_observation"
    analysis: str = Field(primary_key=True, foreign_key="analysis.id")
    capability: str = Field(primary_key=True, foreign_key="capability.id", index=True)
    coverage: float
    gap: float | None
    gap_low: float | None = None
    gap_high: float | None = None
    stratified_gap: float | None = None
    lacking_failed: float = 0
    present_failed: float = 0
    na_failed: float = 0
    lacking_succeeded: float = 0
    present_succeeded: float = 0
    na_succeeded: float = 0
    passes_kept: float = 0
    selected: bool = False
    undecided: bool = False
    reason: str = ""
    detail: Any = json_field()


class Label(Row, table=True):
    """NA, PRESENT or LACKING for one run and one capability in one pass. A voided label has value None."""

    analysis: str = Field(primary_key=True, foreign_key="analysis.id")
    capability: str = Field(primary_key=True, foreign_key="capability.id", index=True)
    trajectory: str = Field(primary_key=True, foreign_key="trajectory.id", index=True)
    pass_number: int = Field(default=0, primary_key=True)
    value: str | None
    step: int | None = None
    """Index into the run's steps: the evidence. A LACKING that cites none is void."""
    evidence: str = ""
