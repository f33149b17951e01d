"""Alarms: thresholds for the metrics of an update. Pure functions; docs/alarms.md has the formulas.

metrics, those of late ─▶ readings ─▶ edges: what is raised now and was not, what ended
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from agentrl.core.config.sections.training import Alarms
from agentrl.core.types import GroupState
from agentrl.db.transitions.alarms import AlarmReading, Counts, RaisedAlarm

Metrics = Mapping[str, float]
Key = tuple[str, str]

LATE = 10  # updates whose mean entropy is the one to fall from
FEWEST_LATE = 3  # of them, to tell a fall from noise


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


def group_metrics(counts: Counts) -> dict[str, float]:
    """Return `task/groups`, and the shares of groups without spread and of stale groups.

    Groups with failed members are counted separately, as `task/failed_groups`.
    """
    values: dict[str, float] = {}
    for task, by_state in counts.items():
        filtered = by_state.get(GroupState.FILTERED, 0)
        stale = by_state.get(GroupState.STALE, 0)
        groups = filtered + stale + by_state.get(GroupState.READY, 0)
        values[f"{task}/groups"] = float(groups)
        values[f"{task}/failed_groups"] = float(by_state.get(GroupState.FAILED, 0))
        if groups:
            values[f"{task}/zero_spread_share"] = filtered / groups
            values[f"{task}/stale_share"] = stale / groups
    return values


def update_readings(
    metrics: Metrics, late: Sequence[Metrics], config: Alarms, max_grad_norm: float, *, skipped: str
) -> list[AlarmReading]:
    """Return the readings of an update. `late`: metrics of earlier updates, newest first.

    `max_grad_norm`: norm to which gradients are clipped. A missing metric has no reading.
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
        fall = entropy_fall(task, metrics, late)
        if fall is not None:
            readings.append(
                _reading(task, "entropy_fall", fall, config.max_entropy_fall, above=True)
            )
    return _without_disabled(readings, config) + share_readings(metrics, config)


def share_readings(metrics: Metrics, config: Alarms) -> list[AlarmReading]:
    """Return the readings of `group_metrics` for tasks with enough groups."""
    readings: list[AlarmReading] = []
    for task in _tasks(metrics):
        if metrics.get(f"{task}/groups", 0.0) >= config.min_groups:
            readings += _task_readings(task, metrics, SHARES, config)
    return _without_disabled(readings, config)


def entropy_fall(task: str, metrics: Metrics, late: Sequence[Metrics]) -> float | None:
    """Return 1 - H / mean(H of the task's last `LATE` updates); None before `FEWEST_LATE`."""
    name = f"{task}/entropy"
    before = [each[name] for each in late if name in each][:LATE]
    if name not in metrics or len(before) < FEWEST_LATE or sum(before) <= 0.0:
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
