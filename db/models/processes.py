"""Policy servers, what they serve and spend, workers, and the services that a process waits for."""

from sqlalchemy import ForeignKey, Index, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from agentrl.db.models.base import Base, Big


class PolicyServer(Base):
    """A policy server process. It is live while now < lease_until.

    `problem`: why it serves less than it should, in words; null or empty where it does not.
    `exchanging`: the track that it does not serve while it exchanges weights in place; null else.
    """

    __tablename__ = "policy_servers"

    server_id: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), index=True)
    name: Mapped[str]
    engine: Mapped[str]
    url: Mapped[str]
    lease_until: Mapped[float]
    started_at: Mapped[float]
    ended_at: Mapped[float | None]
    problem: Mapped[str | None] = mapped_column(Text)
    exchanging: Mapped[str | None] = mapped_column(Text)


class Serving(Base):
    """A checkpoint served by a server for a track, from when until when (null: still)."""

    __tablename__ = "servings"
    __table_args__ = (
        Index("servings_by_checkpoint", "checkpoint_id"),
        # a few rows, however many a server has served
        Index(
            "servings_open",
            "server_id",
            sqlite_where=text("live_until IS NULL"),
            postgresql_where=text("live_until IS NULL"),
        ),
    )

    serving_id: Mapped[int] = mapped_column(Big, primary_key=True, autoincrement=True)
    server_id: Mapped[str] = mapped_column(ForeignKey("policy_servers.server_id"), index=True)
    run_id: Mapped[str] = mapped_column(index=True)
    track: Mapped[str]
    checkpoint_id: Mapped[str] = mapped_column(ForeignKey("checkpoints.checkpoint_id"))
    version: Mapped[int]
    live_from: Mapped[float]
    live_until: Mapped[float | None]


class Spending(Base):
    """What a run has asked of an external model: tries, and tokens by the model's own count."""

    __tablename__ = "spendings"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)  # of the policy server
    requests: Mapped[int] = mapped_column(Big, default=0)
    tokens: Mapped[int] = mapped_column(Big, default=0)


class Worker(Base):
    """A process that drives episodes; it holds the leases of all its running rows."""

    __tablename__ = "workers"

    worker_id: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), index=True)
    host: Mapped[str]
    pid: Mapped[int]
    lease_until: Mapped[float]
    started_at: Mapped[float]
    ended_at: Mapped[float | None]


class ServiceOutage(Base):
    """A service that a process without a supervisor waits for.

    `until`: the row counts until then; the process extends it while it waits.
    """

    __tablename__ = "service_outages"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.run_id"), primary_key=True)
    process: Mapped[str] = mapped_column(primary_key=True)
    service: Mapped[str] = mapped_column(primary_key=True)
    since: Mapped[float]
    until: Mapped[float]
    error: Mapped[str] = mapped_column(Text)
