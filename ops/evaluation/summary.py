"""The figures of an evaluation: success with its 95 % interval, pass@k, turns, tokens, cost."""

from collections import Counter
from collections.abc import Sequence

from agentrl.core import statistics
from agentrl.core.statistics import interval_over_clusters
from agentrl.core.types import SOLVED
from agentrl.ops.evaluation.evaluate import EpisodeScore, Plan, PlanResult


def summarise(plan: Plan, found: Sequence[EpisodeScore | None]) -> PlanResult:
    """What the episodes of one plan say; None: one that failed.

    Success, reward and score are means over items, so that items with more repeats do not count
    more.
    """
    ended = [played for played in found if played is not None]
    by_item: dict[str, list[bool]] = {}
    by_repeat: dict[int, list[bool]] = {}
    for played in ended:
        won = played.score >= SOLVED
        by_item.setdefault(played.item_id, []).append(won)
        by_repeat.setdefault(played.repeat, []).append(won)
    wins, count = list(by_item.values()), len(ended)
    low, high = interval_over_clusters(wins)
    costs = [played.cost for played in ended if played.cost is not None]
    return PlanResult(
        plan=plan,
        episodes=count,
        failed=len(found) - count,
        success=_mean([_mean(won) for won in wins]),
        low=low,
        high=high,
        reward=_mean_over_items([(played.item_id, played.reward) for played in ended]),
        score=_mean_over_items([(played.item_id, played.score) for played in ended]),
        turns=_mean([played.turns for played in ended]),
        tokens=_mean([played.tokens for played in ended]),
        pass_at={k: pass_at(k, wins) for k in (1, 2, 4, 8, 16, 32, 64) if k <= plan.repeats},
        statuses=dict(Counter(str(played.status) for played in ended)),
        by_repeat=[_mean(by_repeat[number]) for number in sorted(by_repeat)],
        cost=sum(costs) if costs else None,
        machine_s=sum(played.machine_s for played in ended),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(len(values), 1)


def _mean_over_items(values: Sequence[tuple[str, float]]) -> float:
    by_item: dict[str, list[float]] = {}
    for item, value in values:
        by_item.setdefault(item, []).append(value)
    return _mean([_mean(of_item) for of_item in by_item.values()])


def pass_at(k: int, wins: Sequence[Sequence[bool]]) -> float:
    """Mean over items of the unbiased pass@k, of those with k attempts or more."""
    enough = [item for item in wins if len(item) >= k]
    if not enough:
        return 0.0
    chances = [statistics.pass_at(k, sum(w), len(w)) for w in enough]
    return sum(chances) / len(chances)
