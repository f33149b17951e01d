"""Groups, their episodes, and the bodies of these."""

from sqlalchemy import ForeignKey, Index, LargeBinary, String, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from agentrl.core.types import EpisodeState, GroupState, Reason, Status
from agentrl.db.models.base import Base


class Group(Base):
    """The G episodes dispatched for one item. `position`: place in the task's item stream.

    A copy (transitions/trajectories/group_copies.py) has `origin_id`, the group that was played,
    and `batch`, the version of the update that looked at it; both are null if it was played.
    """

    __tablename__ = "groups"
    __table_args__ = (
        Index("groups_by_position", "run_id", "task", "position", "round", unique=True),
        Index("groups_by_state", "run_id", "state", "ready_at"),
        Index("groups_by_ready", "run_id", "task", "ready_at"),
        Index("groups_by_close", "run_id", "closed_at"),
        Index("groups_by_item", "run_id", "item_id"),
    )

    group_id: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"))
    task: Mapped[str]
    position: Mapped[int]
    round: Mapped[int] = mapped_column(default=0)  # how often the position was rolled back before
    item_id: Mapped[str]
    horizon: Mapped[int | None]  # most turns of its episodes; null: the task's own limit
    size: Mapped[int]
    pending: Mapped[int]  # members without a terminal row
    state: Mapped[GroupState]
    taken_epoch: Mapped[int | None]  # of the trainer that holds its bodies and learns from it
    reason: Mapped[Reason | None]
    admitted_version: Mapped[int]
    admitted_at: Mapped[float]
    ready_at: Mapped[float | None]
    closed_at: Mapped[float | None]
    left_out_of: Mapped[str | None]  # the update that closed it without training on it
    origin_id: Mapped[str | None]
    batch: Mapped[int | None]


class Episode(Base):
    """One attempt after another at a group's item, until exactly one terminal row stands."""

    __tablename__ = "episodes"
    __table_args__ = (
        Index("episodes_by_group", "group_id", "member", unique=True),
        Index("episodes_by_state", "run_id", "state", "due_at"),
        Index("episodes_by_worker", "worker_id", "state"),
        # all that counts over a whole run need: they read no row of the table
        Index("episodes_by_end", "run_id", "state", "ended_at", "task", "score", "loss_tokens"),
    )

    episode_id: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"))
    group_id: Mapped[str] = mapped_column(ForeignKey("groups.group_id"))
    member: Mapped[int]
    task: Mapped[str]
    item_id: Mapped[str]
    state: Mapped[EpisodeState]
    fence: Mapped[int] = mapped_column(default=1)
    attempts: Mapped[int] = mapped_column(default=0)
    worker_id: Mapped[str | None]
    due_at: Mapped[float]  # queued: send again; running: attempt deadline; finished: body deadline
    reason: Mapped[Reason | None]
    status: Mapped[Status | None]
    reward: Mapped[float | None]
    score: Mapped[float | None]
    turns: Mapped[int | None]
    tokens: Mapped[int | None]
    loss_tokens: Mapped[int | None]
    body_sha256: Mapped[str | None] = mapped_column(String(64))
    queued_at: Mapped[float]
    started_at: Mapped[float | None]
    ended_at: Mapped[float | None]

    def seconds(self) -> float | None:
        """Of the attempt that ended it; None before that."""
        if self.started_at is None or self.ended_at is None:
            return None
        return self.ended_at - self.started_at


class Step(Base):
    """One policy call and the environment's answer, written by the recorder from the body."""

    __tablename__ = "steps"
    __table_args__ = (Index("steps_by_checkpoint", "checkpoint_id"),)

    episode_id: Mapped[str] = mapped_column(primary_key=True)
    fence: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str]
    server_id: Mapped[str]
    track: Mapped[str]
    checkpoint_id: Mapped[str]
    version: Mapped[int]
    temperature: Mapped[float]
    prompt_tokens: Mapped[int]
    token_start: Mapped[int]
    token_end: Mapped[int]
    requested_at: Mapped[float]
    policy_s: Mapped[float]
    env_s: Mapped[float]
    finish_reason: Mapped[str]
    call: Mapped[str] = mapped_column(Text)
    answer: Mapped[str] = mapped_column(Text)
    redrawn: Mapped[int] = mapped_column(default=0, server_default="0")  # policies replaced
    reward: Mapped[float | None]  # null: recorded before rewards of steps were
    parent: Mapped[int | None]  # None: the step before; -1: none, a conversation begins
    branch_reward: Mapped[float | None]  # of the branch that ends with this step
    trained: Mapped[bool | None]  # whether its tokens are in the loss; null: recorded before it was
    judge_score: Mapped[float | None]  # of the turn that it ends, before weights; null: none


class StoredTrajectory(Base):
    """A body as it travelled. One whose fence is not its row's is never used."""

    __tablename__ = "trajectories"
    __table_args__ = (
        Index("trajectories_by_arrival", "run_id", "received_at"),
        # empty in a sound store, so that to look for damaged bodies costs nothing
        Index(
            "trajectories_damaged",
            "run_id",
            sqlite_where=text("LENGTH(body) > 0 AND LENGTH(body) <> body_bytes"),
            postgresql_where=text("LENGTH(body) > 0 AND LENGTH(body) <> body_bytes"),
        ),
    )

    episode_id: Mapped[str] = mapped_column(primary_key=True)
    fence: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str]
    sha256: Mapped[str] = mapped_column(String(64))
    body: Mapped[bytes] = mapped_column(LargeBinary)
    received_at: Mapped[float]
    body_bytes: Mapped[int | None]  # of `body` as it came; it stays when the body is pruned
    judge: Mapped[str | None] = mapped_column(Text)  # its model or function; null: none judged
    judge_score: Mapped[float | None]  # before weights; the mean of the turns' if those were scored
    judge_reply: Mapped[str | None] = mapped_column(Text)  # of a model; it stays, too


class JournaledStep(Base):
    """A sampled step of an attempt whose body is not stored yet (core/journal.py).

    `parent_fence`: of the attempt that stored the previous step; null for the first.
    """

    __tablename__ = "journal"

    episode_id: Mapped[str] = mapped_column(primary_key=True)
    fence: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    parent_fence: Mapped[int | None]
    attempt: Mapped[int]
    run_id: Mapped[str]
    body: Mapped[bytes] = mapped_column(LargeBinary)
    written_at: Mapped[float]
