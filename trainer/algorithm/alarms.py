"""Alarms: thresholds for the metrics of an update. Pure functions; docs/alarms.md has the formulas.

metrics, those of earlier updates ─▶ readings ─▶ edges: what is raised now and was not, what ended
"""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from agentrl.core.config.sections.training import Alarms
from agentrl.core.types import GroupState
from agentrl.db.transitions.alarms import AlarmReading, Counts, RaisedAlarm
from agentrl.trainer.algorithm.metrics import REWARD_STD

Metrics = Mapping[str, float]
Key = tuple[str, str]

COMPARED = 10  # updates whose mean is the one to fall from
FEWEST_COMPARED = 3  # of them, to tell a fall from noise


class EarlierMetrics(NamedTuple):
    """Metrics of the run's `first` updates, oldest first, and of its `last` ones, newest first."""

    first: Sequence[Metrics] = ()
    last: Sequence[Metrics] = ()


class Rule(NamedTuple):
    """An alarm of a task: its metric, the key of its threshold, and the direction."""

    name: str
    metric: str
    threshold: str
    above: bool = True


RULES = (
    Rule("effective_sample_size", "effective_sample_size", "min_effective_sample_size", False),
    Rule("mismatch_kl", "mismatch_k3", "max_mismatch_kl"),
    Rule("max_ratio", "max_ratio", "max_ratio"),
    Rule("clip_fraction", "clip_fraction", "max_clip_fraction"),
    Rule("entropy", "entropy", "min_entropy", above=False),
)
SHARES = (
    Rule("zero_spread_share", "zero_spread_share", "max_zero_spread_share"),
    Rule("stale_share", "stale_share", "max_stale_share"),
)


def group_metrics(counts: Counts, update: Metrics = MappingProxyType({})) -> dict[str, float]:
    """Return `task/groups`, and the shares of groups without spread and of stale groups.

    Groups with failed members are counted separately, as `task/failed_groups`. `update`: metrics of
    the update that takes the ready groups. Its `task/reward_std`, their mean, is averaged with the
    zeros of the filtered groups.
    """
    values: dict[str, float] = {}
    for task, by_state in counts.items():
        filtered = by_state.get(GroupState.FILTERED, 0)
        stale = by_state.get(GroupState.STALE, 0)
        ready = by_state.get(GroupState.READY, 0)
        groups = filtered + stale + ready
        values[f"{task}/groups"] = float(groups)
        values[f"{task}/failed_groups"] = float(by_state.get(GroupState.FAILED, 0))
        if groups:
            values[f"{task}/zero_spread_share"] = filtered / groups
            values[f"{task}/stale_share"] = stale / groups
        name = f"{task}/{REWARD_STD}"
        if name in update or (filtered and not ready):
            values[name] = update.get(name, 0.0) * ready / max(1, filtered + ready)
    return values


def update_readings(
    metrics: Metrics, earlier: EarlierMetrics, config: Alarms, max_grad_norm: float, *, skipped: str
) -> list[AlarmReading]:
    """Return the readings of an update. A missing metric has no reading.

    `max_grad_norm`: norm to which gradients are clipped.
    """
    readings = [_reading("", "skipped", float(bool(skipped)), 0.0, above=True)]
    if "snapshot_failed" in metrics:
        readings.append(
            _reading("", "snapshot_failed", metrics["snapshot_failed"], 0.0, above=True)
        )
    if "grad_norm" in metrics:
        bound = config.max_grad_norm * max_grad_norm
        readings.append(_reading("", "grad_norm", metrics["grad_norm"], bound, above=True))
    for task in _tasks(metrics):
        readings += _task_readings(task, metrics, RULES, config)
        readings += _fall_readings(task, metrics, earlier, config)
    return _without_disabled(readings, config) + share_readings(metrics, config)


def share_readings(metrics: Metrics, config: Alarms) -> list[AlarmReading]:
    """Return the readings of `group_metrics` for tasks with enough groups."""
    readings: list[AlarmReading] = []
    for task in _tasks(metrics):
        if metrics.get(f"{task}/groups", 0.0) >= config.min_groups:
            readings += _task_readings(task, metrics, SHARES, config)
    return _without_disabled(readings, config)


def ending_readings(
    metrics: Metrics, earlier: EarlierMetrics, config: Alarms, standing: Collection[RaisedAlarm]
) -> list[AlarmReading]:
    """Return readings that end alarms for which no metric comes any more.

    They are switched off, or are of a task without a group in this update and `COMPARED` earlier
    ones, such as one that was removed. Their values are those that raised them.
    """
    seen = {task for each in (metrics, *earlier.last) for task in _tasks(each)}
    are_enough = len(earlier.last) >= COMPARED
    return [
        AlarmReading(each.task, each.name, each.value, each.threshold, raised=False)
        for each in standing
        if each.name in config.off or (are_enough and each.task and each.task not in seen)
    ]


def relative_fall(name: str, metrics: Metrics, compared: Sequence[Metrics]) -> float | None:
    """Return 1 - x / mean(x of the first `COMPARED` of `compared` that have the metric `name`).

    None if fewer than `FEWEST_COMPARED` have it, or if that mean is not positive.
    """
    before = [each[name] for each in compared if name in each][:COMPARED]
    if name not in metrics or len(before) < FEWEST_COMPARED or sum(before) <= 0.0:
        return None
    return 1.0 - metrics[name] * len(before) / sum(before)


def alarm_changes(
    readings: Sequence[AlarmReading], standing: Collection[RaisedAlarm]
) -> list[tuple[AlarmReading, RaisedAlarm | None]]:
    """Return readings that raise or end an alarm, each with the alarm that it ends."""
    before: dict[Key, RaisedAlarm] = {(each.task, each.name): each for each in standing}
    changes: list[tuple[AlarmReading, RaisedAlarm | None]] = []
    for reading in readings:
        stands = before.get((reading.task, reading.name))
        if reading.raised != (stands is not None):
            changes.append((reading, stands))
    return changes


def _tasks(metrics: Metrics) -> list[str]:
    return sorted({task for task, slash, _ in (key.rpartition("/") for key in metrics) if slash})


def _task_readings(
    task: str, metrics: Metrics, rules: Sequence[Rule], config: Alarms
) -> list[AlarmReading]:
    return [
        _reading(
            task,
            rule.name,
            metrics[f"{task}/{rule.metric}"],
            getattr(config, rule.threshold),
            above=rule.above,
        )
        for rule in rules
        if f"{task}/{rule.metric}" in metrics
    ]


def _fall_readings(
    task: str, metrics: Metrics, earlier: EarlierMetrics, config: Alarms
) -> list[AlarmReading]:
    """Return how far entropy fell of late, and the spread of rewards since the run began."""
    entropy = relative_fall(f"{task}/entropy", metrics, earlier.last)
    fresh = 1.0 - metrics.get(f"{task}/stale_share", 0.0)
    enough = round(fresh * metrics.get(f"{task}/groups", 0.0)) >= config.min_groups
    spread = relative_fall(f"{task}/{REWARD_STD}", metrics, earlier.first) if enough else None
    falls = (
        ("entropy_fall", entropy, config.max_entropy_fall),
        ("reward_std_fall", spread, config.max_reward_std_fall),
    )
    return [
        _reading(task, name, fall, threshold, above=True)
        for name, fall, threshold in falls
        if fall is not None
    ]


def _reading(task: str, name: str, value: float, threshold: float, *, above: bool) -> AlarmReading:
    crossed = value > threshold if above else value < threshold
    return AlarmReading(task, name, value, threshold, crossed)


def _without_disabled(readings: Sequence[AlarmReading], config: Alarms) -> list[AlarmReading]:
    """End raised alarms that were switched off."""
    return [
        AlarmReading(each.task, each.name, each.value, each.threshold, raised=False)
        if each.name in config.off
        else each
        for each in readings
    ]
