"""Statistics for reports and live views: pure functions of numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

Z95 = 1.959964  # the standard normal's 97.5 % point

# The 97.5 % points of Student's t with 1, 2, … degrees of freedom; beyond, the normal's is close.
T975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip
BEYOND = 1.96


def interval(successes: float, episodes: float) -> tuple[float, float]:
    """Compute Wilson's 95 % score interval of a proportion (Wilson 1927)."""
    if episodes == 0:
        return 0.0, 1.0
    p, n = successes / episodes, episodes
    centre = (p + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
    half = Z95 / (1 + Z95**2 / n) * math.sqrt(p * (1 - p) / n + Z95**2 / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def clustered_interval(wins: Sequence[Sequence[bool]]) -> tuple[float, float]:
    """Compute Wilson's interval of a proportion with clustered outcomes (an item's repeats).

    The n of the formula is the effective number of outcomes, p(1 − p) / v, with v the variance of
    the mean over m clusters, v = Σ (n_i (p_i − p))² / (Σ n_i)² (Kish 1965; Korn & Graubard 1998):
    n itself where each cluster has one outcome, m where clusters are of one size and those of a
    cluster all agree. It is at most n, and m where p is 0 or 1.
    """
    clusters = [cluster for cluster in wins if cluster]
    n, m = sum(map(len, clusters)), len(clusters)
    if n == 0:
        return 0.0, 1.0
    p = sum(map(sum, clusters)) / n
    variance = sum((sum(cluster) - len(cluster) * p) ** 2 for cluster in clusters) / n**2
    effective = float(m) if p in (0.0, 1.0) else n
    if variance > 0:
        effective = min(float(n), p * (1 - p) / variance)
    return interval(p * effective, effective)


def pass_at(k: int, solved: int, attempts: int) -> float:
    """Estimate pass@k without bias: 1 − C(n−c, k)/C(n, k).

    `solved`: c of n attempts, n ≥ k (arXiv:2107.03374, eq. 1).
    """
    return 1 - math.comb(attempts - solved, k) / math.comb(attempts, k)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over `n` runs with its 95 % interval by Student's t; NaN bounds where n < 2."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def sign(self) -> int:
        """Return 1 or −1 if the whole interval is above or below zero, else 0."""
        return int(self.low > 0) - int(self.high < 0)


def estimate(values: Sequence[float]) -> Estimate:
    """Estimate the mean. Raises ValueError if there are no values."""
    if not values:
        raise ValueError("no value to estimate from")
    mean, n = fmean(values), len(values)
    if n == 1:
        return Estimate(mean, math.nan, math.nan, 1)
    point = T975[n - 2] if n - 2 < len(T975) else BEYOND
    half = point * stdev(values) / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half, n)
