"""Computes the figures of the study from its files: pure functions."""

from dataclasses import dataclass

import numpy as np

from agentrl.core.statistics import interval
from agentrl.experiments.pretrained.findings import Measurement, Solved
from agentrl.ops.evaluation.paired_comparison import DRAWS, PairedResult, compare_items

GREEDY = 0.0


@dataclass(frozen=True, slots=True)
class Rate:
    """The share of solved items, with Wilson's 95 % interval."""

    items: int
    success: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class MeanChange:
    """The mean over benches of B − A in greedy decoding, with its 95 % interval over items."""

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


def changes(before: Measurement, after: Measurement) -> dict[Key, PairedResult]:
    """Return differences by bench and temperature, paired by item."""
    first = {(one.bench, one.temperature): one for one in before.solved}
    found = {}
    for one in after.solved:
        key = one.bench, one.temperature
        change = compare_items(first[key].by_item, one.by_item) if key in first else None
        if change is not None:
            found[key] = change
    return found


def mean_change(before: Measurement, after: Measurement, seed: int = 0) -> MeanChange:
    """Average with equal weight per bench; bootstrap over the items of each (Efron 1979)."""
    random = np.random.default_rng(seed)
    first = {one.bench: one for one in before.solved if one.temperature == GREEDY}
    means, drawn = [], np.zeros(DRAWS)
    for one in (each for each in after.solved if each.temperature == GREEDY):
        difference = np.array(_differences(first[one.bench], one))
        means.append(float(difference.mean()))
        places = random.integers(0, difference.size, (DRAWS, difference.size))
        drawn += difference[places].mean(axis=1)
    low, high = np.quantile(drawn / len(means), [0.025, 0.975])
    return MeanChange(float(np.mean(means)), float(low), float(high))


def _differences(first: Solved, second: Solved) -> list[float]:
    common = sorted(first.by_item.keys() & second.by_item.keys())
    return [second.by_item[item] - first.by_item[item] for item in common]
