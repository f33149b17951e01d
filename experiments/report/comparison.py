"""Compares the arms of a study over seeds: estimates, paired differences, curves. Pure functions.

Every report reads its figures from a Comparison, so that all studies mean the same by an interval.
"""

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Generic, Protocol, TypeVar

from agentrl.core.statistics import Estimate, estimate
from agentrl.experiments.report.markdown import difference

MEAN = "mean"  # of the tasks
NAMED = 3  # comparisons without a difference that the verdict names
START = "start"  # the policy that arms begin with, measured and not trained; also start-SETTING


class Seeded(Protocol):
    """The results of one arm with one seed."""

    @property
    def arm(self) -> str: ...

    @property
    def seed(self) -> int: ...


T = TypeVar("T", bound=Seeded)
Measure = Callable[[T, str], float | None]  # of a training and a task; None: not measured


@dataclass(frozen=True)
class Comparison(Generic[T]):
    """The trainings of a study, and what is measured of them.

    `measures`: by name, those of the verdict first. `base`: the arm that an arm is compared with,
    itself if with none.
    """

    trainings: Sequence[T]
    tasks: Sequence[str]
    measures: Mapping[str, Measure[T]]
    base: Callable[[str], str]
    arms: dict[str, dict[int, T]] = field(init=False)

    def __post_init__(self) -> None:
        arms: dict[str, dict[int, T]] = {}
        for each in self.trainings:
            arms.setdefault(each.arm, {})[each.seed] = each
        object.__setattr__(self, "arms", arms)

    def values(self, measure: str, arm: str, task: str = "") -> dict[int, float]:
        """Return a measure by seed, without seeds that lack it. Task MEAN: the mean of all."""
        seeds = self.arms.get(arm, {})
        found = {seed: self._value(measure, each, task) for seed, each in seeds.items()}
        return {seed: value for seed, value in found.items() if value is not None}

    def estimate(self, measure: str, arm: str, task: str = "") -> Estimate | None:
        """Estimate over seeds."""
        values = list(self.values(measure, arm, task).values())
        return estimate(values) if values else None

    def difference(self, measure: str, arm: str, task: str = "") -> Estimate | None:
        """Estimate arm − base, paired by seed. None for a base, or without common seeds."""
        return self._paired(measure, arm, task, lambda mine, theirs: mine - theirs)

    def ratio(self, measure: str, arm: str, task: str = "") -> Estimate | None:
        """Estimate arm / base, paired by seed. None for a base, or without common seeds."""
        return self._paired(measure, arm, task, lambda mine, theirs: mine / theirs)

    def differences(self, measures: Sequence[str], tasks: Sequence[str]) -> list["Compared"]:
        """Compare all trained arms with their bases."""
        found = []
        for task in tasks:
            for arm in (arm for arm in self.arms if not is_untrained(arm)):
                known_names = [name for name in measures if name in self.measures]
                pairs = {name: self.difference(name, arm, task) for name in known_names}
                known = {name: each for name, each in pairs.items() if each is not None}
                if known:
                    found.append(Compared(f"{task}, {arm}", self.base(arm), known))
        return found

    def seeds(self) -> str:
        """Return the number of trainings of each arm, in words."""
        counts = {arm: len(seeds) for arm, seeds in self.arms.items()}
        if len(set(counts.values())) == 1:
            return f"{next(iter(counts.values()))} of every arm"
        return "; ".join(f"{arm} {count}" for arm, count in counts.items())

    def as_csv(self) -> str:
        """Return every measured value, one row each: the figures that estimates are made of."""
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(["arm", "seed", "task", "measure", "value"])
        for each in self.trainings:
            for measure in self.measures:
                values = {task: self._value(measure, each, task) for task in ("", *self.tasks)}
                if values[""] is not None:  # of the whole training, the same for all tasks
                    values = {"": values[""]}
                for task, value in values.items():
                    if value is not None:
                        rows.writerow([each.arm, each.seed, task, measure, f"{value:.6g}"])
        return text.getvalue()

    def _value(self, measure: str, training: T, task: str) -> float | None:
        of = self.measures[measure]
        if task != MEAN:
            return of(training, task)
        known = [value for each in self.tasks if (value := of(training, each)) is not None]
        return fmean(known) if known else None

    def _paired(
        self, measure: str, arm: str, task: str, pair: Callable[[float, float], float]
    ) -> Estimate | None:
        if self.base(arm) == arm:
            return None
        mine, theirs = (self.values(measure, each, task) for each in (arm, self.base(arm)))
        common = sorted(mine.keys() & theirs.keys())
        return estimate([pair(mine[seed], theirs[seed]) for seed in common]) if common else None


@dataclass(frozen=True, slots=True)
class Compared:
    """Differences of one arm from its base, by measure."""

    title: str
    base: str
    differences: Mapping[str, Estimate]


def is_untrained(arm: str) -> bool:
    return arm.partition("-")[0] == START


def curve(
    trainings: Mapping[int, T], points: Callable[[T], Sequence[tuple[float, float]]]
) -> list[tuple[float, Estimate]]:
    """Estimate the n-th points (x, y) over seeds, as many as every seed has."""
    return [
        (fmean(x for x, _ in same), estimate([y for _, y in same]))
        for same in zip(*map(points, trainings.values()), strict=False)
    ]


def mean_or_task(by_task: Mapping[str, float], task: str) -> float:
    """Return the value of one task, or the mean of all for MEAN."""
    return fmean(by_task.values()) if task == MEAN else by_task[task]


def verdict(compared: Sequence[Compared]) -> Iterator[str]:
    """Write what the intervals show and no more."""
    yield "## What the intervals show\n"
    equal: dict[str, list[str]] = {}
    for each in compared:
        shown = [f"{name} {difference(of)}" for name, of in each.differences.items() if of.sign]
        if min(of.n for of in each.differences.values()) < 2:
            shown = ["one seed shows nothing"]
        if shown:
            yield f"- **{each.title}** against `{each.base}`: {'; '.join(shown)}."
        else:
            equal.setdefault(each.base, []).append(each.title)
    for base, titles in equal.items():
        names = f": {'; '.join(titles)}" if len(titles) <= NAMED else ""
        yield f"- No difference from `{base}` shown{names or f' in {len(titles)} comparisons'}."
    yield ""
    every = [of for each in compared for of in each.differences.values()]
    shown_count = sum(of.sign != 0 for of in every)
    yield (
        f"{shown_count} of {len(every)} intervals exclude zero; if all arms were equal, about one "
        f"in twenty ({len(every) / 20:.1f}) would do so by chance."
    )
    yield ""
