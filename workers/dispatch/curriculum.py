"""The curriculum: turn limits, paused items, next task. Pure functions.

Formulas and defaults: docs/curriculum.md.

success of groups, newest first ─▶ progress ─▶ shares of tasks ─▶ owed ─▶ the task that comes next
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from agentrl.core.config.sections.episodes import Dispatch
from agentrl.core.config.sections.tasks import Task
from agentrl.core.errors import ConfigError
from agentrl.db.transitions.item_streams import LatestSuccess

Shares = Mapping[str, float]


def check(plan: Dispatch, tasks: Mapping[str, Task]) -> None:
    """Raise ConfigError for a curriculum that contradicts itself."""
    for name, task in tasks.items():
        versions = [version for version, _ in task.horizons]
        if any(later <= earlier for earlier, later in pairwise(versions)):
            raise ConfigError(
                f"tasks.{name}.horizons: the versions {versions} do not increase",
                hint="sort the pairs [version, turns] by version, and name each version once",
            )
    if plan.window is not None and plan.window[0] > plan.window[1]:
        raise ConfigError(
            f"dispatch.window: {plan.window[0]} exceeds {plan.window[1]}", hint="write [low, high]"
        )
    most = 1.0 / max(1, len(tasks))
    if plan.mixing == "progress" and plan.mixing_floor > most:
        raise ConfigError(
            f"dispatch.mixing_floor: {plan.mixing_floor} is more than an equal share",
            hint=f"set it to 1/{len(tasks)} or less",
        )


def turn_limit(schedule: Sequence[tuple[int, int]], version: int) -> int | None:
    """Return the turn limit of a group admitted at a version (ScalingInter, arXiv:2509.08755).

    None: no limit.

    `schedule`: pairs (from version, turns) with increasing versions.
    """
    reached = [turns for start, turns in schedule if start <= version]
    return reached[-1] if reached else None


@dataclass(frozen=True, slots=True)
class RestRule:
    """Difficulty window: an item with success outside [low, high] is paused for some passes."""

    low: float
    high: float
    passes: int

    def is_resting(self, latest: LatestSuccess, items: int, position: int) -> bool:
        """Return whether the item is paused at a position of its task's stream of `items` items.

        It is paused in the passes after the one of its latest group.
        """
        if self.low <= latest.success <= self.high:
            return False
        return 0 < position // items - latest.position // items <= self.passes


def learning_progress(success: Sequence[float], window: int) -> float | None:
    """|mean of the newest `window` groups - mean of the `window` before|; None before there are.

    Absolute learning progress (Matiisen et al., arXiv:1707.00183; Portelas et al.,
    arXiv:1910.07224): a task that is forgotten counts like one that is learned. `success`: of each
    group, newest first.
    """
    if len(success) < 2 * window:
        return None
    new, old = success[:window], success[window : 2 * window]
    return abs(math.fsum(new) - math.fsum(old)) / window


def shares(weights: Shares, learned: Mapping[str, float | None], floor: float) -> dict[str, float]:
    """ε + (1 - Kε) q of each of K tasks; they sum to 1 and none is below ε = `floor` ≤ 1/K.

    q is the task's share by weight, f = w/Σw, where its progress is not known yet; the other tasks
    divide theirs by f · progress, or keep f where nobody progresses.
    """
    total = math.fsum(weights.values())
    by_weight = {task: weight / total for task, weight in weights.items()}
    known = {task: by_weight[task] * p for task, p in learned.items() if p is not None}
    mass, moved = math.fsum(by_weight[task] for task in known), math.fsum(known.values())
    if moved > 0.0:
        by_weight |= {task: mass * (each / moved) for task, each in known.items()}
    return {task: floor + (1.0 - len(weights) * floor) * q for task, q in by_weight.items()}


def carry_debts(of: Shares, before: Shares, admitted: Mapping[str, int]) -> dict[str, float]:
    """Return how many groups each task is behind its share.

    `before`: value when the shares were computed. `admitted`: groups since then.
    """
    every = sum(admitted.get(task, 0) for task in of)
    return {
        task: before.get(task, 0.0) + share * every - admitted.get(task, 0)
        for task, share in of.items()
    }


def next_task(of: Shares, behind: Mapping[str, float]) -> str:
    """Return the task that would be furthest behind its share after one more group."""
    return max(sorted(of), key=lambda task: behind[task] + of[task])


def debts_after(chosen: str, of: Shares, behind: Mapping[str, float]) -> dict[str, float]:
    """Return `owed` after one more group of the chosen task."""
    return {task: behind[task] + share - (task == chosen) for task, share in of.items()}
