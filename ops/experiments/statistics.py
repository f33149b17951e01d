"""What the experiments report: pure functions of numbers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

from broker.messages import Trajectory
from ops.evaluate import pass_at

# The 97.5 % points of Student's t with 1, 2, … degrees of freedom; beyond, the normal's is close.
T975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip
BEYOND = 1.96


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over `n` seeds with its 95 % interval by Student's t; NaN bounds where n < 2."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def sign(self) -> int:
        """1 or −1 where the whole interval lies above or below zero, else 0."""
        return int(self.low > 0) - int(self.high < 0)


def estimate(values: Sequence[float]) -> Estimate:
    """Raises ValueError for no value."""
    if not values:
        raise ValueError("no value to estimate from")
    mean, n = fmean(values), len(values)
    if n == 1:
        return Estimate(mean, math.nan, math.nan, 1)
    point = T975[n - 2] if n - 2 < len(T975) else BEYOND
    half = point * stdev(values) / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half, n)


def paired(values: Mapping[int, float], others: Mapping[int, float]) -> Estimate | None:
    """The difference values − others over the seeds that both have; None without any."""
    common = sorted(values.keys() & others.keys())
    return estimate([values[seed] - others[seed] for seed in common]) if common else None


def pass_curve(solved: Sequence[int], attempts: int) -> dict[int, float]:
    """pass@k for k = 1, 2, 4, … ≤ attempts. solved: of each item, in how many attempts."""
    wins = [[True] * count + [False] * (attempts - count) for count in solved]
    ks = [2**power for power in range(attempts.bit_length())]
    return {k: pass_at(k, wins) for k in ks if k <= attempts}


def effective_share(log_ratios: NDArray[np.float64]) -> float:
    """Effective sample size of weights w = exp(log_ratios), (Σw)²/Σw², as a share of their number.

    log_ratios: [N], natural logs of π/μ at the sampled tokens. NaN where N is 0.
    """
    if log_ratios.size == 0:
        return math.nan
    weights = np.exp(np.clip(log_ratios, -20.0, 20.0))
    return float(weights.sum() ** 2 / (weights**2).sum() / weights.size)


def divergence(log_mu: NDArray[np.float32], log_pi: NDArray[np.float32]) -> NDArray[np.float64]:
    """[N] KL(μ ‖ π) in nats at N positions, exact over the vocabulary.

    log_mu, log_pi: [N, V] log-probabilities.
    """
    mu = log_mu.astype(np.float64)
    divergences: NDArray[np.float64] = (np.exp(mu) * (mu - log_pi)).sum(-1)
    return divergences


@dataclass
class Visited:
    """What the episodes of a training run saw, by task.

    A state is what the environment's last answer shows, within its item; a history is all its
    answers so far, within its item: what an agent can know. `within`: for each group, how many
    histories its members saw together.
    """

    states: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    histories: dict[str, set[tuple[str, ...]]] = field(default_factory=dict)
    within: dict[str, list[int]] = field(default_factory=dict)

    def add(self, members: Sequence[Trajectory]) -> None:
        """Count a group's episodes."""
        if not members:
            return
        seen: set[tuple[str, ...]] = set()
        task = members[0].task
        for member in members:
            answers = seen_by(member)
            prefix = tuple((member.item_id, *answers[:n]) for n in range(1, len(answers) + 1))
            seen.update(prefix)
            self.states.setdefault(task, set()).update((member.item_id, each) for each in answers)
        self.histories.setdefault(task, set()).update(seen)
        self.within.setdefault(task, []).append(len(seen))


def seen_by(trajectory: Trajectory) -> list[str]:
    """The environment's answers, one a step; how it ended stands for an answer without text."""
    end = f"[{trajectory.status} {trajectory.score:g}]"
    return [step.answer or end for step in trajectory.steps]
