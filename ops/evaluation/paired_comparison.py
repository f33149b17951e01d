"""Paired comparison of two policies on the same items: pure functions of scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from agentrl.core.statistics import Estimate, estimate

EXACT = 16  # differing items up to which every sign is tried: 2^16 sums
DRAWS = 10_000  # random signs beyond that
TIE = 1e-12  # sums that differ by less are the same: they are of the same numbers


@dataclass(frozen=True, slots=True)
class PairedResult:
    """`difference`: of B − A over items, with Student's interval; `p`: two-sided.

    `gained`, `lost`: items whose mean score B raised or lowered.
    """

    items: int
    first: float
    second: float
    difference: Estimate
    p: float
    gained: Sequence[str]
    lost: Sequence[str]


def compare_items(
    first: Mapping[str, float], second: Mapping[str, float], *, seed: int = 0
) -> PairedResult | None:
    """Each item's mean over its repeats, of A and of B; items that only one has are left out.

    None where they share no item.
    """
    common = sorted(first.keys() & second.keys())
    if not common:
        return None
    differences = [second[item] - first[item] for item in common]
    return PairedResult(
        items=len(common),
        first=fmean(first[item] for item in common),
        second=fmean(second[item] for item in common),
        difference=estimate(differences),
        p=sign_flip(np.array(differences), seed),
        gained=[item for item in common if second[item] > first[item]],
        lost=[item for item in common if second[item] < first[item]],
    )


def sign_flip(differences: NDArray[np.float64], seed: int) -> float:
    """Two-sided p of the paired permutation test (Fisher 1935; Good 2005, ch. 3).

    differences: [N], B − A of each item. Under the hypothesis that A and B are alike each sign is
    a fair coin: p is the share of the 2^n assignments of signs to the n non-zero differences whose
    |sum| is at least the one found. Beyond `EXACT` of them, DRAWS assignments drawn from `seed`
    and the one found stand for all: (1 + at least as large) / (1 + DRAWS). 1 where all are zero.
    """
    moved = differences[differences != 0]
    if moved.size == 0:
        return 1.0
    found = abs(moved.sum()) - TIE
    if moved.size <= EXACT:
        signs = np.array(list(product((-1.0, 1.0), repeat=moved.size)))
        return float((np.abs(signs @ moved) >= found).mean())
    random, count = np.random.default_rng(seed), 0
    for _ in range(10):  # in parts: [DRAWS, n] at once would be large
        signs = random.integers(0, 2, (DRAWS // 10, moved.size)) * 2.0 - 1.0
        count += int((np.abs(signs @ moved) >= found).sum())
    return (1 + count) / (1 + DRAWS)
