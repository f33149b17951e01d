"""The measures of the study: of each arm, and of each lag."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

from agentrl.core.types import CURRENT
from agentrl.experiments.findings import Drift, Lag, Mixture, Point, Training
from agentrl.experiments.report.comparison import START, Comparison, Measure
from agentrl.experiments.report.measures import pass_at_k, success_at_check
from agentrl.experiments.simulation.statistics import pass_curve

CHECKED, WITHIN = "held-out success on the way", "histories a group"


@dataclass(frozen=True, slots=True)
class Aged:
    """What a long training says of one lag, which takes the place of an arm. 0: no lag."""

    arm: str
    seed: int
    attempts: int
    lags: Sequence[Lag]
    mixtures: Sequence[Mixture]


def compare_arms(trainings: Sequence[Training]) -> Comparison[Training]:
    attempts = trainings[0].design.attempts
    measures: dict[str, Measure[Training]] = {
        f"{prefix}pass@{k}": partial(pass_at_k, k, acting)
        for acting, prefix in (("policy", ""), ("mixture", "mixture "))
        for k in pass_curve([0], attempts)
    }
    measures |= {
        CHECKED: lambda each, task: _mean(c.success.get(task) for c in each.checks[1:]),
        WITHIN: lambda each, task: each.within.get(task),
        "states visited": lambda each, task: _last(each, lambda point: point.states.get(task)),
        "histories visited": lambda each, task: _last(each, lambda at: at.histories.get(task)),
        "groups with spread": lambda each, task: _mean(p.spread.get(task) for p in each.points),
        "lagged tokens": lambda each, _: _mean(1 - p.tracks.get(CURRENT, 0) for p in each.points),
        "KL of lagged": partial(_metric, "mismatch_k3_lagged"),
        "effective sample size": partial(_metric, "effective_sample_size"),
        "updates": lambda each, _: _last(each, lambda point: point.version),
        "tokens": lambda each, _: _last(each, lambda point: point.tokens),
        "episodes": lambda each, _: each.episodes if each.points else None,
    }
    for check in range(len(trainings[-1].checks)):
        measures[f"success at check {check}"] = partial(success_at_check, check)
    tasks = sorted({skill.task for each in trainings for skill in each.skills})
    return Comparison(trainings, tasks, measures, lambda arm: arm if arm == START else CURRENT)


def compare_lags(drifts: Sequence[Drift]) -> Comparison[Aged]:
    scored = {each.lag for one in drifts for each in one.lags}
    lags = sorted(scored | {each.lag for one in drifts for each in one.mixtures})
    found = [
        Aged(
            str(lag),
            one.seed,
            one.design.attempts,
            [each for each in one.lags if each.lag == lag],
            [each for each in one.mixtures if each.lag == lag],
        )
        for lag in lags
        for one in drifts
    ]
    measures: dict[str, Measure[Aged]] = {
        "KL by lag": lambda aged, task: _mean(x.divergence for x in aged.lags if x.task == task),
        "effective by lag": lambda aged, task: _mean(
            x.effective for x in aged.lags if x.task == task
        ),
        "histories an item": lambda aged, task: _mean(
            fmean(x.histories) for x in aged.mixtures if x.task == task
        ),
    }
    attempts = drifts[0].design.attempts if drifts else 1
    measures |= {f"together pass@{k}": partial(_together, k) for k in pass_curve([0], attempts)}
    tasks = sorted({each.task for one in drifts for each in one.mixtures})
    return Comparison(found, tasks, measures, lambda _: "0")


def _together(k: int, aged: Aged, task: str) -> float | None:
    for each in aged.mixtures:
        if each.task == task:
            return pass_curve(each.solved, aged.attempts)[k]
    return None


def _metric(name: str, training: Training, _: str) -> float | None:
    return _mean(point.metrics.get(name) for point in training.points)


def _last(training: Training, of: Callable[[Point], float | None]) -> float | None:
    return of(training.points[-1]) if training.points else None


def _mean(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
