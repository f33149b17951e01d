"""Computes advantages from rewards: centred per group, then normalised per task."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


def centred(group: Doubles, _eps: float) -> Doubles:
    """r − mean (arXiv:2503.20783, section 3.2)."""
    advantages: Doubles = group - group.mean()
    return advantages


def std(group: Doubles, eps: float) -> Doubles:
    """(r − mean) / (std + eps) with the unbiased std (GRPO, arXiv:2402.03300, section 4.1.2)."""
    advantages: Doubles = (group - group.mean()) / (group.std(ddof=1) + eps)
    return advantages


def leave_one_out(group: Doubles, _eps: float) -> Doubles:
    """r − the mean of the others (RLOO, arXiv:2402.14740, section 2.2)."""
    advantages: Doubles = (group - group.mean()) * (group.size / (group.size - 1))
    return advantages


ADVANTAGES: Mapping[str, Callable[[Doubles, float], Doubles]] = {  # by `trainer.advantage`
    each.__name__: each for each in (centred, std, leave_one_out)
}


def group_advantages(
    rewards: Sequence[Sequence[float]], kind: str = "centred", eps: float = 1e-6
) -> list[Floats]:
    """Compare each reward with those of its own group.

    rewards: P groups of any size G. `kind`: one of ADVANTAGES. Returns P arrays [G], exact zeros
    for a group with equal rewards or one member.
    """
    return [_center_group(np.asarray(group, np.float64), kind, eps) for group in rewards]


def _center_group(group: Doubles, kind: str, eps: float) -> Floats:
    if group.size == 0 or group.max() == group.min():
        return np.zeros(group.shape, np.float32)
    return ADVANTAGES[kind](group, eps).astype(np.float32)


def task_normalise(
    advantages: Floats,
    task_ids: NDArray[np.int64],
    weights: Doubles,
    fewest: int,
    floor: float,
) -> tuple[Floats, frozenset[int]]:
    """Normalise within each task: Ã = (Â − μ_task) / max(σ_task, floor), once over the whole batch.

    advantages, task_ids, weights: [N]; μ and σ are weighted. With weights of 1 for loss tokens and
    0 for others, this is task advantage normalisation (arXiv:2510.04206, equation 1). Returns the
    advantages [N], zero where the weight is zero, and the tasks whose weights sum to less than
    `fewest`, which are not normalised.
    """
    counted = weights > 0
    normalised = np.where(counted, advantages, np.float32(0))
    skipped = set()
    for task in np.unique(task_ids[counted]):
        chosen = counted & (task_ids == task)
        values, own = advantages[chosen].astype(np.float64), weights[chosen]
        if round(own.sum()) < fewest:
            skipped.add(int(task))
            continue
        mean = np.average(values, weights=own)
        deviation = math.sqrt(np.average((values - mean) ** 2, weights=own))
        normalised[chosen] = (values - mean) / max(deviation, floor)
    return normalised, frozenset(skipped)
