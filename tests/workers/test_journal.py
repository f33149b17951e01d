"""The group commit of a worker's steps."""

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from run_transitions import World, run_concurrently
from running import eventually
from sqlalchemy import event
from steps_kept import kept, new_step
from store_outage import Outage

from agentrl.core.errors import StoreUnavailable
from agentrl.core.types import Reason, Status
from agentrl.db.store import Store
from agentrl.db.transitions import episodes
from agentrl.workers.journal import ClaimLapsed, GroupCommit

TOGETHER = 16


@pytest.fixture
def world(store: Store) -> World:
    return World.begin(store)


@pytest.fixture
def commits(world: World) -> Iterator[GroupCommit]:
    opened = GroupCommit(world.store, commit_s=0.2)
    opened.start()
    with closing(opened):
        yield opened


def test_steps_of_many_attempts_share_a_transaction(world: World, commits: GroupCommit) -> None:
    claims = world.claimed(world.admit(0, size=TOGETHER)[0])
    transactions: list[object] = []
    event.listen(commits._store.engine, "commit", transactions.append)
    run_concurrently(*[lambda c=c: commits.store(new_step(world, c, 0)) for c in claims])  # type: ignore[misc]
    assert len(kept(world)) == TOGETHER
    assert len(transactions) < TOGETHER


def test_a_step_of_an_attempt_that_lost_its_episode_is_refused_beside_others(
    world: World, commits: GroupCommit
) -> None:
    first, second = world.claimed(world.admit(0, size=2)[0])
    world.store.transact(
        lambda s: episodes.retry(s, first, Reason.LOST, max_attempts=3, detail=Status.LOST)
    )
    refused: list[Exception] = []

    def zombie() -> None:
        try:
            commits.store(new_step(world, first, 0))
        except ClaimLapsed as error:
            refused.append(error)

    run_concurrently(zombie, lambda: commits.store(new_step(world, second, 0)))
    assert len(refused) == 1
    assert {e for (e,) in world.ask("SELECT episode_id FROM journal")} == {second.episode_id}


def test_a_step_waits_until_the_store_is_back(world: World, commits: GroupCommit) -> None:
    claimed = world.claimed(world.admit(0)[0])[0]
    outage = Outage(commits._store)
    outage.begin()
    waiting = threading.Thread(target=commits.store, args=(new_step(world, claimed, 0),))
    waiting.start()
    eventually(lambda: outage.refused > 1, within_s=60, text=lambda: "nobody tried")
    assert waiting.is_alive()
    outage.end()
    waiting.join(60)
    assert kept(world) == [(1, 0)]


def test_closing_stores_what_waits_and_refuses_what_comes_later(world: World) -> None:
    claimed = world.claimed(world.admit(0)[0])[0]
    commits = GroupCommit(world.store, commit_s=600.0)
    commits.start()
    commits.store(new_step(world, claimed, 0))
    waiting = threading.Thread(target=commits.store, args=(new_step(world, claimed, 1),))
    waiting.start()
    eventually(lambda: commits._batch.steps, within_s=60, text=lambda: "no step came")
    commits.close()
    waiting.join(60)
    assert kept(world) == [(1, 0), (1, 1)]
    with pytest.raises(StoreUnavailable, match="closed"):
        commits.store(new_step(world, claimed, 2))
