"""What was built against a lack: environments, adapters, their trainings, what serves, and why."""

# No postponed annotations here: SQLModel reads the types of the fields when the class is made.
import time
from typing import Any, ClassVar

from sqlalchemy import Index
from sqlmodel import Field

from storage.ids import new_id
from storage.tables.base import Row, json_field


class Environment(Row, table=True):
    """A seeded task generator that isolates one capability. ``spec`` is all it takes to build it again."""

    id: str = Field(default_factory=new_id, primary_key=True)
    name: str
    agent: str = Field(foreign_key="agent.name", index=True)
    capability: str | None = Field(default=None, foreign_key="capability.id", index=True)
    kind: str = "induced"
    """"induced" from trajectories, "generated" by a model, or "module": written by a person."""
    state: str = "draft"
    tools: str | None = Field(default=None, foreign_key="tool_set.sha256", index=True)
    spec: Any = json_field()
    evidence: Any = json_field()
    created_at: float = Field(default_factory=time.time)


class AdmissionCheck(Row, table=True):
    """One measured condition of an environment's admission. ``attempt`` counts its admissions."""

    __tablename__: ClassVar[str] = "admission_check"
    environment: str = Field(primary_key=True, foreign_key="environment.id")
    attempt: int = Field(default=1, primary_key=True)
    name: str = Field(primary_key=True)
    value: float | None
    threshold: str = ""
    passed: bool
    detail: str = ""
    at: float = Field(default_factory=time.time)


class Adapter(Row, table=True):
    """A LoRA for one capability, served as `name@version`. Its files never change: ``sha256`` is of its weights."""

    id: str = Field(default_factory=new_id, primary_key=True)
    name: str
    version: int
    capability: str | None = Field(default=None, foreign_key="capability.id", index=True)
    environment: str | None = Field(default=None, foreign_key="environment.id", index=True)
    path: str
    sha256: str
    base: str
    parent_sha256: str | None = None
    """The adapter it was trained on from, a warm start for example."""
    rank: int = 16
    state: str = "candidate"
    detail: Any = json_field()
    created_at: float = Field(default_factory=time.time)

    __table_args__: ClassVar[Any] = (
        Index("uq_adapter_name_version", "name", "version", unique=True),
        Index("ix_adapter_state", "state"),
    )


class TrainingRun(Row, table=True):
    """One training of one adapter: kind "sft" or "grpo", with all that is needed to run it again."""

    __tablename__: ClassVar[str] = "training_run"
    id: str = Field(default_factory=new_id, primary_key=True)
    kind: str
    environment: str | None = Field(default=None, foreign_key="environment.id", index=True)
    adapter: str | None = Field(default=None, foreign_key="adapter.id", index=True)
    cycle: str | None = Field(default=None, foreign_key="cycle.id", index=True)
    state: str = "running"
    seed: int = 0
    config: Any = json_field()
    result: Any = json_field()
    started_at: float = Field(default_factory=time.time)
    ended_at: float | None = None


class TrainingStep(Row, table=True):
    """What one optimizer step measured. Columns are what every kind has, the rest is in ``metrics``."""

    __tablename__: ClassVar[str] = "training_step"
    run: str = Field(primary_key=True, foreign_key="training_run.id")
    step: int = Field(primary_key=True)
    loss: float | None = None
    reward: float | None = None
    informative_groups: float | None = None
    tokens: int | None = None
    seconds: float | None = None
    metrics: Any = json_field()
    at: float = Field(default_factory=time.time)


class Router(Row, table=True):
    """One fitted gate over {base, adapters}. ``weights`` is all that it needs to decide."""

    id: str = Field(default_factory=new_id, primary_key=True)
    version: int = Field(unique=True)
    arms: Any = json_field()
    weights: Any = json_field()
    created_at: float = Field(default_factory=time.time)


class Policy(Row, table=True):
    """Base model, adapters and router: what serves as a whole. At most one is active."""

    id: str = Field(default_factory=new_id, primary_key=True)
    version: int = Field(unique=True)
    base: str
    adapters: Any = json_field()
    """Names `capability@version`, as they are served."""
    router: str | None = Field(default=None, foreign_key="router.id", index=True)
    state: str = Field(default="candidate", index=True)
    canary_share: float | None = None
    created_at: float = Field(default_factory=time.time)
    activated_at: float | None = None


class Cycle(Row, table=True):
    """One turn of the improvement loop. ``stage`` is where it is; it resumes there after a crash."""

    id: str = Field(default_factory=new_id, primary_key=True)
    agent: str = Field(foreign_key="agent.name", index=True)
    state: str = "running"
    stage: str = ""
    config: Any = json_field()
    report: Any = json_field()
    started_at: float = Field(default_factory=time.time, index=True)
    ended_at: float | None = None


class Evaluation(Row, table=True):
    """One arm measured on one split of tasks. Its counts follow from its episodes."""

    id: str = Field(default_factory=new_id, primary_key=True)
    cycle: str | None = Field(default=None, foreign_key="cycle.id", index=True)
    capability: str | None = Field(default=None, foreign_key="capability.id", index=True)
    arm: str
    split: str
    """"train", "gate" (decides) or "report" (only measured)."""
    policy: str | None = None
    model: str | None = None
    state: str = "running"
    seeds: Any = json_field()
    n: int = 0
    successes: int = 0
    detail: Any = json_field()
    started_at: float = Field(default_factory=time.time)
    ended_at: float | None = None


class EvaluationEpisode(Row, table=True):
    """One task of one evaluation. ``task`` is equal in all arms that are compared, which makes them paired."""

    __tablename__: ClassVar[str] = "evaluation_episode"
    evaluation: str = Field(primary_key=True, foreign_key="evaluation.id")
    task: str = Field(primary_key=True)
    repeat: int = Field(default=0, primary_key=True)
    kind: str = ""
    trajectory: str | None = Field(default=None, index=True)
    success: bool | None
    score: float | None = None
    detail: Any = json_field()


class GateDecision(Row, table=True):
    """Why a candidate was promoted, held or rejected: the numbers that decided, on the gate split."""

    __tablename__: ClassVar[str] = "gate_decision"
    id: str = Field(default_factory=new_id, primary_key=True)
    cycle: str | None = Field(default=None, foreign_key="cycle.id", index=True)
    adapter: str | None = Field(default=None, foreign_key="adapter.id", index=True)
    policy: str | None = Field(default=None, foreign_key="policy.id", index=True)
    candidate: str | None = Field(default=None, foreign_key="evaluation.id", index=True)
    baseline: str | None = Field(default=None, foreign_key="evaluation.id", index=True)
    verdict: str
    """"promote", "hold" or "reject"."""
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    p_value: float | None = None
    reason: str = ""
    detail: Any = json_field()
    at: float = Field(default_factory=time.time)
