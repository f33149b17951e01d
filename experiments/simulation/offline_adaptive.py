"""Strategy `adaptive` with statistics from a training's own groups instead of the database."""

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence

from agentrl.core.config.sections.episodes import Sampling
from agentrl.core.trajectory import Trajectory
from agentrl.core.types import SOLVED
from agentrl.experiments.simulation.simulator import Job, Simulator
from agentrl.workers.policies.adaptive import (
    Attempt,
    Beliefs,
    OffPolicy,
    Weigh,
    learn,
    make_weigher,
)
from agentrl.workers.policies.pool import Sampler
from agentrl.workers.policies.statistics import shares

OFF_POLICY = {
    "kl_fresh": "mismatch_k3_fresh",
    "kl_lagged": "mismatch_k3_lagged",
    "ess_fresh": "effective_sample_size_fresh",
    "ess_lagged": "effective_sample_size_lagged",
}


class OfflineWeights:
    """Statistics of each task, updated after every round."""

    def __init__(self, sampling: Sampling, group_size: int) -> None:
        self._sampling = sampling
        self._group_size = group_size
        self._groups: dict[str, deque[list[Attempt]]] = {}
        self._off: dict[str, OffPolicy] = {}
        self._beliefs: dict[str, Beliefs] = {}

    def note(self, groups: Sequence[Sequence[Trajectory]], metrics: Mapping[str, float]) -> None:
        """Record a round's groups, also those without spread, and the metrics of its update."""
        for group in groups:
            empty = deque[list[Attempt]](maxlen=self._sampling.window_groups)
            attempts = [
                Attempt(shares(steps_by_track(member)), member.score >= SOLVED) for member in group
            ]
            self._groups.setdefault(group[0].task, empty).append(attempts)
        for task, window in self._groups.items():
            self._beliefs[task] = learn(list(window))
            self._off[task] = off_policy(task, metrics, self._off.get(task))

    def draws(self, simulator: Simulator, sampling: Sampling, job: Job) -> Sampler:
        """Return the sampler of one episode."""
        return Sampler(simulator, sampling, job.seed, self._weigh(job.item.task))

    def _weigh(self, task: str) -> Weigh | None:
        """Return the weights; None without statistics: all tracks have the same weight."""
        if task not in self._beliefs:
            return None
        return make_weigher(self._beliefs[task], self._off[task], self._sampling, self._group_size)


def steps_by_track(trajectory: Trajectory) -> dict[str, int]:
    """Count the steps of an episode by track."""
    return Counter(trajectory.policies[step.policy_index].track for step in trajectory.steps)


def off_policy(task: str, metrics: Mapping[str, float], before: OffPolicy | None) -> OffPolicy:
    """Return the off-policy figures of the last update; missing ones keep their previous values."""
    found = {}
    for name, metric in OFF_POLICY.items():
        known = getattr(before, name) if before else math.nan
        found[name] = metrics.get(f"{task}/{metric}", known)
    return OffPolicy(**found)
