"""Which episodes a dispatcher sends again: unclaimed ones, lost attempts and lost bodies."""

from typing import Any

import pytest
from dispatching import BOUND, make_dispatcher, tick
from run_transitions import World
from sqlalchemy import event

from agentrl.broker.messages import RunEpisode
from agentrl.core.telemetry import metrics
from agentrl.core.types import EpisodeState, GroupState, Reason
from agentrl.db.transitions import episodes, groups, runs
from agentrl.db.transitions.episodes import ClaimedEpisode


def test_a_command_that_no_worker_claimed_is_sent_again_with_the_same_fence(world: World) -> None:
    dispatcher = make_dispatcher(world, claim_timeout_s=0.001)
    assert sorted(tick(dispatcher), key=str) == sorted(tick(dispatcher), key=str)


def test_without_a_live_worker_a_command_is_sent_once(world: World) -> None:
    world.sql("UPDATE workers SET lease_until = 1")
    dispatcher = make_dispatcher(world, claim_timeout_s=0.001)
    first = tick(dispatcher)
    assert len(first) == BOUND * 2
    assert [tick(dispatcher) for _ in range(3)] == [[], [], []]
    world.sql("UPDATE workers SET lease_until = 1e12")
    assert sorted(tick(dispatcher), key=str) == sorted(first, key=str)


def test_a_lost_attempt_and_a_lost_body_are_issued_again_with_the_next_fence(world: World) -> None:
    dispatcher = make_dispatcher(world)
    command = tick(dispatcher)[0]
    assert world.claim(command.episode_id) is not None
    world.sql("UPDATE workers SET lease_until = 1")
    (again,) = tick(dispatcher)
    assert (again.episode_id, again.fence) == (command.episode_id, 2)
    world.sql("UPDATE workers SET lease_until = 1e12")
    claimed = world.claim(again.episode_id, 2)
    assert claimed is not None
    world.finish(claimed, world.body(claimed), body_timeout_s=-1.0)
    world.caught_up()
    (third,) = tick(dispatcher)
    assert (third.episode_id, third.fence) == (command.episode_id, 3)


def test_an_episode_that_kills_each_of_its_workers_fails_and_its_group_is_ready(
    world: World,
) -> None:
    dispatcher = make_dispatcher(world, max_attempts=3, group_size=3)
    killer, *others = sorted(command.episode_id for command in tick(dispatcher))[:3]
    for episode_id in others:
        claimed = world.claim(episode_id)
        assert claimed is not None
        assert world.finish(claimed, world.body(claimed))
    for fence in range(1, 4):
        assert world.claim(killer, fence) is not None
        world.sql("UPDATE workers SET lease_until = 0")
        again = [command for command in tick(dispatcher) if command.episode_id == killer]
        assert [command.fence for command in again] == ([fence + 1] if fence < 3 else [])
    row = world.episode(killer)
    assert (row.state, row.reason, row.attempts) == (EpisodeState.FAILED, Reason.LOST, 3)
    assert world.group(row.group_id).state == GroupState.READY
    ended = "SELECT reason, number FROM episode_outcomes WHERE state = 'failed'"
    assert world.ask(ended) == [("lost", 1)]


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
def test_an_attempt_that_finishes_as_it_is_given_up_counts_as_no_re_issue(world: World) -> None:
    dispatcher = make_dispatcher(world)
    command = tick(dispatcher)[0]
    claimed = world.claim(command.episode_id, deadline_s=-1.0)
    assert claimed
    running = [claimed]

    def finish_before(*given: Any) -> None:
        if "FOR UPDATE" in given[2] and running:  # the group's lock, which precedes the move
            attempt = running.pop()
            assert world.finish(attempt, world.body(attempt))

    event.listen(world.store.engine, "before_cursor_execute", finish_before)
    reissues = metrics.REISSUES.labels(reason=Reason.TIMEOUT)
    before = reissues._value.get()
    tick(dispatcher)
    assert world.episode(command.episode_id).state == EpisodeState.FINISHED
    assert reissues._value.get() == before


def _finish_without_body(world: World) -> RunEpisode:
    """Finish an episode whose body is not stored in time; return the command that repeats it."""
    (group_id,) = world.admit(90, size=2, task="a")
    claims = world.claimed(group_id)
    bodies = [world.body(claimed, 1.0) for claimed in claims]
    for claimed, body in zip(claims, bodies, strict=True):
        assert world.finish(claimed, body, body_timeout_s=-1.0)
    world.keep(bodies[1:])
    return RunEpisode(run_id=world.run_id, episode_id=claims[0].episode_id, fence=2)


def test_a_body_that_the_recorder_may_still_store_is_not_lost(world: World) -> None:
    """However long the recorder is away: a body is lost only after it has emptied its queue."""
    dispatcher = make_dispatcher(world, groups_per_update=1, max_staleness=0)
    again = _finish_without_body(world)
    for until in (world.run().recorded_until, world.store.clock() - 1000.0):
        world.sql("UPDATE runs SET recorded_until = :u", u=until)
        assert tick(dispatcher) == []
    world.caught_up()
    assert tick(dispatcher) == [again]


def test_the_deadline_decides_beside_a_recorder_that_reports_no_progress(
    world: World,
) -> None:
    """A recorder of an older version leaves the column's default, while a cluster is upgraded."""
    dispatcher = make_dispatcher(world, groups_per_update=1, max_staleness=0)
    again = _finish_without_body(world)
    world.sql("UPDATE runs SET recorded_until = 0")
    assert tick(dispatcher) == [again]


def test_an_episode_that_the_trainer_has_taken_is_not_issued_again(world: World) -> None:
    dispatcher = make_dispatcher(world, groups_per_update=1, max_staleness=0)
    again = _finish_without_body(world)
    world.caught_up()
    group_id = world.episode(again.episode_id).group_id
    epoch = world.run().trainer_epoch
    assert world.store.transact(lambda s: groups.take_groups(s, [group_id], epoch))
    assert tick(dispatcher) == []
    claimed = ClaimedEpisode.of(world.episode(again.episode_id))
    assert not world.store.transact(lambda s: episodes.lose_body(s, claimed, max_attempts=3))
    world.store.transact(lambda session: runs.begin_epoch(session, world.run_id))
    assert tick(dispatcher) == [again]
    assert not world.store.transact(lambda s: groups.take_groups(s, [group_id], epoch))
