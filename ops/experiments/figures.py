"""Computes the figures of a report from the results: estimates over seeds. Pure functions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from agentrl.core.statistics import Estimate, estimate
from agentrl.core.types import CURRENT
from agentrl.ops.experiments.findings import Drift, Point, Skill, Training
from agentrl.ops.experiments.statistics import paired_estimate, pass_curve

POLICY, MIXTURE = "policy", "mixture"
CHECKED, WITHIN = "held-out success on the way", "histories a group"
COMPARED = ("pass@1", "pass@8", "pass@64", CHECKED, WITHIN)

Seeds = Mapping[int, Training]
Measure = Callable[[Training, str], float | None]


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """Figures of one arm on one task. `passed`: pass@k by acting policy.

    `curve`: held-out success by tokens. `histories`: distinct ones per item in all final attempts,
    by acting policy. Of the training: `states`, `seen` (distinct histories), `within` (those of one
    group), `spread` (share of groups with different rewards). `versus`: differences from the arm
    `current`, paired by seed; absent for that arm.
    """

    passed: dict[str, dict[int, Estimate]]
    histories: dict[str, Estimate]
    curve: list[tuple[float, Estimate]]
    states: Estimate | None
    seen: Estimate | None
    within: Estimate | None
    spread: Estimate | None
    versus: dict[str, Estimate]


@dataclass(frozen=True, slots=True)
class Cost:
    """Off-policy figures of an arm's updates, over all tasks, means over the updates.

    `lagged`: share of tokens sampled by another track than `current`. `divergence`: KL(μ ‖ π) of
    these, by the k3 estimate. `effective`: effective sample size of all tokens, as a share.
    """

    lagged: Estimate
    divergence: Estimate | None
    effective: Estimate
    updates: Estimate
    tokens: Estimate
    episodes: Estimate


@dataclass(frozen=True, slots=True)
class PolicyShift:
    """Tokens of one policy scored by itself after more updates. `span`: of KL over versions."""

    divergence: Estimate
    span: tuple[float, float]
    effective: Estimate
    largest: float
    pairs: int


@dataclass(frozen=True, slots=True)
class Together:
    """The last policy of a long training mixed with an older one, half of the steps each.

    `passed`: pass@k. `versus`: difference of pass@k from the last policy alone, paired by seed.
    """

    passed: dict[int, Estimate]
    versus: dict[int, Estimate]
    histories: Estimate


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures by task and arm; `costs` by arm; `lags` and `together` by task and lag."""

    seeds: dict[str, list[int]]
    trained: dict[str, dict[str, ArmFigures]]
    costs: dict[str, Cost]
    lags: dict[str, dict[int, PolicyShift]]
    together: dict[str, dict[int, Together]]


def figures(trainings: Sequence[Training], drifts: Sequence[Drift]) -> Figures:
    """Compute all estimates."""
    arms: dict[str, dict[int, Training]] = {}
    for each in trainings:
        arms.setdefault(each.arm, {})[each.seed] = each
    tasks = sorted({skill.task for each in trainings for skill in each.skills})
    base = arms.get(CURRENT, {})
    return Figures(
        seeds={arm: sorted(seeds) for arm, seeds in arms.items()},
        trained={
            task: {arm: arm_figures(seeds, base, task) for arm, seeds in arms.items()}
            for task in tasks
        },
        costs={
            arm: cost(seeds)
            for arm, seeds in arms.items()
            if all(each.points for each in seeds.values())
        },
        lags=policy_shifts(drifts),
        together=together(drifts),
    )


def arm_figures(seeds: Seeds, base: Seeds, task: str) -> ArmFigures:
    """Compute the figures of an arm on a task. `base`: the arm to compare with."""
    passed, histories = {}, {}
    for acting in (POLICY, MIXTURE):
        skills = [skill for each in seeds.values() for skill in _skills(each, task, acting)]
        if skills:
            curves = [pass_curve(skill.solved, attempts(seeds)) for skill in skills]
            passed[acting] = {k: estimate([curve[k] for curve in curves]) for k in curves[0]}
            histories[acting] = estimate([fmean(skill.histories) for skill in skills])
    versus = {} if seeds == base else compare_arms(seeds, base, task)
    return ArmFigures(
        passed=passed,
        histories=histories,
        curve=_curve(seeds, task),
        states=_over(seeds, task, lambda each, name: _last(each, "states", name)),
        seen=_over(seeds, task, lambda each, name: _last(each, "histories", name)),
        within=_over(seeds, task, lambda each, name: each.within.get(name)),
        spread=_over(seeds, task, _spread),
        versus=versus,
    )


def attempts(seeds: Seeds) -> int:
    return next(iter(seeds.values())).design.attempts


def compare_arms(seeds: Seeds, base: Seeds, task: str) -> dict[str, Estimate]:
    """Return differences of the trained policy's measures, by seed."""
    found = {}
    for name in COMPARED:
        mine, theirs = _measured(seeds, task, name), _measured(base, task, name)
        difference = paired_estimate(mine, theirs)
        if difference is not None:
            found[name] = difference
    return found


def cost(seeds: Seeds) -> Cost:
    """Average over updates, then estimate over seeds."""
    every = list(seeds.values())
    divergences = [_mean(each, lambda p: p.metrics.get("mismatch_k3_lagged")) for each in every]
    known = [value for value in divergences if value is not None]
    effective = [_mean(each, lambda p: p.metrics.get("effective_sample_size")) for each in every]
    lagged = [_mean(each, lambda p: 1.0 - p.tracks.get(CURRENT, 0.0)) for each in every]
    return Cost(
        lagged=estimate([value for value in lagged if value is not None]),
        divergence=estimate(known) if known else None,
        effective=estimate([1.0 if value is None else value for value in effective]),
        updates=estimate([float(each.points[-1].version) for each in every]),
        tokens=estimate([float(each.points[-1].tokens) for each in every]),
        episodes=estimate([float(each.episodes) for each in every]),
    )


def policy_shifts(drifts: Sequence[Drift]) -> dict[str, dict[int, PolicyShift]]:
    """Average over the versions of a training, then estimate over trainings."""
    found: dict[str, dict[int, PolicyShift]] = {}
    for task, lag in sorted({(each.task, each.lag) for one in drifts for each in one.lags}):
        own = [[x for x in one.lags if (x.task, x.lag) == (task, lag)] for one in drifts]
        own = [lags for lags in own if lags]
        found.setdefault(task, {})[lag] = PolicyShift(
            divergence=estimate([fmean(x.divergence for x in lags) for lags in own]),
            span=(
                min(x.divergence for lags in own for x in lags),
                max(x.divergence for lags in own for x in lags),
            ),
            effective=estimate([fmean(x.effective for x in lags) for lags in own]),
            largest=max(x.largest for lags in own for x in lags),
            pairs=sum(map(len, own)),
        )
    return found


def together(drifts: Sequence[Drift]) -> dict[str, dict[int, Together]]:
    """Estimate over trainings."""
    curves: dict[tuple[str, int], dict[int, dict[int, float]]] = {}
    histories: dict[tuple[str, int], list[float]] = {}
    for one in drifts:
        for each in one.mixtures:
            curve = pass_curve(each.solved, one.design.attempts)
            curves.setdefault((each.task, each.lag), {})[one.seed] = curve
            histories.setdefault((each.task, each.lag), []).append(fmean(each.histories))
    found: dict[str, dict[int, Together]] = {}
    for (task, lag), seeds in sorted(curves.items()):
        alone = curves[task, 0]
        versus = {k: _difference(seeds, alone, k) for k in next(iter(seeds.values()))}
        found.setdefault(task, {})[lag] = Together(
            passed={k: estimate([curve[k] for curve in seeds.values()]) for k in versus},
            versus={k: each for k, each in versus.items() if each and lag},
            histories=estimate(histories[task, lag]),
        )
    return found


def _difference(
    seeds: Mapping[int, Mapping[int, float]], others: Mapping[int, Mapping[int, float]], k: int
) -> Estimate | None:
    return paired_estimate(
        {seed: curve[k] for seed, curve in seeds.items()},
        {seed: curve[k] for seed, curve in others.items()},
    )


def _skills(training: Training, task: str, acting: str) -> list[Skill]:
    """Return an actor's skills; for `current` the mixture is the policy itself."""
    own = [each for each in training.skills if each.task == task]
    exact = [each for each in own if each.acting == acting]
    return exact or ([] if acting == POLICY or training.arm != CURRENT else own)


def _measured(seeds: Seeds, task: str, name: str) -> dict[int, float]:
    """Return one measure of COMPARED by seed, without seeds that lack it."""
    found = {seed: _one(each, task, name) for seed, each in seeds.items()}
    return {seed: value for seed, value in found.items() if value is not None}


def _one(training: Training, task: str, name: str) -> float | None:
    if name == WITHIN:
        return training.within.get(task)
    if name == CHECKED:
        later = [check.success[task] for check in training.checks[1:]]
        return fmean(later) if later else None
    k = int(name.partition("@")[2])
    curves = [
        pass_curve(skill.solved, training.design.attempts)
        for skill in _skills(training, task, POLICY)
    ]
    return curves[0].get(k) if curves else None


def _curve(seeds: Seeds, task: str) -> list[tuple[float, Estimate]]:
    """Return the n-th checks over seeds, as many as every seed has."""
    checks = [each.checks for each in seeds.values()]
    return [
        (fmean(c.tokens for c in same), estimate([c.success[task] for c in same]))
        for same in zip(*checks, strict=False)
    ]


def _over(seeds: Seeds, task: str, measure: Measure) -> Estimate | None:
    found = [measure(each, task) for each in seeds.values()]
    known = [value for value in found if value is not None]
    return estimate(known) if known else None


def _last(training: Training, name: str, task: str) -> float | None:
    return float(getattr(training.points[-1], name)[task]) if training.points else None


def _spread(training: Training, task: str) -> float | None:
    return _mean(training, lambda point: point.spread.get(task))


def _mean(training: Training, of: Callable[[Point], float | None]) -> float | None:
    found = [of(point) for point in training.points]
    known = [value for value in found if value is not None]
    return fmean(known) if known else None
