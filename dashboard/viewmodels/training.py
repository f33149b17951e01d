"""What the page *Training* shows: every figure of every update, smoothed, with alarms."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.dashboard.figure_labels import ALARM_FIGURES, KNOWN, OTHER, SECTIONS, Figure, figure_of
from agentrl.db.queries.update_figures import UpdateFigures, update_figures
from agentrl.db.store import Store
from agentrl.db.transitions.alarms import AlarmPeriod, alarm_history

UPDATES = 400  # points of a curve
ALARM_ROWS = 2_000
WHOLE = "whole update"  # the line of a figure that no task has

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Training:
    """The figures of a run. `values`: an entry an update, by figure or `task/figure`."""

    versions: Sequence[int]
    values: Sequence[Mapping[str, float]]
    alarms: Sequence[AlarmPeriod]

    @property
    def names(self) -> list[str]:
        """Return the names of all figures, without the task."""
        return sorted({key.rpartition("/")[2] for each in self.values for key in each})


def read_training(store: Store, run_id: str) -> Training:
    """Read the figures of a run."""
    with store.read() as session:
        updates = update_figures(session, run_id, UPDATES)
        return Training(
            versions=[each.version for each in updates],
            values=[values_of(each) for each in updates],
            alarms=alarm_history(session, run_id, ALARM_ROWS),
        )


def values_of(update: UpdateFigures) -> dict[str, float]:
    """Return the metrics of an update, and its figures of speed."""
    per_s = 1.0 / max(update.since_s, 1e-9)
    found = {name: float(v) for name, v in update.metrics.items() if isinstance(v, int | float)}
    found.pop("seconds", None)  # of the optimizer alone, of one engine; `update_s` is of each
    return found | {
        "trained_tokens": float(update.trained_tokens),
        "trained_episodes": float(update.episodes),
        "trained_groups": float(update.groups),
        "trained_tokens_per_s": update.trained_tokens * per_s,
        "trained_episodes_per_s": update.episodes * per_s,
        "since_s": update.since_s,
        "update_s": update.seconds,
    }


def sections(training: Training) -> dict[str, list[Figure]]:
    """Return the figures that the run has, by section; those without a label are in OTHER."""
    names = training.names
    found = {
        section: [figure for figure in figures if figure.name in names]
        for section, figures in SECTIONS.items()
    }
    found[OTHER] = [figure_of(name) for name in names if name not in KNOWN]
    return {section: figures for section, figures in found.items() if figures}


def curve(training: Training, name: str, smoothing: float) -> list[Row]:
    """Return a row per line and update: `version`, `task`, `value`, `smooth`.

    A line a task where tasks have the figure; else one line, WHOLE.
    """
    tasks = sorted(
        {key.rpartition("/")[0] for each in training.values for key in each if _is(key, name)}
    )
    rows: list[Row] = []
    for task in [each for each in tasks if each] or [""]:
        key = f"{task}/{name}" if task else name
        points = [
            (version, values[key])
            for version, values in zip(training.versions, training.values, strict=True)
            if key in values
        ]
        smooth = smooth_values([value for _, value in points], smoothing)
        rows += [
            {"version": version, "task": task or WHOLE, "value": value, "smooth": mean}
            for (version, value), mean in zip(points, smooth, strict=True)
        ]
    return rows


def _is(key: str, name: str) -> bool:
    return key.rpartition("/")[2] == name


def smooth_values(values: Iterable[float], weight: float) -> list[float]:
    """Return the exponential moving averages of values, without a bias to the first.

    `weight`: 0 (none) to below 1, of the past. The mean at t is Σ wⁱ x(t-i) / Σ wⁱ, rounded to 12
    digits: the axis of a constant would show rounding errors.
    """
    found, total, weights = [], 0.0, 0.0
    for value in values:
        total, weights = total * weight + value, weights * weight + 1.0
        found.append(float(f"{total / weights:.12g}"))
    return found


def markers(alarms: Sequence[AlarmPeriod], name: str) -> list[Row]:
    """Return where alarms about a figure were raised, for its chart."""
    return [
        {
            "version": each.version,
            "alarm": alarm_text(each),
            "value": each.value,
            "threshold": each.threshold,
        }
        for each in alarms
        if ALARM_FIGURES.get(each.name, each.name) == name
    ]


def alarm_text(alarm: AlarmPeriod) -> str:
    """Return a text such as `entropy_fall of dbbench`."""
    return f"{alarm.name} of {alarm.task}" if alarm.task else alarm.name


def alarm_rows(alarms: Sequence[AlarmPeriod]) -> list[Row]:
    """Return the rows of the history of alarms, newest first."""
    return [
        {
            "alarm": each.name,
            "task": each.task or "all",
            "figure": figure_of(ALARM_FIGURES.get(each.name, each.name)).title,
            "value": each.value,
            "threshold": each.threshold,
            "raised at version": each.version,
            "ended at version": each.ended_version,
            "minutes": None if each.seconds is None else round(each.seconds / 60, 1),
        }
        for each in reversed(alarms)
    ]


def figure_rows(training: Training) -> list[Row]:
    """Return a row per update, newest first, with every figure; those of tasks come last."""
    return [
        {"version": version} | dict(sorted(values.items(), key=lambda each: ("/" in each[0], each)))
        for version, values in zip(training.versions, training.values, strict=True)
    ][::-1]
