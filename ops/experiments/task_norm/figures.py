"""Computes the figures of the report: estimates over seeds. Pure functions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from agentrl.core.statistics import Estimate, estimate
from agentrl.ops.experiments.findings import Training
from agentrl.ops.experiments.statistics import paired_estimate

ARMS = ("none", "task", "weighted", "environment")
BASE = ARMS[0]  # what the others are compared with
MEAN = "mean"  # of the tasks

Seeds = Mapping[int, Training]
Measure = Callable[[Training, str], float | None]


@dataclass(frozen=True, slots=True)
class Learned:
    """Figures of one arm on one task, or on the mean of all.

    `final`: held-out success after training. `on_the_way`: mean of its checks after the first.
    `versus_final`, `versus_way`: differences from the arm `none`, paired by seed; None for that
    arm, or without common seeds. `curve`: success of the checks by sampled tokens. `gradient`: the
    task's share of the summed norms of all tasks' gradient parts, mean over the measured updates.
    """

    final: Estimate
    on_the_way: Estimate | None
    versus_final: Estimate | None
    versus_way: Estimate | None
    curve: list[tuple[float, Estimate]]
    gradient: Estimate | None


@dataclass(frozen=True, slots=True)
class Spent:
    """Resources used by an arm's trainings."""

    updates: Estimate
    tokens: Estimate
    episodes: Estimate


@dataclass(frozen=True, slots=True)
class Part:
    """A mixture of tasks: `learned` by task (MEAN last) and arm, `spent` by arm."""

    seeds: dict[str, list[int]]
    learned: dict[str, dict[str, Learned]]
    spent: dict[str, Spent]


def figures(trainings: Sequence[Training]) -> Part:
    """Compute all estimates of a part."""
    arms: dict[str, dict[int, Training]] = {}
    for each in trainings:
        arms.setdefault(each.arm, {})[each.seed] = each
    tasks = sorted({skill.task for each in trainings for skill in each.skills})
    base = arms.get(BASE, {})
    return Part(
        seeds={arm: sorted(seeds) for arm, seeds in arms.items()},
        learned={
            task: {arm: learned(seeds, base, task) for arm, seeds in arms.items()}
            for task in (*tasks, MEAN)
        },
        spent={
            arm: spent(list(seeds.values()))
            for arm, seeds in arms.items()
            if all(each.points for each in seeds.values())
        },
    )


def learned(seeds: Seeds, base: Seeds, task: str) -> Learned:
    """Compute the figures of an arm on a task. `base`: the arm to compare with."""
    finals, ways = _by_seed(seeds, task, final), _by_seed(seeds, task, on_the_way)
    other = {} if seeds == base else base
    gradients = _by_seed(seeds, task, gradient_share)
    return Learned(
        final=estimate(list(finals.values())),
        on_the_way=estimate(list(ways.values())) if ways else None,
        versus_final=paired_estimate(finals, _by_seed(other, task, final)),
        versus_way=paired_estimate(ways, _by_seed(other, task, on_the_way)),
        curve=_curve(seeds, task),
        gradient=estimate(list(gradients.values())) if gradients else None,
    )


def spent(trainings: Sequence[Training]) -> Spent:
    """Estimate over seeds."""
    return Spent(
        updates=estimate([float(each.points[-1].version) for each in trainings]),
        tokens=estimate([float(each.points[-1].tokens) for each in trainings]),
        episodes=estimate([float(each.episodes) for each in trainings]),
    )


def final(training: Training, task: str) -> float | None:
    """Return the success of the trained policy in all attempts at all held-out items."""
    found = {
        skill.task: fmean(skill.solved) / training.design.attempts for skill in training.skills
    }
    return of(found, task)


def on_the_way(training: Training, task: str) -> float | None:
    """Average the checks after the first, which is before any update."""
    later = [of(check.success, task) for check in training.checks[1:]]
    known = [value for value in later if value is not None]
    return fmean(known) if known else None


def gradient_share(training: Training, task: str) -> float | None:
    """Return the task's gradient norm over the sum of all norms, mean over measured updates.

    A task without spread contributes zero. None for MEAN, and without measurements.
    """
    measured = [point.gradients for point in training.points if point.gradients]
    if task == MEAN or not measured:
        return None
    return fmean(norms.get(task, 0.0) / sum(norms.values()) for norms in measured)


def of(by_task: Mapping[str, float], task: str) -> float | None:
    """Return the value of one task, or the mean of all."""
    if task == MEAN:
        return fmean(by_task.values()) if by_task else None
    return by_task.get(task)


def _by_seed(seeds: Seeds, task: str, measure: Measure) -> dict[int, float]:
    found = {seed: measure(each, task) for seed, each in seeds.items()}
    return {seed: value for seed, value in found.items() if value is not None}


def _curve(seeds: Seeds, task: str) -> list[tuple[float, Estimate]]:
    """Return the n-th checks over seeds, as many as every seed has."""
    checks = [each.checks for each in seeds.values()]
    found = []
    for same in zip(*checks, strict=False):
        known = [of(check.success, task) for check in same]
        values = [value for value in known if value is not None]
        found.append((fmean(check.tokens for check in same), estimate(values)))
    return found
