"""Evaluations and their episodes."""

from typing import Any

from sqlalchemy import ForeignKey, Text
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import Mapped, mapped_column

from agentrl.core.types import Status
from agentrl.db.models.base import Base


class Evaluation(Base):
    """One policy × task × split measured, under settings that decide what an episode is.

    It grows by items and repeats; the figures are of all its `evaluation_episodes`. `low`, `high`:
    95 % interval of the success rate. `run_id`, `version`: null of what is no checkpoint of a run.
    `planned`: episodes asked for, without those that the infrastructure failed; 1 or more.
    """

    __tablename__ = "evaluations"

    evaluation_id: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str | None] = mapped_column(index=True)
    checkpoint_id: Mapped[str]
    version: Mapped[int | None]
    policy: Mapped[str] = mapped_column(default="", server_default="")  # as people name it
    task: Mapped[str]
    split: Mapped[str]
    temperature: Mapped[float]
    items: Mapped[int]
    repeats: Mapped[int] = mapped_column(default=1, server_default="1")
    planned: Mapped[int] = mapped_column(default=0, server_default="0")
    episodes: Mapped[int]
    success: Mapped[float]
    low: Mapped[float]
    high: Mapped[float]
    cost: Mapped[float | None]  # in the currency of its prices; null without prices
    machine_s: Mapped[float] = mapped_column(default=0.0, server_default="0")  # of wall clock
    settings: Mapped[str] = mapped_column(Text, default="", server_default="")  # JSON, sorted
    metrics: Mapped[dict[str, Any]]
    created_at: Mapped[float]
    updated_at: Mapped[float | None]

    @hybrid_property
    def is_complete(self) -> bool:
        """Whether all have ended. Those that win end first: before, success is too high."""
        return (self.episodes > 0) & (self.episodes >= self.planned)


class EvaluationEpisode(Base):
    """One episode of an evaluation that ended by its agent. Its key makes it the only one.

    `machine_s`: its share of the wall clock, which sums up over all that ran at once.
    """

    __tablename__ = "evaluation_episodes"

    evaluation_id: Mapped[str] = mapped_column(
        ForeignKey("evaluations.evaluation_id"), primary_key=True
    )
    item_id: Mapped[str] = mapped_column(primary_key=True)
    repeat: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[Status]
    reward: Mapped[float]
    score: Mapped[float]
    turns: Mapped[int]
    tokens: Mapped[int]  # of the whole trajectory
    prompt_tokens: Mapped[int]  # that were read, over all its steps
    sampled_tokens: Mapped[int]
    cost: Mapped[float | None]
    seconds: Mapped[float]  # from its first request to its end
    machine_s: Mapped[float]
    ended_at: Mapped[float]
