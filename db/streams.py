"""Where the item streams stand: positions taken, places to repeat, how items and tasks went."""

from dataclasses import dataclass

from sqlalchemy import case, exists, func, select
from sqlalchemy.orm import Session, aliased

from core.types import SOLVED, EpisodeState, GroupState
from db.models import Episode, Group

CLOSED = (GroupState.TRAINED, GroupState.FILTERED, GroupState.STALE)
SUCCESS = func.avg(case((Episode.score >= SOLVED, 1.0), else_=0.0))


@dataclass(frozen=True, slots=True)
class Place:
    """A position of a task's stream, and the bound on turns that its group had."""

    task: str
    position: int
    round: int
    item_id: str
    horizon: int | None = None


@dataclass(frozen=True, slots=True)
class Latest:
    """How an item's latest closed group went, and where in the stream that was."""

    position: int
    success: float


def positions_taken(session: Session, run_id: str) -> dict[str, int]:
    """The next free position of each task's stream."""
    query = (
        select(Group.task, func.max(Group.position) + 1)
        .where(Group.run_id == run_id)
        .group_by(Group.task)
    )
    return {str(task): position for task, position in session.execute(query)}


def groups_admitted(session: Session, run_id: str) -> dict[str, int]:
    """Groups of each task, places that were repeated counted once; items passed over do not."""
    query = (
        select(Group.task, func.count())
        .where(Group.run_id == run_id, Group.round == 0)
        .group_by(Group.task)
    )
    return {str(task): number for task, number in session.execute(query)}


def positions_to_repeat(session: Session, run_id: str) -> list[Place]:
    """Places of rolled-back groups that no later round has taken."""
    later = aliased(Group)
    taken = exists().where(
        later.run_id == Group.run_id,
        later.task == Group.task,
        later.position == Group.position,
        later.round > Group.round,
    )
    query = (
        select(Group.task, Group.position, Group.round, Group.item_id, Group.horizon)
        .where(Group.run_id == run_id, Group.state == GroupState.ROLLED_BACK, ~taken)
        .order_by(Group.task, Group.position)
    )
    return [Place(*row) for row in session.execute(query)]


def latest_success(session: Session, run_id: str) -> dict[tuple[str, str], Latest]:
    """By (task, item_id): its latest closed group."""
    query = (
        select(Group.task, Group.item_id, Group.position, SUCCESS)
        .join(Episode, Episode.group_id == Group.group_id)
        .where(
            Group.run_id == run_id,
            Group.state.in_(CLOSED),
            Episode.state == EpisodeState.FINISHED,
        )
        .group_by(Group.group_id, Group.task, Group.item_id, Group.position)
        .order_by(Group.position)
    )
    rows = session.execute(query)
    return {(task, item_id): Latest(place, float(mean)) for task, item_id, place, mean in rows}


def recent_success(session: Session, run_id: str, task: str, groups: int) -> list[float]:
    """Success of each of a task's last groups that are ready or closed, newest first."""
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
