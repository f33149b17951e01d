"""Strategy `adaptive`: track weights that most likely give groups with spread. Pure functions.

    a task's last groups ─▶ learn ─▶ Beliefs ──▶ weigh(live tracks, seed): draw, search ─▶ weights
    its last updates' metrics ─▶ OffPolicy ─▶ share_cap ───▲

Model: on an item g, an episode acted by track k alone succeeds with probability θ_gk, one that
drew a share s_k of its steps from each with Σ_k s_k θ_gk. Over items, θ_g has mean θ and
covariance C. Under weights w an item's success has mean m = wᵀθ and variance v = wᵀCw. With a Beta
of these moments, ν = m(1 − m)/v − 1, a group of G episodes has spread with probability
1 − Π_{i<G} (mν + i)/(ν + i) − Π_{i<G} ((1 − m)ν + i)/(ν + i).

Estimator: θ by Bayesian linear regression of success on the shares, prior N(½, ⅛), noise ¼, raised
by the design effect 1 + (n − 1)ρ of members that share an item. C by the same on products of two
members' residuals, E[r_i r_j] = s_iᵀ C s_j, prior N(1/12, 1/144) for every entry.

Choice: three draws from both posteriors (Thompson sampling). A candidate gives `floor` to each
track, up to the cap to one of them, and the rest to `current`. Its gain is the smallest over the
draws; among candidates within 0.01 of the best, the one nearest to `current` wins.

docs/sampling.md describes the constraints and the limits.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from agentrl.core.config.sections.episodes import Sampling
from agentrl.core.types import CURRENT

Floats = NDArray[np.float64]
Weigh = Callable[[Sequence[str], random.Random], Mapping[str, float]]  # the live tracks' weights

INDIFFERENT = 0.01  # chance of spread that is not worth a token off policy
POINTS = 21  # shares looked at for each track
DRAWS = 3  # all of them must see a gain


@dataclass(frozen=True, slots=True)
class Prior:
    """Of every number of its kind: its mean and precision, and the precision of an observation."""

    mean: float
    precision: float
    noise: float


RATE = Prior(1 / 2, 8.0, 4.0)  # noise: of a coin; so a track alone has the mean of a Beta(1, 1)
COVARIANCE = Prior(1 / 12, 144.0, 16.0)  # as if all tracks found the same items hard


@dataclass(frozen=True, slots=True)
class Attempt:
    """An episode that ended. `shares`: of its steps by the track that sampled them, sum 1."""

    shares: Mapping[str, float]
    solved: bool


@dataclass(frozen=True, slots=True)
class OffPolicy:
    """How far tokens are from the policy trained: KL(μ ‖ π) and E[w]²/E[w²], NaN where unknown."""

    kl_fresh: float = math.nan
    kl_lagged: float = math.nan
    ess_fresh: float = math.nan
    ess_lagged: float = math.nan


@dataclass(frozen=True, slots=True, eq=False)
class Gaussian:
    """`mean` [D] and `root` [D, D], root · rootᵀ the covariance."""

    mean: Floats
    root: Floats

    def draw(self, source: random.Random) -> Floats:
        unit = np.array([source.gauss(0.0, 1.0) for _ in range(self.mean.size)])
        found: Floats = self.mean + self.root @ unit
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Beliefs:
    """What is known of K tracks on one task.

    `rates` [K]: an item's expected success where the track alone acts. `covariances` [K(K+1)/2],
    upper triangle: of those successes from item to item.
    """

    tracks: tuple[str, ...]
    rates: Gaussian
    covariances: Gaussian


def learn(groups: Sequence[Sequence[Attempt]]) -> Beliefs:
    """Beliefs from the last groups of one task, those without spread among them."""
    tracks = tuple(sorted({track for group in groups for each in group for track in each.shares}))
    shares = [_shares(group, tracks) for group in groups]
    solved = [np.array([each.solved for each in group], np.float64) for group in groups]
    trust = replace(RATE, noise=RATE.noise / _design_effect(solved))
    rates = _posterior(list(zip(shares, solved, strict=True)), trust, len(tracks))
    residuals = [each - row @ rates.mean for row, each in zip(shares, solved, strict=True)]
    pairs = [_pairs(row, each) for row, each in zip(shares, residuals, strict=True)]
    return Beliefs(
        tracks, rates, _posterior(pairs, COVARIANCE, len(tracks) * (len(tracks) + 1) // 2)
    )


def share_cap(off: OffPolicy, config: Sampling) -> float:
    """The largest share of tokens that other tracks than `current` may sample, in 0…1.

    So that the batch keeps KL ≤ `max_kl`, effective sample size ≥ `min_effective_sample_size`: KL
    and 1/ESS of the whole are means of its parts', weighed by their tokens.
    """
    bounds = [1.0]
    fresh, lagged = _value_or(off.kl_fresh, 0.0), off.kl_lagged
    if lagged > fresh:
        bounds.append((config.max_kl - fresh) / (lagged - fresh))
    fresh, lagged = (1 / max(_value_or(ess, 1.0), 1e-9) for ess in (off.ess_fresh, off.ess_lagged))
    if lagged > fresh:
        least = max(config.min_effective_sample_size, 1e-9)
        bounds.append((1 / least - fresh) / (lagged - fresh))
    return min(max(min(bounds), 0.0), 1.0)


def make_weigher(beliefs: Beliefs, off: OffPolicy, config: Sampling, group_size: int) -> Weigh:
    """The weights of one task's episodes until more is known."""
    cap = share_cap(off, config)

    def weigh(tracks: Sequence[str], source: random.Random) -> Mapping[str, float]:
        """Thompson: the weights of the largest gain that every draw of the tracks' worth grants."""
        drawn = [_draw_rates(beliefs, tracks, source) for _ in range(DRAWS)]

        def gain(weights: Floats) -> Floats:
            chances = []
            for rates, covariances in drawn:
                variances = ((weights @ covariances) * weights).sum(axis=1)
                chances.append(chance_of_spread(weights @ rates, variances, group_size))
            least: Floats = np.min([each - each[0] for each in chances], axis=0)
            return least

        return best_weights(tracks, gain, floor=config.floor, cap=cap)

    return weigh


def best_weights(
    tracks: Sequence[str], gain: Callable[[Floats], Floats], *, floor: float, cap: float
) -> dict[str, float]:
    """The weights within the constraints of highest `gain` ([P, n] → [P]), least off policy.

    Every track has `floor` or more; `current` has all that others may not or need not have. What is
    above the floors goes to one other track; the first candidate has nothing above them. Where
    floors exceed `cap`, floors hold. Without `current` nothing is on policy: all weigh the same.
    """
    others = [number for number, track in enumerate(tracks) if track != CURRENT]
    if len(others) in (0, len(tracks)):
        return dict.fromkeys(tracks, 1 / len(tracks))
    floor = min(floor, 1 / len(tracks))
    room = max(min(cap, 1.0 - floor) - floor * len(others), 0.0)
    extra = np.repeat(np.linspace(0.0, room, POINTS), len(others))
    candidates = np.full((extra.size, len(tracks)), floor)
    candidates[np.arange(extra.size), others * POINTS] += extra
    candidates[:, tracks.index(CURRENT)] = 1.0 - floor * len(others) - extra
    values = gain(candidates)
    good = values >= values.max() - INDIFFERENT
    least = extra == extra[good].min()
    chosen = candidates[np.argmax(np.where(good & least, values, -np.inf))]
    return dict(zip(tracks, chosen.tolist(), strict=True))


def chance_of_spread(means: Floats, variances: Floats, group_size: int) -> Floats:
    """That neither all nor none of a group's members succeed, [P] each.

    An item's success is Beta with that mean and variance over items, so the chances that all G or
    none succeed are moments of the Beta; without variance, p^G and (1 − p)^G.
    """
    means = np.clip(means, 1e-6, 1.0 - 1e-6)
    most = means * (1.0 - means)
    total = most / np.clip(variances, 1e-6 * most, 0.999 * most) - 1.0
    every = none = np.ones_like(means)
    for step in range(group_size):
        every = every * (means * total + step) / (total + step)
        none = none * ((1.0 - means) * total + step) / (total + step)
    found: Floats = 1.0 - every - none
    return found


def _shares(group: Sequence[Attempt], tracks: Sequence[str]) -> Floats:
    """[n, K] shares of each episode."""
    rows = [[each.shares.get(track, 0.0) for track in tracks] for each in group]
    return np.array(rows, np.float64).reshape(len(group), len(tracks))


def _pairs(shares: Floats, residuals: Floats) -> tuple[Floats, Floats]:
    """What a group's n (n − 1) / 2 pairs say of covariances: features [·, K(K+1)/2], targets [·].

    E[rᵢ rⱼ] = sᵢᵀ C sⱼ. Rows are scaled so that the group counts as n − 1 pairs.
    """
    first, second = np.triu_indices(residuals.size, 1)
    both = shares[first][:, :, None] * shares[second][:, None, :]
    both = both + both.transpose(0, 2, 1)
    diagonal = np.arange(shares.shape[1])
    both[:, diagonal, diagonal] /= 2
    scale = math.sqrt(2 / max(residuals.size, 1))
    rows, columns = np.triu_indices(shares.shape[1])
    return both[:, rows, columns] * scale, residuals[first] * residuals[second] * scale


def _design_effect(solved: Sequence[Floats]) -> float:
    """How many members of a group tell as much as one alone: 1 + (n − 1) · correlation within."""
    several = [each for each in solved if each.size > 1]
    if not several:
        return 1.0
    rate = float(np.concatenate(several).mean())
    both = [each.sum() * (each.sum() - 1) / (each.size * (each.size - 1)) for each in several]
    alike = (float(np.mean(both)) - rate**2) / max(rate * (1.0 - rate), 1e-3)
    size = float(np.mean([each.size for each in several]))
    return 1.0 + (size - 1.0) * min(max(alike, 0.0), 1.0)


def _posterior(rows: Sequence[tuple[Floats, Floats]], prior: Prior, size: int) -> Gaussian:
    """Bayesian linear regression of targets [·] on features [·, size]."""
    matrix, vector = prior.precision * np.eye(size), np.full(size, prior.precision * prior.mean)
    for features, targets in rows:
        matrix += prior.noise * features.T @ features
        vector += prior.noise * features.T @ targets
    root = np.linalg.inv(np.linalg.cholesky(matrix)).T
    return Gaussian(np.linalg.solve(matrix, vector), root)


def _draw_rates(
    beliefs: Beliefs, tracks: Sequence[str], source: random.Random
) -> tuple[Floats, Floats]:
    """One draw for the live tracks: rates [n] and covariances [n, n]; prior ones for unheard."""
    known = len(beliefs.tracks)
    names = [*beliefs.tracks, *(track for track in tracks if track not in beliefs.tracks)]
    rates = _draw_prior(RATE, len(names), source)
    covariances = _symmetric(_draw_prior(COVARIANCE, len(names) * (len(names) + 1) // 2, source))
    rates[:known] = beliefs.rates.draw(source)
    covariances[:known, :known] = _symmetric(beliefs.covariances.draw(source))
    wanted = [names.index(track) for track in tracks]
    return np.clip(rates, 0.0, 1.0)[wanted], covariances[np.ix_(wanted, wanted)]


def _draw_prior(prior: Prior, size: int, source: random.Random) -> Floats:
    return np.array([source.gauss(prior.mean, prior.precision**-0.5) for _ in range(size)])


def _symmetric(upper: Floats) -> Floats:
    """[n, n] of an upper triangle, n (n + 1) / 2 numbers row by row."""
    size = (math.isqrt(8 * upper.size + 1) - 1) // 2
    matrix = np.zeros((size, size))
    rows, columns = np.triu_indices(size)
    matrix[rows, columns] = matrix[columns, rows] = upper
    return matrix


def _value_or(value: float, otherwise: float) -> float:
    return otherwise if math.isnan(value) else value
