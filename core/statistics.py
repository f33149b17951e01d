"""Statistics for reports and live views: pure functions of numbers."""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from statistics import fmean

Z95 = 1.959964  # the standard normal's 97.5 % point

# The 97.5 % points of Student's t with 1, 2, … degrees of freedom; beyond, the normal's is close.
T975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip


def interval(successes: float, episodes: float) -> tuple[float, float]:
    """Compute Wilson's 95 % score interval of a proportion (Wilson 1927)."""
    if episodes == 0:
        return 0.0, 1.0
    p, n = successes / episodes, episodes
    centre = (p + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
    half = Z95 / (1 + Z95**2 / n) * math.sqrt(p * (1 - p) / n + Z95**2 / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


@dataclass(frozen=True, slots=True)
class ClusterSums:
    """Sums over m clusters (items), cluster i with n_i outcomes (its episodes) that add up to s_i.

    `outcomes`: Σ n_i; `total`: Σ s_i; `squares`: Σ s_i²; `products`: Σ n_i s_i; `sizes`: Σ n_i².
    """

    clusters: int
    outcomes: int
    total: float
    squares: float
    products: float
    sizes: int

    @classmethod
    def of(cls, clusters: Sequence[Sequence[float]]) -> "ClusterSums":
        """Sum up outcomes. A cluster without outcomes does not count."""
        pairs = [(len(cluster), sum(cluster)) for cluster in clusters if cluster]
        return cls(
            clusters=len(pairs),
            outcomes=sum(n for n, _ in pairs),
            total=sum(s for _, s in pairs),
            squares=sum(s * s for _, s in pairs),
            products=sum(n * s for n, s in pairs),
            sizes=sum(n * n for n, _ in pairs),
        )

    def __add__(self, other: "ClusterSums") -> "ClusterSums":
        pairs = zip(astuple(self), astuple(other), strict=True)
        return ClusterSums(*(one + more for one, more in pairs))

    @property
    def mean(self) -> float:
        """The mean outcome. There must be one."""
        return self.total / self.outcomes

    def variance(self) -> float:
        """Estimate the variance of the mean: Σ (s_i − n_i · mean)² / (Σ n_i)² (Kish 1965)."""
        mean = self.mean
        square = self.squares - 2 * mean * self.products + mean**2 * self.sizes
        return max(0.0, square) / self.outcomes**2


def clustered_interval(sums: ClusterSums) -> tuple[float, float]:
    """Compute Wilson's interval of a proportion with clustered outcomes (an item's repeats).

    The n of the formula is the effective number of outcomes, p(1 − p) / v, with v the variance of
    the mean over m clusters (Korn & Graubard 1998): n itself where each cluster has one outcome, m
    where clusters are of one size and those of a cluster all agree. It is at most n, and m where p
    is 0 or 1, and of a single cluster, which does not show how much clusters differ.
    """
    if sums.outcomes == 0:
        return 0.0, 1.0
    return _effective_interval(sums.mean, sums.variance(), sums.outcomes, sums.clusters)


def interval_over_clusters(clusters: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Compute Wilson's interval of the mean over clusters, each of one outcome or more.

    It equals `clustered_interval` where clusters are of one size. Else v is the variance of the m
    clusters' own means, over m, and the effective number is at most m² / Σ 1/n_i, which is that of
    independent outcomes.
    """
    m = len(clusters)
    if m == 0:
        return 0.0, 1.0
    means = [fmean(cluster) for cluster in clusters]
    p = fmean(means)
    variance = sum((mean - p) ** 2 for mean in means) / m**2
    return _effective_interval(p, variance, m**2 / sum(1 / len(each) for each in clusters), m)


def _effective_interval(
    p: float, variance: float, most: float, clusters: int
) -> tuple[float, float]:
    effective = most
    if p in (0.0, 1.0) or clusters == 1:
        effective = float(clusters)
    elif variance > 0:
        effective = min(most, p * (1 - p) / variance)
    return interval(p * effective, effective)


def pass_at(k: int, solved: int, attempts: int) -> float:
    """Estimate pass@k without bias: 1 − C(n−c, k)/C(n, k).

    `solved`: c of n attempts, n ≥ k (arXiv:2107.03374, eq. 1).
    """
    return 1 - math.comb(attempts - solved, k) / math.comb(attempts, k)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over `n` independent values with its 95 % interval; NaN bounds: unknown."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def sign(self) -> int:
        """Return 1 or −1 if the whole interval is above or below zero, else 0."""
        return int(self.low > 0) - int(self.high < 0)

    def interval_text(self, form: str) -> str:
        """Format the interval, each bound as `form`, such as `.1%`; a dash if it is unknown."""
        return "–" if math.isnan(self.low) else f"{self.low:{form}} – {self.high:{form}}"


def estimate(values: Sequence[float]) -> Estimate:
    """Estimate the mean by Student's t. Raises ValueError if there are no values."""
    if not values:
        raise ValueError("no value to estimate from")
    mean = fmean(values)
    return students_estimate(mean, sum((value - mean) ** 2 for value in values), len(values))


def students_estimate(mean: float, squares: float, n: int) -> Estimate:
    """Estimate from the mean of n values and the sum of their squared deviations from it.

    The interval is Student's; of one value it is unknown.
    """
    if n == 1:
        return Estimate(mean, math.nan, math.nan, 1)
    point = T975[n - 2] if n - 2 < len(T975) else Z95
    half = point * math.sqrt(squares / (n - 1) / n)
    return Estimate(mean, mean - half, mean + half, n)
