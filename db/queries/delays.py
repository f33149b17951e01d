"""Delays between the dispatch of an episode and its training, and the queue lengths."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from agentrl.core.types import GROUP_OPEN, EpisodeState, GroupState
from agentrl.db.models.episodes import Episode, Group
from agentrl.db.models.runs import Run
from agentrl.db.models.updates import Update, UpdateGroup
from agentrl.db.query_parts import count_by
from agentrl.db.store import read_clock


@dataclass(frozen=True, slots=True)
class Delay:
    """Mean seconds of an update's members. `queued_s`: until a worker began the attempt that
    finished; `playing_s`: that attempt; `siblings_s`: until the rest of its group had ended;
    `ready_s`: until the trainer took the group; `update_s`: from then to the commit.
    """

    version: int
    queued_s: float
    playing_s: float
    siblings_s: float
    ready_s: float
    update_s: float


def delays(session: Session, run_id: str, updates: int) -> list[Delay]:
    """Return the delays of the last updates of the live lineage, oldest first.

    Copies count in none: their times are those of the original.
    """
    late = (
        select(Update.update_id, Update.version, Update.started_at, Update.committed_at)
        .where(Update.run_id == run_id, Update.is_live)
        .order_by(Update.version.desc())
        .limit(updates)
        .subquery()
    )
    query = (
        select(
            late.c.version,
            func.avg(Episode.started_at - Episode.queued_at),
            func.avg(Episode.ended_at - Episode.started_at),
            func.avg(Group.ready_at - Episode.ended_at),
            func.avg(late.c.started_at - Group.ready_at),
            func.avg(late.c.committed_at - late.c.started_at),
        )
        .join(UpdateGroup, UpdateGroup.update_id == late.c.update_id)
        .join(Episode, Episode.episode_id == UpdateGroup.episode_id)
        .join(Group, Group.group_id == UpdateGroup.group_id)
        .where(Group.origin_id.is_(None))
        .group_by(late.c.version)
        .order_by(late.c.version)
    )
    return [
        Delay(row[0], *(max(0.0, float(mean or 0.0)) for mean in row[1:]))
        for row in session.execute(query)
    ]


@dataclass(frozen=True, slots=True)
class Waiting:
    """Open work: open and ready groups, and the states of their episodes."""

    groups: Mapping[GroupState, int]
    episodes: Mapping[EpisodeState, int]


def waiting_counts(session: Session, run_id: str) -> Waiting:
    """Count work that is not trained yet; bounded by admission."""
    under_way = (Group.run_id == run_id, Group.state.in_(GROUP_OPEN))
    groups = count_by(session, Group.state, *under_way)
    members = (
        select(Episode.state, func.count())
        .join(Group, Group.group_id == Episode.group_id)
        .where(*under_way)
        .group_by(Episode.state)
    )
    return Waiting(
        {GroupState(state): number for state, number in groups.items()},
        {EpisodeState(state): number for state, number in session.execute(members)},
    )


@dataclass(frozen=True, slots=True)
class Pace:
    """Episodes finished and updates committed in a period of time."""

    seconds: float
    episodes: int
    loss_tokens: int
    updates: int


def recent_pace(session: Session, run_id: str, window_s: float) -> Pace:
    """Return the pace of the last seconds, or of those before the run ended."""
    run = session.get_one(Run, run_id, populate_existing=True)
    end = run.ended_at or read_clock(session)
    since = max(run.created_at, end - window_s)
    played = select(func.count(), func.coalesce(func.sum(Episode.loss_tokens), 0)).where(
        Episode.run_id == run_id, Episode.state == EpisodeState.FINISHED, Episode.ended_at >= since
    )
    episodes, tokens = session.execute(played).one()
    newest = (
        select(Update.committed_at)
        .where(
            Update.run_id == run_id,
            Update.version > run.version - 1000,  # by the index; so many are enough for a pace
            Update.is_live,
        )
        .subquery()
    )
    updates = session.scalar(select(func.count()).where(newest.c.committed_at >= since))
    return Pace(end - since, episodes, int(tokens or 0), updates or 0)


def update_s(session: Session, run_id: str, updates: int) -> float | None:
    """Return the median seconds between the last commits; None before the second commit.

    The median ignores a pause of the run.
    """
    late = (
        select(Update.committed_at)
        .where(Update.run_id == run_id, Update.is_live)
        .order_by(Update.version.desc())
        .limit(updates + 1)
    )
    between = [later - at for later, at in pairwise(session.scalars(late))]
    return median(between) if between else None
