"""The filter and the order of a search for episodes, and the SQL that they mean."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Float, Select, SQLColumnExpression, cast, func, or_, select
from sqlalchemy.orm import InstrumentedAttribute

from agentrl.core.types import EpisodeState, Status
from agentrl.db.models.episodes import Episode, Group, Step
from agentrl.db.models.updates import Update, UpdateGroup

OPEN = frozenset({EpisodeState.QUEUED, EpisodeState.RUNNING})
LEAST = -1e300  # stands, in an order, for what an episode does not have


class Order(StrEnum):
    """The sort order, largest first. `SECONDS`: of the last attempt."""

    NEWEST = "newest"
    SCORE = "score"
    TURNS = "turns"
    TOKENS = "tokens"
    SECONDS = "seconds"


@dataclass(frozen=True, slots=True)
class EpisodeFilter:
    """The filter and the order; empty or None: any value.

    `reward_from`, `reward_to`: inclusive. `version`: at which its group was admitted. `checkpoint`:
    one that sampled a step. `learned_at`: version of the live update that trained on it. `words`:
    text in a call or an answer, ignoring case.
    """

    state: EpisodeState = EpisodeState.FINISHED
    task: str = ""
    status: Status | None = None
    item_id: str = ""
    reward_from: float | None = None
    reward_to: float | None = None
    version: int | None = None
    checkpoint: str = ""
    learned_at: int | None = None
    words: str = ""
    order: Order = Order.NEWEST


def narrow_queries(run_id: str, sought: EpisodeFilter) -> list[Select[Any]]:
    """Return queries for the episodes of the given update, item and checkpoint."""
    found: list[Select[Any]] = []
    if sought.learned_at is not None:
        found.append(
            select(UpdateGroup.episode_id)
            .join(Update, Update.update_id == UpdateGroup.update_id)
            .where(Update.run_id == run_id, Update.is_live, Update.version == sought.learned_at)
        )
    if sought.item_id:
        found.append(
            select(Episode.episode_id)
            .join(Group, Group.group_id == Episode.group_id)
            .where(Group.run_id == run_id, Group.item_id == sought.item_id)
        )
    if sought.checkpoint:
        found.append(
            select(Step.episode_id).where(Step.checkpoint_id == sought.checkpoint).distinct()
        )
    return found


def listed_at(episode: type[Episode], state: EpisodeState) -> InstrumentedAttribute[Any]:
    return episode.queued_at if state in OPEN else episode.ended_at


def sort_value(episode: type[Episode], sought: EpisodeFilter) -> SQLColumnExpression[Any]:
    """Return the sort value; LEAST for episodes without one."""
    if sought.order == Order.NEWEST:
        return listed_at(episode, sought.state)  # bare: the window comes in that order
    known: dict[Order, SQLColumnExpression[Any]] = {
        Order.SCORE: episode.score,
        Order.TURNS: episode.turns,
        Order.TOKENS: episode.tokens,
        Order.SECONDS: episode.ended_at - episode.started_at,
    }
    return func.coalesce(cast(known[sought.order], Float(53)), LEAST)


def conditions(episode: type[Episode], sought: EpisodeFilter) -> list[ColumnElement[bool]]:
    """Return all filter conditions."""
    found: list[ColumnElement[bool]] = []
    if sought.task:
        found.append(episode.task == sought.task)
    if sought.status is not None:
        found.append(episode.status == sought.status)
    if sought.reward_from is not None:
        found.append(episode.reward >= sought.reward_from)
    if sought.reward_to is not None:
        found.append(episode.reward <= sought.reward_to)
    if sought.version is not None:
        found.append(Group.admitted_version == sought.version)
    if sought.words:
        has_text = select(Step.number).where(
            Step.episode_id == episode.episode_id,
            Step.fence == episode.fence,
            or_(
                Step.call.icontains(sought.words, autoescape=True),
                Step.answer.icontains(sought.words, autoescape=True),
            ),
        )
        found.append(has_text.exists())
    return found
