"""What was recorded: agents, their runs, what was said in them, and how they ended."""

# No postponed annotations here: SQLModel reads the types of the fields when the class is made.
import time
from typing import Any, ClassVar

from sqlalchemy import Index, Text
from sqlmodel import Field

from storage.tables.base import Row, json_field


class Agent(Row, table=True):
    """A deployed agent, by the name its team gave it. Written by ingest and importers on first sight."""

    name: str = Field(primary_key=True)
    created_at: float = Field(default_factory=time.time)


class Session(Row, table=True):
    """A conversation of several runs. Its id is the team's own."""

    id: str = Field(primary_key=True)
    created_at: float = Field(default_factory=time.time)


class User(Row, table=True):
    """Whom a run was for. Its id is the team's own, already redacted if they chose so."""

    id: str = Field(primary_key=True)
    created_at: float = Field(default_factory=time.time)


class ToolSet(Row, table=True):
    """A list of tool schemas, stored once: hundreds of runs share it. ``tools`` is JSON text, byte for byte."""

    __tablename__: ClassVar[str] = "tool_set"
    sha256: str = Field(primary_key=True)
    tools: str = Field(sa_type=Text)


class MessageList(Row, table=True):
    """A list of chat messages, stored once and by content; written by `storage.content`.

    It begins with all messages of ``parent`` and goes on with its own (JSON text). System prompts are lists of
    one message; a run that continues a conversation is the child of the run before. ``sha256`` chains over the
    messages, so that each beginning of a list has a hash of its own; of the latest link the first half is its name.
    """

    __tablename__: ClassVar[str] = "message_list"
    sha256: str = Field(primary_key=True)
    parent: str | None = Field(default=None, foreign_key="message_list.sha256", index=True)
    count: int
    """Messages in the whole list, those of the parents included."""
    messages: str = Field(sa_type=Text)


class Trajectory(Row, table=True):
    """One run of an agent. The outcome stands here as the latest of its `Outcome` rows says; None is unknown."""

    id: str = Field(primary_key=True)
    agent: str = Field(foreign_key="agent.name")
    version: str | None = None
    task: str | None = None
    session: str | None = Field(default=None, foreign_key="session.id", index=True)
    user: str | None = Field(default=None, foreign_key="user.id", index=True)
    parent: str | None = Field(default=None, index=True)
    """The run that started this one. Not a foreign key: it may be recorded later, or elsewhere."""
    root: str | None = Field(default=None, index=True)
    source: str
    """Who wrote it: "spool", "import:FORMAT" or "episode"."""
    state: str = "running"
    success: bool | None = None
    score: float | None = None
    reference: bool = False
    trainable: bool = True
    weight: float = 1.0
    """How many runs it stands for, where successes are sampled."""
    model: str | None = None
    policy: str | None = None
    """`<policy version>/<arm>` as the gateway says it, None where another server answered."""
    started_at: float = 0.0
    ended_at: float | None = None
    tools: str | None = Field(default=None, foreign_key="tool_set.sha256", index=True)
    messages: str | None = Field(default=None, foreign_key="message_list.sha256", index=True)
    message_count: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input: Any = json_field()
    output: Any = json_field()
    error: Any = json_field()
    """{"type", "message", "boundary"}; the boundary is who failed."""
    details: Any = json_field()
    """What the source knew beyond these columns."""
    segment: str | None = None
    """The spool segment it began in, until its end is known: when that writer dies, the run is aborted."""

    __table_args__: ClassVar[Any] = (
        Index("ix_trajectory_agent_success", "agent", "reference", "success", "started_at"),
        Index("ix_trajectory_agent_started", "agent", "started_at"),
        Index("ix_trajectory_agent_task", "agent", "task"),
        Index("ix_trajectory_started", "started_at"),
        Index("ix_trajectory_success", "success", "started_at"),
        Index("ix_trajectory_model", "model", "policy"),
        Index("ix_trajectory_policy", "policy"),
        Index("ix_trajectory_segment", "segment"),
    )


class Tag(Row, table=True):
    """A word that a team put on a run."""

    tag: str = Field(primary_key=True)
    trajectory: str = Field(primary_key=True, foreign_key="trajectory.id", index=True)


class ModelCall(Row, table=True):
    """One request to a model and its answer. The request is the first ``request_count`` messages of ``messages``."""

    __tablename__: ClassVar[str] = "model_call"
    id: str = Field(primary_key=True)
    trajectory: str = Field(foreign_key="trajectory.id", index=True)
    seq: int
    attempt: int = 1
    """How often the client tried. A retry is the same call, and replaces the attempt that failed."""
    thread: str | None = None
    """Which of the run's message threads it belongs to."""
    started_at: float
    latency: float | None = None
    provider: str = "unknown"
    url: str | None = None
    model: str | None = None
    policy: str | None = None
    messages: str | None = Field(default=None, foreign_key="message_list.sha256", index=True)
    request_count: int = 0
    tools: str | None = Field(default=None, foreign_key="tool_set.sha256", index=True)
    params: Any = json_field()
    response: Any = json_field()
    """The answer as recorded; without its message where that is message ``request_count`` of ``messages``."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    error: Any = json_field()


class RunEvent(Row, table=True):
    """A decorated tool's execution (kind "tool"), or a note that the agent left (kind "note")."""

    __tablename__: ClassVar[str] = "run_event"
    id: int | None = Field(default=None, primary_key=True)
    trajectory: str = Field(foreign_key="trajectory.id", index=True)
    kind: str
    at: float
    data: Any = json_field()


class Outcome(Row, table=True):
    """A verdict on a run. All are kept; the one with the latest ``at`` counts, of equal ones the last to arrive.

    ``trajectory`` is not a foreign key: feedback may reach the database before the run does, and waits for it.
    """

    id: int | None = Field(default=None, primary_key=True)
    trajectory: str = Field(index=True)
    success: bool | None
    score: float | None = None
    source: str
    reason: str | None = None
    at: float = Field(default_factory=time.time)


class SpoolSegment(Row, table=True):
    """How far a spool file was read, in bytes. Committed together with the rows that were read."""

    __tablename__: ClassVar[str] = "spool_segment"
    name: str = Field(primary_key=True)
    position: int = 0
    events: int = 0
    broken: int = 0
    """Lines that were not events. Their file is kept beside the spool."""
    updated_at: float = Field(default_factory=time.time)
