"""Estimates with their 95 % intervals, and when a run will end: pure functions of counts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agentrl.core import statistics
from agentrl.core.config.sections.run import Run
from agentrl.core.statistics import Estimate, clustered_interval, students_estimate
from agentrl.db.queries.curves import Point


def success(point: Point) -> Estimate:
    """Return the share of successful episodes, with the interval that evaluations use."""
    return Estimate(point.solves.mean, *clustered_interval(point.solves), point.solves.clusters)


def reward(point: Point) -> Estimate:
    """Return the mean reward, with Student's interval over items; episodes of an item are alike.

    It is at least as wide as for independent episodes.
    """
    items = point.rewards.clusters
    variance = max(point.rewards.variance(), point.variance / point.episodes)
    return students_estimate(point.reward, variance * items**2, items)


def pass_at(k: int, solved_among: Mapping[tuple[int, int], int]) -> Estimate | None:
    """Return pass@k over groups, with Student's interval; 0 to 1 of a single group.

    `solved_among`: number of groups with c of n solved, by (n, c). None without a group of n ≥ k.
    """
    chances = [
        (statistics.pass_at(k, c, n), groups) for (n, c), groups in solved_among.items() if n >= k
    ]
    number = sum(groups for _, groups in chances)
    if number == 0:
        return None
    mean = sum(chance * groups for chance, groups in chances) / number
    square = sum((chance - mean) ** 2 * groups for chance, groups in chances)
    found = students_estimate(mean, square, number)
    return replace(found, low=max(0.0, found.low), high=min(1.0, found.high))


@dataclass(frozen=True, slots=True)
class Rule:
    """A stop rule: its progress, 0 to 1, and the seconds left; None: unknown."""

    name: str
    reached: str
    share: float
    left_s: float | None


def stop_rules(
    config: Run, version: int, elapsed_s: float, update_s: float | None, worst: float | None
) -> list[Rule]:
    """Return the stop rules of a run. `update_s`: recent seconds between two updates.

    `worst`: lowest recent success of a configured task, 0 of one without. The time until it
    suffices is unknown.
    """
    found = []
    if config.stop_updates:
        left = config.stop_updates - version
        seconds = None if update_s is None else max(0, left) * update_s
        share = version / config.stop_updates
        found.append(Rule("updates", f"{version} of {config.stop_updates}", share, seconds))
    if config.stop_hours:
        whole = 3600 * config.stop_hours
        progress = f"{elapsed_s / 3600:.1f} of {config.stop_hours:g} h"
        found.append(Rule("hours", progress, elapsed_s / whole, max(0.0, whole - elapsed_s)))
    if config.stop_success and worst is not None:
        progress = f"{worst:.0%} of {config.stop_success:.0%}"
        found.append(Rule("success of every task", progress, worst / config.stop_success, None))
    return found


def left_s(rules: Sequence[Rule]) -> float | None:
    """Return the seconds until the first stop rule ends the run; None if unknown."""
    return min((rule.left_s for rule in rules if rule.left_s is not None), default=None)


def duration(seconds: float | None) -> str:
    """Return a text such as `3 h 20 min`, `12 min` or `40 s`; a dash if unknown."""
    if seconds is None:
        return "–"
    minutes = round(seconds / 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min" if seconds >= 60 else f"{seconds:.0f} s"
