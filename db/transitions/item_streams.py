"""The item streams: positions taken, positions to repeat, results of items and tasks."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from sqlalchemy import ColumnElement, Select, exists, func, select
from sqlalchemy.orm import Session, aliased

from agentrl.core.types import GROUP_UNTRAINED, EpisodeState, GroupState
from agentrl.db.models.episodes import Episode, Group
from agentrl.db.queries import progress
from agentrl.db.query_parts import columns_of, share_solved

CLOSED = GROUP_UNTRAINED | {GroupState.TRAINED}
SUCCESS = share_solved(Episode.score)


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """A position of a task's item stream, and the turn limit that its group had."""

    task: str
    position: int
    round: int
    item_id: str
    horizon: int | None = None


@dataclass(frozen=True, slots=True)
class LatestSuccess:
    """The result of an item's latest closed group, and its position in the stream."""

    position: int
    success: float


def taken_positions(session: Session, run_id: str, tasks: Collection[str]) -> dict[str, int]:
    """Return the next free position of each task's stream; 0 if none is taken."""
    last = {task: select(func.max(Group.position)).where(*_of(run_id, task)) for task in tasks}
    return {task: 0 if at is None else at + 1 for task, at in _each(session, last).items()}


def count_admitted_groups(
    session: Session, run_id: str, since: Mapping[str, int]
) -> dict[str, int]:
    """Count groups of each task from a position on, by task in `since`.

    A repeated position counts once; skipped items do not count.
    """
    counts = {
        task: select(func.count()).where(
            *_of(run_id, task), Group.position >= position, Group.round == 0
        )
        for task, position in since.items()
    }
    return _each(session, counts)


def count_rolled_back_groups(session: Session, run_id: str) -> int:
    """Count the rolled-back groups of the run."""
    query = select(func.count()).where(
        Group.run_id == run_id, Group.state == GroupState.ROLLED_BACK
    )
    return session.scalar(query) or 0


def positions_to_repeat(session: Session, run_id: str) -> list[StreamPlace]:
    """Return positions of rolled-back groups that no later round has taken."""
    later = aliased(Group)
    taken = exists().where(
        later.run_id == Group.run_id,
        later.task == Group.task,
        later.position == Group.position,
        later.round > Group.round,
    )
    query = (
        select(*columns_of(StreamPlace, Group))
        .where(Group.run_id == run_id, Group.state == GroupState.ROLLED_BACK, ~taken)
        .order_by(Group.task, Group.position)
    )
    return [StreamPlace(*row) for row in session.execute(query)]


def latest_success(
    session: Session, run_id: str, since: float = 0.0
) -> dict[tuple[str, str], LatestSuccess]:
    """Return the latest group by (task, item_id), of those closed at `since` or later.

    `since`: seconds on the database's clock.
    """
    query = (
        select(Group.task, Group.item_id, Group.position, SUCCESS)
        .join(Episode, Episode.group_id == Group.group_id)
        .where(
            Group.run_id == run_id,
            Group.closed_at >= since,
            Group.state.in_(CLOSED),
            Episode.state == EpisodeState.FINISHED,
        )
        .group_by(Group.group_id, Group.task, Group.item_id, Group.position)
        .order_by(Group.position)
    )
    rows = session.execute(query)
    return {
        (task, item_id): LatestSuccess(place, float(mean)) for task, item_id, place, mean in rows
    }


def success_of_tasks(
    session: Session, run_id: str, tasks: Collection[str], groups: int
) -> dict[str, float]:
    """Return the recent success of the tasks, in the order of their names.

    A task without recent groups, as when all its items are retired, counts by its last `groups`
    ones; one without any group is left out.
    """
    found = progress.recent_success(session, run_id)
    for task in set(tasks) - found.keys():
        if last := recent_success(session, run_id, task, groups):
            found[task] = fmean(last)
    return {task: found[task] for task in sorted(found.keys() & set(tasks))}


def recent_success(session: Session, run_id: str, task: str, groups: int) -> list[float]:
    """Return the success of a task's last ready or closed groups, newest first."""
    recent = (
        select(Group.group_id, Group.ready_at)
        .where(
            Group.run_id == run_id,
            Group.task == task,
            Group.ready_at.is_not(None),
            Group.state.in_([*CLOSED, GroupState.READY]),
        )
        .order_by(Group.ready_at.desc(), Group.group_id)
        .limit(groups)
        .subquery()
    )
    query = (
        select(recent.c.group_id, SUCCESS)
        .join(Episode, Episode.group_id == recent.c.group_id)
        .where(Episode.state == EpisodeState.FINISHED)
        .group_by(recent.c.group_id, recent.c.ready_at)
        .order_by(recent.c.ready_at.desc(), recent.c.group_id)
    )
    return [float(mean) for _, mean in session.execute(query)]


def _of(run_id: str, task: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return Group.run_id == run_id, Group.task == task


def _each(session: Session, questions: Mapping[str, Select[Any]]) -> dict[str, Any]:
    """Run several queries in one round trip."""
    if not questions:
        return {}
    row = session.execute(select(*(each.scalar_subquery() for each in questions.values()))).one()
    return dict(zip(questions, row, strict=True))
