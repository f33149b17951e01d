"""Computes the figures of the report: estimates over seeds. Pure functions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from agentrl.core.statistics import Estimate, estimate
from agentrl.ops.experiments.staleness.findings import Course, Moment
from agentrl.ops.experiments.statistics import paired_estimate

BOUND, INTERVAL = "bound", "interval"  # how arms are named: bound-4, interval-10
MEAN = "mean"  # of the tasks

Seeds = Mapping[int, Course]


@dataclass(frozen=True, slots=True)
class Pace:
    """Speed of an arm's trainings, by the simulated clock.

    `seconds`: to the last update. `throughput`: trained tokens per second. `versus`: throughput as
    a multiple of the reference arm's, by seed. `engine`, `trainer`: share of the time each was
    busy. `lag`: mean age of the policy of a trained token, in updates; `oldest`: maximum.
    `effective`: effective sample size of all tokens, as a share. `unused`: share of sampled tokens
    that no update trained on.
    """

    seconds: Estimate
    throughput: Estimate
    versus: Estimate | None
    engine: Estimate
    trainer: Estimate
    lag: Estimate
    oldest: int
    effective: Estimate
    unused: Estimate
    stale: Estimate
    loads: Estimate


@dataclass(frozen=True, slots=True)
class Learned:
    """Success of one arm on one task, or on the mean of all. `final`: held-out, after training.

    `versus`: the difference from the reference arm, paired by seed. `curve`: success of the checks
    by seconds of the clock.
    """

    final: Estimate
    versus: Estimate | None
    curve: list[tuple[float, Estimate]]


@dataclass(frozen=True, slots=True)
class Figures:
    """`pace` by arm, `learned` by task (MEAN last) and arm; `base`: the reference arms."""

    seeds: dict[str, list[int]]
    base: dict[str, str]
    pace: dict[str, Pace]
    learned: dict[str, dict[str, Learned]]


def figures(courses: Sequence[Course]) -> Figures:
    """Compute all estimates."""
    arms: dict[str, dict[int, Course]] = {}
    for each in sorted(courses, key=lambda course: (place(course.arm), course.seed)):
        arms.setdefault(each.arm, {})[each.seed] = each
    base = {arm: against(arm, courses[0]) for arm in arms}
    tasks = sorted({skill.task for each in courses for skill in each.skills})
    return Figures(
        seeds={arm: sorted(seeds) for arm, seeds in arms.items()},
        base=base,
        pace={arm: pace(seeds, _others(arms, base, arm)) for arm, seeds in arms.items()},
        learned={
            task: {
                arm: learned(seeds, _others(arms, base, arm), task) for arm, seeds in arms.items()
            }
            for task in (*tasks, MEAN)
        },
    )


def place(arm: str) -> tuple[str, int]:
    """Return the position of an arm: bounds first, each kind by number."""
    kind, _, number = arm.partition("-")
    return kind, int(number)


def against(arm: str, course: Course) -> str:
    """Return the reference arm of an arm.

    For bounds: the bound 0, where generation and training alternate. For intervals: the bound of
    the configuration, where the policy follows every update.
    """
    bound = 0 if arm.startswith(BOUND) else course.design.config["dispatch"]["max_staleness"]
    return f"{BOUND}-{bound}"


def pace(seeds: Seeds, others: Seeds) -> Pace:
    """Estimate over seeds. `others`: trainings of the reference arm; empty for that arm itself."""
    every = list(seeds.values())
    mine, theirs = ({n: throughput(c) for n, c in of.items()} for of in (seeds, others))
    common = sorted(mine.keys() & theirs.keys())
    return Pace(
        seconds=estimate([c.moments[-1].at for c in every]),
        throughput=estimate(list(mine.values())),
        versus=estimate([mine[n] / theirs[n] for n in common]) if common else None,
        engine=estimate([min(1.0, c.engine / c.moments[-1].at) for c in every]),
        trainer=estimate([c.trainer / c.moments[-1].at for c in every]),
        lag=_over(every, lambda moment: moment.lag),
        oldest=max(moment.oldest for c in every for moment in c.moments),
        effective=_over(every, lambda moment: moment.metrics.get("effective_sample_size", 1.0)),
        unused=estimate([1.0 - sum(m.tokens for m in c.moments) / c.sampled for c in every]),
        stale=estimate([float(c.stale) for c in every]),
        loads=estimate([float(c.loads) for c in every]),
    )


def learned(seeds: Seeds, others: Seeds, task: str) -> Learned:
    """Compute the success of an arm on a task. `others`: as in `pace`."""
    mine, theirs = ({n: final(c, task) for n, c in of.items()} for of in (seeds, others))
    return Learned(
        final=estimate(list(mine.values())),
        versus=paired_estimate(mine, theirs),
        curve=_curve(seeds, task),
    )


def throughput(course: Course) -> float:
    """Return trained tokens per second of the clock."""
    return sum(moment.tokens for moment in course.moments) / course.moments[-1].at


def final(course: Course, task: str) -> float:
    """Return the success of the trained policy in all attempts at all held-out items."""
    found = {each.task: fmean(each.solved) / course.design.attempts for each in course.skills}
    return fmean(found.values()) if task == MEAN else found[task]


def _others(arms: Mapping[str, Seeds], base: Mapping[str, str], arm: str) -> Seeds:
    return {} if base[arm] == arm else arms.get(base[arm], {})


def _over(courses: Sequence[Course], measure: Callable[[Moment], float]) -> Estimate:
    """Average over the updates, then estimate over trainings."""
    return estimate([fmean(measure(moment) for moment in c.moments) for c in courses])


def _curve(seeds: Seeds, task: str) -> list[tuple[float, Estimate]]:
    """Return the n-th checks over seeds, as many as every seed has."""
    checks = [each.checks for each in seeds.values()]
    return [
        (
            fmean(check.at for check in same),
            estimate(
                [
                    fmean(check.success.values()) if task == MEAN else check.success[task]
                    for check in same
                ]
            ),
        )
        for same in zip(*checks, strict=False)
    ]
