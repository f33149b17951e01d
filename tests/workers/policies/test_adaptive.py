"""Adaptive weights against bandits whose best answer is known, and against hand-worked numbers."""

import random
from collections import deque
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.core.config.sections.episodes import Sampling
from agentrl.workers.policies.adaptive import (
    Attempt,
    OffPolicy,
    best_weights,
    chance_of_spread,
    learn,
    make_weigher,
    share_cap,
)

CURRENT, LAGGED = "current", "lagged(4)"
CONFIG = Sampling(strategy="adaptive", floor=0.05, window_groups=64)
SIZE, STEPS = 8, 8
HALF = OffPolicy(kl_lagged=2 * CONFIG.max_kl)  # allows a lagged share of one half

Item = Callable[[random.Random], Mapping[str, float]]  # the chance of each track on a new item


def play(item: Item, groups: int, *, off: OffPolicy = HALF, seed: int = 0) -> list[float]:
    """The lagged weight by which each group was dispatched, learning after every second group."""
    source, window = random.Random(seed), deque[list[Attempt]](maxlen=CONFIG.window_groups)
    history = []
    for number in range(groups):
        if number % 2 == 0:
            weigh = make_weigher(learn(window), off, CONFIG, SIZE)
        chances, weighed = item(source), []
        group = []
        for member in range(SIZE):
            weights = weigh([CURRENT, LAGGED], random.Random(f"{seed}/{number}/{member}"))
            weighed.append(weights[LAGGED])
            lagged = sum(source.random() < weights[LAGGED] for _ in range(STEPS)) / STEPS
            chance = (1 - lagged) * chances[CURRENT] + lagged * chances[LAGGED]
            shares = {CURRENT: 1 - lagged, LAGGED: lagged}
            group.append(Attempt(shares, source.random() < chance))
        window.append(group)
        history.append(float(np.mean(weighed)))
    return history


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]


def always(current: float, lagged: float) -> Item:
    return lambda _: {CURRENT: current, LAGGED: lagged}


@pytest.mark.parametrize("seed", SEEDS)
def test_the_share_of_a_policy_that_finds_what_current_misses_rises_and_stays(seed: int) -> None:
    history = play(always(0.0, 0.6), 160, seed=seed)
    assert np.mean(history[64:]) > 0.4
    assert min(history[64:]) > 0.25


@pytest.mark.parametrize("seed", SEEDS)
def test_what_current_finds_on_other_items_counts_too(seed: int) -> None:
    """Each solves the items that the other does not: half of all, and never a group with spread."""

    def either(source: random.Random) -> Mapping[str, float]:
        first = source.random() < 0.5
        return {CURRENT: float(first), LAGGED: float(not first)}

    assert np.mean(play(either, 160, seed=seed)[64:]) > 0.35


@pytest.mark.parametrize("seed", SEEDS[:2])
@pytest.mark.parametrize("rate", [0.05, 0.2, 0.5])
def test_an_equal_policy_is_not_sampled_for_its_own_sake(rate: float, seed: int) -> None:
    """Noise alone makes one look better now and then."""
    history = play(always(rate, rate), 160, off=OffPolicy(), seed=seed)
    assert np.mean(history[64:]) < 0.2


@pytest.mark.parametrize("seed", SEEDS)
def test_a_worse_policy_falls_to_the_floor(seed: int) -> None:
    assert np.mean(play(always(0.5, 0.1), 160, seed=seed)[64:]) < 0.08


@pytest.mark.parametrize("seed", SEEDS)
def test_weights_follow_a_policy_that_gets_worse(seed: int) -> None:
    """Current collapses after 96 groups; the window forgets that it was good."""
    done = iter(range(1000))

    def collapsing(_: random.Random) -> Mapping[str, float]:
        return {CURRENT: 0.5 if next(done) < 96 else 0.01, LAGGED: 0.5}

    history = play(collapsing, 240, seed=seed)
    assert np.mean(history[64:96]) < 0.1
    assert np.mean(history[176:]) > 0.4


@pytest.mark.parametrize(
    ("off", "expected"),
    [
        (OffPolicy(), 1.0),
        (OffPolicy(kl_lagged=0.4), 0.25),  # 0.1 / 0.4
        (OffPolicy(kl_fresh=0.02, kl_lagged=0.42), 0.2),  # 0.08 / 0.4
        (OffPolicy(kl_fresh=0.2, kl_lagged=0.4), 0.0),  # current alone is too far already
        (OffPolicy(ess_lagged=0.2), 0.25),  # 1 / 0.5 = 2 = (1 - s) + 5 s
        (OffPolicy(ess_fresh=0.8, ess_lagged=0.2), 0.2),  # 2 = 1.25 (1 - s) + 5 s
        (OffPolicy(ess_fresh=0.4, ess_lagged=0.2), 0.0),
        (OffPolicy(kl_lagged=0.4, ess_lagged=0.1), 1 / 9),  # the tighter of the two
        (OffPolicy(kl_lagged=0.01, ess_lagged=0.99), 1.0),
    ],
)
def test_constraints_bind_at_the_share_worked_out_by_hand(off: OffPolicy, expected: float) -> None:
    assert share_cap(off, CONFIG) == pytest.approx(expected)
    weights = make_weigher(learn([]), off, CONFIG, SIZE)([CURRENT, LAGGED], random.Random(0))
    assert weights[LAGGED] <= max(expected, CONFIG.floor) + 1e-9


def test_the_lagged_share_stops_at_its_cap() -> None:
    """Current never succeeds and lagged always does; half the tokens may be lagged."""
    groups = [[Attempt({CURRENT: 1.0}, False), Attempt({LAGGED: 1.0}, True)] * 4] * 64
    weights = make_weigher(learn(groups), HALF, CONFIG, SIZE)([CURRENT, LAGGED], random.Random(0))
    assert weights == pytest.approx({CURRENT: 0.5, LAGGED: 0.5}, abs=0.15)
    tight = OffPolicy(kl_lagged=4 * CONFIG.max_kl)
    weights = make_weigher(learn(groups), tight, CONFIG, SIZE)([CURRENT, LAGGED], random.Random(0))
    assert weights == pytest.approx({CURRENT: 0.75, LAGGED: 0.25})


def test_the_chance_of_spread_is_that_of_the_moments() -> None:
    """Two of two: p = ½ for all items: ½. Uniform p: 1 − 2/3. All or nothing: none."""
    chances = chance_of_spread(np.array([0.5] * 3), np.array([0.0, 1 / 12, 0.25]), 2)
    assert chances == pytest.approx([0.5, 1 / 3, 0.0], abs=1e-3)
    uniform = chance_of_spread(np.array([0.5]), np.array([1 / 12]), 8)
    assert uniform == pytest.approx([1 - 2 / 9])  # all k of 0…8 are equally likely
    certain = chance_of_spread(np.array([0.3]), np.array([0.0]), 8)
    assert certain == pytest.approx([1 - 0.3**8 - 0.7**8], abs=1e-3)


def test_a_track_alone_has_the_mean_of_a_beta() -> None:
    groups = [[Attempt({CURRENT: 1.0}, member < 3)] for member in range(10)]
    assert learn(groups).rates.mean == pytest.approx([(1 + 3) / (2 + 10)])


def test_what_tracks_are_worth_is_told_apart_from_mixed_episodes() -> None:
    """Shared credit would give both the success of the mixture."""
    source, groups = random.Random(3), []
    for _ in range(400):
        group = []
        for _ in range(SIZE):
            lagged = source.randrange(STEPS + 1) / STEPS
            chance = 0.2 * (1 - lagged) + 0.8 * lagged
            group.append(Attempt({CURRENT: 1 - lagged, LAGGED: lagged}, source.random() < chance))
        groups.append(group)
    assert learn(groups).rates.mean == pytest.approx([0.2, 0.8], abs=0.05)


def test_how_items_differ_for_two_tracks_is_learned() -> None:
    """Items are hard for one where they are easy for the other: variances ¼, covariance −¼."""
    source, groups = random.Random(3), []
    for _ in range(400):
        solved = source.choice([CURRENT, LAGGED])
        group = []
        for _ in range(SIZE):
            track = source.choice([CURRENT, LAGGED])
            group.append(Attempt({track: 1.0}, track == solved))
        groups.append(group)
    assert learn(groups).covariances.mean == pytest.approx([0.25, -0.25, 0.25], abs=0.04)


TRACKS = st.lists(
    st.sampled_from([CURRENT, LAGGED, "lagged(8)", "pinned(c)", "external(t)"]),
    min_size=1,
    max_size=5,
    unique=True,
).map(sorted)
HEARD = st.lists(
    st.lists(
        st.builds(
            Attempt,
            st.one_of(
                st.sampled_from([{CURRENT: 1.0}, {LAGGED: 1.0}, {CURRENT: 0.25, LAGGED: 0.75}]),
            ),
            st.booleans(),
        ),
        max_size=6,
    ),
    max_size=6,
)
NUMBER = st.floats(0.0, 10.0) | st.just(float("nan"))


@settings(max_examples=60, deadline=None)
@given(
    tracks=TRACKS,
    groups=HEARD,
    off=st.builds(OffPolicy, NUMBER, NUMBER, NUMBER, NUMBER),
    floor=st.floats(0.0, 1.0),
    seed=st.integers(0, 99),
)
def test_weights_are_a_distribution_within_floor_and_cap(
    tracks: list[str], groups: list[list[Attempt]], off: OffPolicy, floor: float, seed: int
) -> None:
    config = Sampling(strategy="adaptive", floor=floor)
    weigh = make_weigher(learn(groups), off, config, SIZE)
    weights = weigh(tracks, random.Random(seed))
    assert weights == weigh(tracks, random.Random(seed))
    assert list(weights) == tracks
    assert sum(weights.values()) == pytest.approx(1.0)
    assert min(weights.values()) >= min(floor, 1 / len(tracks)) - 1e-9
    if CURRENT in tracks:
        others = len(tracks) - 1
        least = min(floor, 1 / len(tracks)) * others
        assert 1.0 - weights[CURRENT] <= max(share_cap(off, config), least) + 1e-9


def test_without_current_all_tracks_weigh_the_same() -> None:
    weights = best_weights(["a", "b"], lambda each: each[:, 0], floor=0.1, cap=0.5)
    assert weights == {"a": 0.5, "b": 0.5}
