"""Computes the figures of the study from its files: pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentrl.core.statistics import interval
from agentrl.experiments.pretrained.findings import Measurement
from agentrl.ops.evaluation.paired_comparison import DRAWS

GREEDY = 0.0


@dataclass(frozen=True, slots=True)
class Rate:
    """The share of solved items, with Wilson's 95 % interval."""

    items: int
    success: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Change:
    """The mean of B − A, with its 95 % interval."""

    mean: float
    low: float
    high: float


Key = tuple[str, float]  # bench, temperature


def rates(measurement: Measurement) -> dict[Key, Rate]:
    found = {}
    for one in measurement.solved:
        wins, items = sum(one.by_item.values()), len(one.by_item)
        low, high = interval(wins, items)
        found[one.bench, one.temperature] = Rate(items, wins / max(items, 1), low, high)
    return found


def change(before: Measurement, after: Sequence[Measurement], keys: Sequence[Key]) -> Change:
    """Average with equal weight per key, paired by item. `after`: a policy of each seed.

    The interval is the bootstrap over the items of each key and, independently, over the seeds
    (Owen 2007). Few seeds make it too narrow: two show half the variance of their mean.
    """
    random = np.random.default_rng(0)
    seeds = random.integers(0, len(after), (DRAWS, len(after)))
    means, drawn = [], np.zeros(DRAWS)
    for key in keys:
        differences = _differences(before, after, key)
        items = random.integers(0, differences.shape[1], (DRAWS, differences.shape[1]))
        means.append(differences.mean())
        by_seed = differences[:, items].mean(axis=2)  # [S, DRAWS]
        drawn += np.take_along_axis(by_seed, seeds.T, axis=0).mean(axis=0)
    low, high = np.quantile(drawn / len(keys), [0.025, 0.975])
    return Change(float(np.mean(means)), float(low), float(high))


def common_keys(measurements: Sequence[Measurement]) -> list[Key]:
    """Return what all measured, in the order of the first."""
    return [key for key in _by_key(measurements[0]) if all(key in _by_key(m) for m in measurements)]


def _differences(
    before: Measurement, after: Sequence[Measurement], key: Key
) -> NDArray[np.float64]:
    """Return [S, N]: the differences of S policies on the N items that all of them met."""
    first, *others = (_by_key(each)[key] for each in (before, *after))
    items = sorted(first.keys() & set.intersection(*(set(other) for other in others)))
    return np.array([[other[item] - first[item] for item in items] for other in others])


def _by_key(measurement: Measurement) -> dict[Key, dict[str, float]]:
    return {(one.bench, one.temperature): one.by_item for one in measurement.solved}
