"""What the page *Compare* shows: plain values, no Streamlit."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add

from agentrl.core.statistics import Estimate, estimate
from agentrl.dashboard.viewmodels.configuration import Values, values_of
from agentrl.dashboard.viewmodels.run import POINT_GROUPS, POINTS, Head, head_of
from agentrl.db.models.runs import Run
from agentrl.db.queries import comparison, curves, progress
from agentrl.db.queries.comparison import ItemScores, Kind
from agentrl.db.queries.curves import Point
from agentrl.db.queries.progress import LearnedTotals
from agentrl.db.store import Store


@dataclass(frozen=True, slots=True)
class Side:
    """One of the compared runs. `measured`: evaluations of its newest versions."""

    head: Head
    version: int
    seconds: float
    learned: LearnedTotals
    curve: list[Point]
    recent: list[Point]
    measured: Mapping[Kind, ItemScores]
    config: Values


@dataclass(frozen=True, slots=True)
class PairedScores:
    """Second run − first: mean over the items measured in both, with Student's 95 % interval.

    `versions`: of the first and of the second.
    """

    kind: Kind
    versions: tuple[int, int]
    first: float
    second: float
    difference: Estimate


def read_side(store: Store, run_id: str) -> Side:
    """Read an existing run."""
    with store.read() as session:
        run = session.get_one(Run, run_id)
        return Side(
            head=head_of(session, run),
            version=run.version,
            seconds=progress.ran_s(session, run),
            learned=progress.learned_totals(session, run_id),
            curve=curves.success_by_version(session, run_id, POINTS, POINT_GROUPS),
            recent=curves.recent_points(session, run_id),
            measured=comparison.latest_item_scores(session, run_id),
            config=values_of(run.config, run.name),
        )


def pair_scores(first: Side, second: Side) -> list[PairedScores]:
    """Compare evaluations of the same kind in both runs, by the items that both have."""
    found = []
    for kind in sorted(first.measured.keys() & second.measured.keys()):
        one, other = first.measured[kind], second.measured[kind]
        items = sorted(one.items.keys() & other.items.keys())
        if not items:
            continue
        means = [sum(side.items[item] for item in items) / len(items) for side in (one, other)]
        differences = [other.items[item] - one.items[item] for item in items]
        versions = one.version, other.version
        found.append(PairedScores(kind, versions, means[0], means[1], estimate(differences)))
    return found


def pool_points(points: list[Point], task: str | None) -> list[Point]:
    """Return the points of one task; for None all tasks combined, by span."""
    if task is not None:
        return [point for point in points if point.task == task]
    by_span: dict[int, list[Point]] = {}
    for point in points:
        by_span.setdefault(point.span.version, []).append(point)
    return [_together(each) for each in by_span.values()]


def _together(points: list[Point]) -> Point:
    """Combine the points of one span: add sums, average means weighted by episodes."""
    number = sum(point.episodes for point in points)

    def mean(name: str) -> float:
        return float(sum(getattr(point, name) * point.episodes for point in points) / number)

    rewards = reduce(add, (point.rewards for point in points))
    square = sum((p.variance + p.reward**2) * p.episodes for p in points) / number
    return Point(
        span=points[0].span,
        task="all",
        solves=reduce(add, (point.solves for point in points)),
        rewards=rewards,
        variance=square - rewards.mean**2,
        turns=mean("turns"),
        loss_tokens=mean("loss_tokens"),
    )
