"""Recent groups and episodes of a task: solved counts, statuses, unsolved items."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from agentrl.core.types import SOLVED, EpisodeState
from agentrl.db.models.episodes import Episode, Group
from agentrl.db.queries.episode_outcomes import last_groups
from agentrl.db.queries.progress import IS_SUCCESS


@dataclass(frozen=True, slots=True)
class EndCount:
    """So many episodes that ended alike. `turns`: None of those that did not finish."""

    state: str
    status: str
    reason: str
    turns: int | None
    episodes: int


@dataclass(frozen=True, slots=True)
class UnsolvedItem:
    """An item that no finished episode solved. `best`: the highest score of any."""

    item_id: str
    groups: int
    episodes: int
    best: float


@dataclass(frozen=True, slots=True)
class ItemSummary:
    """How many items a task's last groups played, how many of them nobody solved, and which."""

    played: int
    unsolved: int
    listed: list[UnsolvedItem]


def group_ends(session: Session, run_id: str) -> list[tuple[str, str, str, int]]:
    """(task, state, reason, groups) of all groups of the run."""
    query = (
        select(Group.task, Group.state, func.coalesce(Group.reason, ""), func.count())
        .where(Group.run_id == run_id)
        .group_by(Group.task, Group.state, Group.reason)
        .order_by(Group.task, Group.state, Group.reason)
    )
    return [(task, str(state), str(reason), n) for task, state, reason, n in session.execute(query)]


def end_counts(session: Session, run_id: str, task: str, groups: int) -> list[EndCount]:
    """How the episodes of a task's last so many groups ended, and after how many turns."""
    last = last_groups(run_id, task, groups)
    kinds = (Episode.state, Episode.status, Episode.reason, Episode.turns)
    query = (
        select(*kinds, func.count())
        .join(last, last.c.group_id == Episode.group_id)
        .group_by(*kinds)
        .order_by(*kinds)
    )
    return [
        EndCount(str(state), str(status or ""), str(reason or ""), turns, number)
        for state, status, reason, turns, number in session.execute(query)
    ]


def solved_among(
    session: Session, run_id: str, task: str, groups: int
) -> Mapping[tuple[int, int], int]:
    """How many of a task's last so many groups had c of n finished episodes solved, by (n, c)."""
    last = last_groups(run_id, task, groups)
    members = (
        select(func.count().label("n"), func.sum(IS_SUCCESS).label("c"))
        .join(last, last.c.group_id == Episode.group_id)
        .where(Episode.state == EpisodeState.FINISHED)
        .group_by(Episode.group_id)
        .subquery()
    )
    query = select(members.c.n, members.c.c, func.count()).group_by(members.c.n, members.c.c)
    return {(n, int(c)): number for n, c, number in session.execute(query)}


def unsolved_items(
    session: Session, run_id: str, task: str, groups: int | None, limit: int
) -> ItemSummary:
    """Items of a task's last so many groups, all where None: those played most are listed."""
    finished = Episode.state == EpisodeState.FINISHED
    items = select(
        Episode.item_id.label("item_id"),
        func.count(Episode.group_id.distinct()).label("groups"),
        func.count().label("episodes"),
        func.max(Episode.score).label("best"),
    ).group_by(Episode.item_id)
    if groups is None:
        items = items.where(Episode.run_id == run_id, Episode.task == task, finished)
    else:
        last = last_groups(run_id, task, groups)
        items = items.join(last, last.c.group_id == Episode.group_id).where(finished)
    counted = items.subquery()
    unsolved = case((counted.c.best < SOLVED, 1), else_=0)
    totals = (func.count().over().label("played"), func.sum(unsolved).over().label("unsolved"))
    query = (
        select(counted, *totals)
        .order_by(unsolved.desc(), counted.c.episodes.desc(), counted.c.item_id)
        .limit(limit)
    )
    rows = session.execute(query).all()
    if not rows:
        return ItemSummary(0, 0, [])
    listed = [
        UnsolvedItem(r.item_id, r.groups, r.episodes, r.best) for r in rows if r.best < SOLVED
    ]
    return ItemSummary(rows[0].played, int(rows[0].unsolved), listed)
