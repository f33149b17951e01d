"""Statistics for strategy `adaptive`: one database query for all episodes of a process."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from agentrl.core.config.sections.episodes import Sampling
from agentrl.db.queries.episode_outcomes import EpisodeOutcome, recent_episodes, recent_metrics
from agentrl.db.store import Store
from agentrl.workers.policies.adaptive import Attempt, OffPolicy, Weigh, learn, make_weigher

UPDATES = 4  # whose metrics say how far lagged tokens are from the policy trained
PARTS = ("fresh", "lagged")


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """What a pool takes of a configuration. `tasks`: their names; `group_size`: in episodes.

    `silent`: tracks of policies that judge or teach and never act.
    """

    sampling: Sampling
    tasks: Sequence[str]
    group_size: int
    silent: Collection[str] = ()


def read_weights(store: Store, run_id: str, config: PoolConfig) -> dict[str, Weigh]:
    """Compute the track weights of each task from its last groups and updates."""
    window = config.sampling.window_groups
    with store.read() as session:
        played = {task: recent_episodes(session, run_id, task, window) for task in config.tasks}
        metrics = recent_metrics(session, run_id, UPDATES)
    return {
        task: make_weigher(
            learn(attempts(found)), off_policy(metrics, task), config.sampling, config.group_size
        )
        for task, found in played.items()
    }


def attempts(played: Sequence[EpisodeOutcome]) -> list[list[Attempt]]:
    """Return the episodes of each group with their shares of steps by track."""
    return [
        [Attempt(shares(each.steps), each.solved) for each in group]
        for _, group in groupby(played, key=lambda each: each.group_id)
    ]


def off_policy(metrics: Sequence[Mapping[str, Any]], task: str) -> OffPolicy:
    """Return KL and effective sample size of a task: token means (of 1/ESS for ESS)."""
    found = {}
    for part in PARTS:
        rows = [_of(each, task, part) for each in metrics]
        tokens = [row[0] for row in rows]
        found[f"kl_{part}"] = _mean([row[1] for row in rows], tokens)
        found[f"ess_{part}"] = 1 / _mean([1 / row[2] for row in rows], tokens)
    return OffPolicy(**found)


def _of(metrics: Mapping[str, Any], task: str, part: str) -> tuple[float, float, float]:
    """Return tokens, KL and effective sample size of a part of an update."""
    names = ("loss_tokens", "mismatch_k3", "effective_sample_size")
    values = [metrics.get(f"{task}/{name}_{part}") for name in names]
    if any(value is None or not math.isfinite(value) or value <= 0 for value in values[::2]):
        return 0.0, 0.0, 1.0
    return float(values[0] or 0), float(values[1] or 0), float(values[2] or 1)


def shares(steps: Mapping[str, int]) -> dict[str, float]:
    """Return the shares of an episode's steps by track."""
    total = sum(steps.values())
    return {track: count / total for track, count in steps.items()}


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """Return the weighted mean; NaN without weights."""
    total = sum(weights)
    if not total:
        return math.nan
    return sum(v * w for v, w in zip(values, weights, strict=True)) / total
