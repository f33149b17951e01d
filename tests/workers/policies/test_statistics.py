"""What adaptive weights are learned from, through the database and the pool's own thread."""

import random
import threading
from contextlib import closing
from typing import Any

import pytest
from run_transitions import World
from sqlalchemy import event

from agentrl.core.config.config import Config
from agentrl.core.config.sections.episodes import Sampling
from agentrl.core.config.sections.tasks import Task
from agentrl.db.queries.episode_outcomes import EpisodeOutcome
from agentrl.db.store import Store
from agentrl.ops.processes.worker import pool_config
from agentrl.workers.policies.pool import PolicyPool, Sampler
from agentrl.workers.policies.statistics import attempts, off_policy, read_weights

CONFIG = Config(
    tasks={"dbbench": Task(), "kg": Task()}, sampling=Sampling(strategy="adaptive", floor=0.1)
)
DRAWN = pool_config(CONFIG)
LIVE = ["current", "lagged(4)"]


@pytest.fixture
def world(store: Store) -> World:
    return World.begin(store)


def test_shares_are_of_steps_group_by_group() -> None:
    played = [
        EpisodeOutcome("g0", True, {"current": 3, "lagged(4)": 1}),
        EpisodeOutcome("g0", False, {"current": 2}),
        EpisodeOutcome("g1", False, {"current": 1}),
    ]
    (first, second), (third,) = attempts(played)
    assert (first.shares, first.solved) == ({"current": 0.75, "lagged(4)": 0.25}, True)
    assert (second.shares, third.shares) == ({"current": 1.0}, {"current": 1.0})


def test_metrics_are_averaged_over_tokens_and_parts_without_tokens_say_nothing() -> None:
    """KL: (100 · 0.1 + 300 · 0.3) / 400. 1/ESS: (100 / 0.5 + 300 / 0.25) / 400 = 3.5."""
    names = ("loss_tokens", "mismatch_k3", "effective_sample_size")
    rows: list[dict[str, Any]] = [
        {f"kg/{name}_lagged": value for name, value in zip(names, values, strict=True)}
        for values in ((100.0, 0.1, 0.5), (300.0, 0.3, 0.25))
    ]
    found = off_policy([*rows, {"kg/loss_tokens_lagged": 0.0}, {}], "kg")
    assert found.kl_lagged == pytest.approx(0.25)
    assert found.ess_lagged == pytest.approx(1 / 3.5)
    assert found.kl_fresh != found.kl_fresh  # unknown
    assert off_policy(rows, "dbbench").ess_lagged != found.ess_lagged


def test_what_ended_in_the_database_moves_the_weights(world: World) -> None:
    """Nobody knows anything; then episodes succeed where half of their steps are lagged."""
    weigh = read_weights(world.store, world.run_id, DRAWN)["dbbench"]
    before = [weigh(LIVE, random.Random(seed))["lagged(4)"] for seed in range(40)]
    assert min(before) == pytest.approx(0.1)
    assert sum(weight > 0.2 for weight in before) < 20
    for place in range(12):
        world.ready(place, (0.0, 0.0, 1.0, 1.0))
    world.sql("UPDATE steps SET track = 'current' WHERE episode_id IN (SELECT episode_id FROM"
              " episodes WHERE score < 1)")  # fmt: skip
    weigh = read_weights(world.store, world.run_id, DRAWN)["dbbench"]
    after = [weigh(LIVE, random.Random(seed))["lagged(4)"] for seed in range(40)]
    assert sum(0.2 < weight < 0.6 for weight in after) >= 28
    assert read_weights(world.store, world.run_id, DRAWN)["kg"](
        LIVE, random.Random(0)
    ).keys() == set(LIVE)


def test_queries_do_not_grow_with_episodes_or_steps(world: World) -> None:
    """Sixty-four episodes draw 64 000 steps between two looks of the pool."""
    world.ready(0)
    asked: list[str] = []

    def count(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        asked.append(statement)

    event.listen(world.store.engine, "before_cursor_execute", count)
    with closing(PolicyPool.of_run(world.store, world.run_id, DRAWN, period_s=3600.0)) as pool:
        pool.refresh(60.0)
        episodes = [
            Sampler(pool, CONFIG.sampling, str(number), pool.weigh("dbbench"))
            for number in range(64)
        ]
        begun = len(asked)
        for _ in range(1000):
            for sampler in episodes:
                sampler.draw(wait_s=0.0, stop=threading.Event())
        assert len(pool.live()) == 2
    selects = [each for each in asked[begun:] if each.startswith("SELECT")]
    assert selects == []
