"""Success and reward by version, with bounded work for runs of any length.

updates  ── so many versions, evenly apart ──▶ spans of time, each ending with an update
groups   ── the last so many that closed before that end ──▶ their finished episodes, by task
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Subquery, case, func, select
from sqlalchemy.orm import Session

from agentrl.core.statistics import ClusterSums
from agentrl.core.types import EpisodeState, GroupState, UpdateState
from agentrl.db.models.episodes import Episode, Group
from agentrl.db.models.runs import Run
from agentrl.db.models.updates import Update
from agentrl.db.queries.progress import IS_SUCCESS, updates_began

FOREVER = 1e12  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class Span:
    """The time until `high`, when the update to `version` was committed.

    `tokens`: trained up to this update. `at_s`: seconds since the start of the run.
    """

    version: int
    high: float
    tokens: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Point:
    """The last finished episodes of a task in a span.

    `solves`, `rewards`: sums over items, whose episodes are alike. `variance`: of the reward.
    `turns`, `loss_tokens`: means.
    """

    span: Span
    task: str
    solves: ClusterSums
    rewards: ClusterSums
    variance: float
    turns: float
    loss_tokens: float

    @property
    def episodes(self) -> int:
        return self.solves.outcomes

    @property
    def solved(self) -> int:
        return int(self.solves.total)

    @property
    def reward(self) -> float:
        return self.rewards.mean


def spans(session: Session, run_id: str, points: int) -> list[Span]:
    """Return at most that many spans, each until an update of the live lineage.

    Groups closed after the newest update belong to no span yet.
    """
    run = session.get_one(Run, run_id, populate_existing=True)
    versions = {max(1, round(run.version * place / points)) for place in range(1, points + 1)}
    trained = case((Update.state == UpdateState.COMMITTED, Update.loss_tokens), else_=0)
    live = (
        select(
            Update.version,
            Update.committed_at,
            func.sum(trained).over(order_by=Update.version).label("tokens"),
        )
        .where(Update.run_id == run_id, Update.is_live)
        .subquery()
    )
    query = select(live).where(live.c.version.in_(versions)).order_by(live.c.version)
    return [
        Span(version, at, int(tokens), at - run.created_at)
        for version, at, tokens in session.execute(query)
    ]


def success_by_version(session: Session, run_id: str, points: int, groups: int) -> list[Point]:
    """Return points of at most that many versions, each of the last `groups` groups of all tasks.

    Versions that are closer than that share groups.
    """
    success = []
    for span in spans(session, run_id, points):
        success += _points(session, span, _latest_closed(run_id, span, groups))
    return success


def metrics_by_version(session: Session, run_id: str) -> dict[int, Mapping[str, Any]]:
    """Return the metrics of each update of the live lineage."""
    query = select(Update.version, Update.metrics).where(Update.run_id == run_id, Update.is_live)
    return {version: metrics for version, metrics in session.execute(query)}


def recent_points(session: Session, run_id: str) -> list[Point]:
    """Return a point by task for the episodes of `progress.recent_success`."""
    since = updates_began(session, run_id)
    closed = select(Group.group_id).where(
        Group.run_id == run_id, Group.closed_at >= since, Group.state != GroupState.CANCELLED
    )
    return _points(session, Span(0, FOREVER, 0, 0.0), closed.subquery())


def closed_groups_by_version(
    session: Session, run_id: str, points: int, groups: int
) -> list[tuple[Span, str, dict[GroupState, int]]]:
    """Return (span, task, counts of groups by state) of the same groups."""
    closed: list[tuple[Span, str, dict[GroupState, int]]] = []
    for span in spans(session, run_id, points):
        last = _latest_closed(run_id, span, groups)
        query = select(last.c.task, last.c.state, func.count()).group_by(last.c.task, last.c.state)
        counts: dict[str, dict[GroupState, int]] = {}
        for task, state, number in session.execute(query.order_by(last.c.task)):
            counts.setdefault(task, {})[GroupState(state)] = number
        closed += [(span, task, states) for task, states in counts.items()]
    return closed


def _latest_closed(run_id: str, span: Span, groups: int) -> Subquery:
    """Return the groups of all tasks that closed last in a span."""
    return (
        select(Group.group_id, Group.task, Group.state)
        .where(Group.run_id == run_id, Group.closed_at <= span.high)
        .order_by(Group.closed_at.desc())
        .limit(groups)
        .subquery()
    )


def _points(session: Session, span: Span, closed: Subquery) -> list[Point]:
    """By task, sorted."""
    items = (
        select(
            Episode.task,
            func.count().label("number"),
            func.sum(IS_SUCCESS).label("solved"),
            func.sum(Episode.reward).label("reward"),
            func.sum(Episode.reward * Episode.reward).label("square"),
            func.sum(Episode.turns).label("turns"),
            func.sum(Episode.loss_tokens).label("loss_tokens"),
        )
        .join(closed, closed.c.group_id == Episode.group_id)
        .where(Episode.state == EpisodeState.FINISHED)
        .group_by(Episode.task, Episode.item_id)
        .subquery()
    )
    own = items.c
    sums = [func.sum(each) for each in (own.square, own.turns, own.loss_tokens)]
    solves, rewards = (_cluster_sums(own.number, each) for each in (own.solved, own.reward))
    query = select(own.task, *solves, *rewards, *sums).group_by(own.task).order_by(own.task)
    return [
        _point(span, task, [float(figure or 0.0) for figure in figures])
        for task, *figures in session.execute(query)
    ]


def _cluster_sums(number: ColumnElement[int], total: ColumnElement[Any]) -> list[Any]:
    """The columns of ClusterSums over items with `number` episodes that add up to `total`."""
    summed = (number, total, total * total, number * total, number * number)
    return [func.count(), *(func.sum(each) for each in summed)]


def _point(span: Span, task: str, figures: Sequence[float]) -> Point:
    """Build a point from the columns of `_points` after the task."""
    solves, rewards = _read_sums(figures[:6]), _read_sums(figures[6:12])
    square, turns, loss_tokens = (figure / solves.outcomes for figure in figures[12:])
    variance = max(0.0, square - rewards.mean**2)
    return Point(span, task, solves, rewards, variance, turns, loss_tokens)


def _read_sums(figures: Sequence[float]) -> ClusterSums:
    clusters, outcomes, total, squares, products, sizes = figures
    return ClusterSums(int(clusters), int(outcomes), total, squares, products, int(sizes))
