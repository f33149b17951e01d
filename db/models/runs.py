"""Runs, the mixture of their tasks, and the transitions that were refused."""

from sqlalchemy import ForeignKey, Index, Text
from sqlalchemy.orm import Mapped, mapped_column

from agentrl.core.types import RunState, Transition
from agentrl.db.models.base import Base, Big
from agentrl.db.store import now


class Run(Base):
    """One training. `trainer_epoch` fences trainers.

    `dispatcher`, `trainer`, `recorder` name who holds each lease, `…_until` how long it lasts. A
    dispatcher that ended in order has no name, and `dispatcher_until` is when it ended.
    """

    __tablename__ = "runs"

    run_id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    config: Mapped[str] = mapped_column(Text)
    seed: Mapped[int] = mapped_column(Big)
    state: Mapped[RunState]
    reason: Mapped[str] = mapped_column(default="")
    version: Mapped[int] = mapped_column(default=0)  # newest version of the live lineage
    trainer_epoch: Mapped[int] = mapped_column(default=0)
    dispatcher: Mapped[str] = mapped_column(default="")
    dispatcher_until: Mapped[float] = mapped_column(default=0.0)
    trainer: Mapped[str] = mapped_column(default="", server_default="")  # the epoch that beats
    trainer_until: Mapped[float] = mapped_column(default=0.0, server_default="0")
    recorder: Mapped[str] = mapped_column(default="", server_default="")
    recorder_until: Mapped[float] = mapped_column(default=0.0, server_default="0")
    # every body that was published before is stored, or never will be; 0: its recorder is of an
    # older version, which does not say so
    recorded_until: Mapped[float] = mapped_column(default=now(), server_default="0")
    forked_from: Mapped[str | None]
    history_of: Mapped[str | None]  # the run on whose history `agentrl train --from` trains it
    created_at: Mapped[float]
    ended_at: Mapped[float | None]


class Mixture(Base):
    """The share of groups that a task gets from a decision of the dispatcher to the next.

    `progress`: change of recent success, null where it was not asked or could not be told yet.
    `admitted`, `owed`: its groups until then, and how many it was behind its share.
    """

    __tablename__ = "mixtures"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    task: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int]
    share: Mapped[float]
    progress: Mapped[float | None]
    admitted: Mapped[int]
    owed: Mapped[float]
    decided_at: Mapped[float]


class Refusal(Base):
    """A transition that changed nothing. `subject`: an episode, a group, or the run itself.

    `fence`: what it came with (a trainer: its epoch); `found`, `found_fence`: what stood instead.
    """

    __tablename__ = "refusals"
    __table_args__ = (Index("refusals_by_transition", "run_id", "transition"),)

    refusal_id: Mapped[int] = mapped_column(Big, primary_key=True, autoincrement=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"))
    transition: Mapped[Transition]
    subject: Mapped[str]
    fence: Mapped[int | None]
    found: Mapped[str]
    found_fence: Mapped[int | None]
    refused_at: Mapped[float]
