"""Updates, what they learned from, their alarms, and the checkpoints that they made."""

from typing import Any

from sqlalchemy import ForeignKey, Index, String, Text
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import Mapped, mapped_column

from agentrl.core.types import CheckpointState, UpdateState
from agentrl.db.models.base import Base, Big


class Update(Base):
    """One update: the live version `version - 1` became `version`."""

    __tablename__ = "updates"
    __table_args__ = (Index("updates_by_version", "run_id", "version"),)

    update_id: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"))
    version: Mapped[int]
    trainer_epoch: Mapped[int]
    checkpoint_id: Mapped[str] = mapped_column(ForeignKey("checkpoints.checkpoint_id"))
    state: Mapped[UpdateState]
    reason: Mapped[str] = mapped_column(default="")
    groups: Mapped[int]
    episodes: Mapped[int]
    loss_tokens: Mapped[int]
    metrics: Mapped[dict[str, Any]]
    started_at: Mapped[float]
    committed_at: Mapped[float]

    @hybrid_property
    def is_live(self) -> bool:
        """Whether it is on the surviving lineage: it was not rolled back."""
        return self.state != UpdateState.ROLLED_BACK


class UpdateGroup(Base):
    """A member that an update learned from, with the hash of the body that was trained."""

    __tablename__ = "update_groups"
    __table_args__ = (
        Index("update_groups_by_episode", "episode_id"),
        Index("update_groups_by_group", "group_id"),
    )

    update_id: Mapped[str] = mapped_column(ForeignKey("updates.update_id"), primary_key=True)
    episode_id: Mapped[str] = mapped_column(ForeignKey("episodes.episode_id"), primary_key=True)
    group_id: Mapped[str] = mapped_column(ForeignKey("groups.group_id"))
    fence: Mapped[int]
    sha256: Mapped[str] = mapped_column(String(64))
    loss_tokens: Mapped[int]
    advantage: Mapped[float | None]  # of its loss tokens, as trained; null: none, or an old row
    # The teacher that scored its loss tokens; null: none did. An ID, a directory or an API; SHA-256
    # of the weights' files or, of an API, of the scores.
    teacher: Mapped[str | None]
    teacher_checkpoint: Mapped[str | None] = mapped_column(Text)
    teacher_digest: Mapped[str | None] = mapped_column(String(64))
    reverse_kl: Mapped[float | None]  # mean of log π − log π_teacher before the update, in nats


class Alarm(Base):
    """A metric crossed its threshold (`ended_at` null) or came back: a row each, never one between.

    `task`: empty for the whole update. `update_id`: null where it was seen between two updates.
    """

    __tablename__ = "alarms"
    __table_args__ = (Index("alarms_by_name", "run_id", "task", "name"),)

    alarm_id: Mapped[int] = mapped_column(Big, primary_key=True, autoincrement=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"))
    update_id: Mapped[str | None] = mapped_column(ForeignKey("updates.update_id"))
    version: Mapped[int]
    task: Mapped[str]
    name: Mapped[str]
    value: Mapped[float]
    threshold: Mapped[float]
    raised_at: Mapped[float]
    ended_at: Mapped[float | None]


class Checkpoint(Base):
    """The weights at a version. Tracks follow rows that are LIVE, never max(version)."""

    __tablename__ = "checkpoints"
    __table_args__ = (Index("checkpoints_by_version", "run_id", "state", "version"),)

    checkpoint_id: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"))
    version: Mapped[int]
    parent_id: Mapped[str | None]
    path: Mapped[str] = mapped_column(Text)
    snapshot_path: Mapped[str | None] = mapped_column(Text)  # a trainer can resume from here
    state: Mapped[CheckpointState]
    created_at: Mapped[float]
    # core/trained_hash.py; null: no body was trained before it, or a row of before this column
    trained_hash: Mapped[str | None] = mapped_column(String(64))
