"""Outcomes of recent episodes and the policies that sampled them, for adaptive weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from sqlalchemy import Select, Subquery, func, select
from sqlalchemy.orm import Session

from agentrl.core.types import ABORT, SOLVED, EpisodeState, UpdateState
from agentrl.db.models.episodes import Episode, Group, Step
from agentrl.db.models.updates import Update
from agentrl.db.query_parts import same_attempt


@dataclass(frozen=True, slots=True)
class EpisodeOutcome:
    """A finished episode. `steps`: number of steps by track."""

    group_id: str
    solved: bool
    steps: Mapping[str, int]


def last_groups(run_id: str, task: str, groups: int) -> Subquery:
    """Return the groups of a task whose members ended last."""
    return (
        select(Group.group_id)
        .where(Group.run_id == run_id, Group.task == task, Group.ready_at.is_not(None))
        .order_by(Group.ready_at.desc())
        .limit(groups)
        .subquery()
    )


def recent_episodes(session: Session, run_id: str, task: str, groups: int) -> list[EpisodeOutcome]:
    """Return the finished episodes of a task's last groups in any state, group by group."""
    recent = last_groups(run_id, task, groups)
    query = (
        select(Episode.group_id, Episode.episode_id, Episode.score, Step.track, func.count())
        .join(recent, recent.c.group_id == Episode.group_id)
        .join(Step, same_attempt(Step, Episode))
        .where(Episode.state == EpisodeState.FINISHED, Step.finish_reason != ABORT)
        .group_by(Episode.group_id, Episode.episode_id, Episode.score, Step.track)
        .order_by(Episode.group_id, Episode.episode_id)
    )
    found = []
    for (group_id, _, score), rows in groupby(session.execute(query), key=lambda row: row[:3]):
        found.append(
            EpisodeOutcome(group_id, (score or 0.0) >= SOLVED, {row[3]: row[4] for row in rows})
        )
    return found


def recent_metrics(session: Session, run_id: str, updates: int) -> list[dict[str, Any]]:
    """Return the metrics of the last updates of the live lineage, newest first."""
    query = _live_metrics(run_id).order_by(Update.version.desc()).limit(updates)
    return list(session.scalars(query))


def first_metrics(session: Session, run_id: str, updates: int) -> list[dict[str, Any]]:
    """Return the metrics of the first updates of the live lineage, oldest first."""
    query = _live_metrics(run_id).order_by(Update.version).limit(updates)
    return list(session.scalars(query))


def _live_metrics(run_id: str) -> Select[tuple[dict[str, Any]]]:
    return select(Update.metrics).where(
        Update.run_id == run_id, Update.state == UpdateState.COMMITTED
    )
