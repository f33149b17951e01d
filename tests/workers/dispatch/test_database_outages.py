"""Attempts, leases and deadlines when the database was unavailable, or its clock went back."""

import dataclasses
import time

import pytest
from dispatching import PLAN, make_dispatcher, stopped_event, tick
from run_transitions import World
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from agentrl.broker.messages import RunEpisode
from agentrl.core.types import EpisodeState
from agentrl.db.registry import checkpoints, policy_servers
from agentrl.db.transitions import dispatcher_lease, due_episodes


def _pass_time(world: World, seconds: float) -> None:
    """Let so many seconds pass in which the database is away; negative: its clock goes back."""
    for statement in (
        "UPDATE runs SET dispatcher_until = dispatcher_until - :s WHERE dispatcher_until > 0",
        "UPDATE workers SET lease_until = lease_until - :s, started_at = started_at - :s",
        "UPDATE episodes SET due_at = due_at - :s, queued_at = queued_at - :s,"
        " started_at = started_at - :s, ended_at = ended_at - :s",
        "UPDATE policy_servers SET lease_until = lease_until - :s, started_at = started_at - :s",
    ):
        world.sql(statement, s=seconds)


@pytest.mark.parametrize("ticks_before", [True, False])
@pytest.mark.parametrize("seconds", [20.0, 600.0, 86400.0])
def test_attempts_and_bodies_are_not_lost_while_the_database_is_unavailable(
    world: World, seconds: float, *, ticks_before: bool
) -> None:
    """`ticks_before`: whether the dispatcher ticks between the claims and the outage."""
    dispatcher = make_dispatcher(world)
    first, *others = tick(dispatcher)
    claimed = world.claim(first.episode_id, first.fence)
    finished = world.claim(others[0].episode_id, others[0].fence)
    assert claimed
    assert finished
    assert world.finish(finished, world.body(finished))
    if ticks_before:
        tick(dispatcher)
    _pass_time(world, seconds)
    assert not [each for each in tick(dispatcher) if each.fence > 1]
    assert world.episode(first.episode_id).state == EpisodeState.RUNNING
    assert world.episode(others[0].episode_id).state == EpisodeState.FINISHED
    assert claimed.started_at is not None
    shifted = dataclasses.replace(claimed, started_at=claimed.started_at - seconds)
    assert world.finish(shifted, world.body(shifted))


def test_an_attempt_that_was_lost_before_an_outage_is_issued_again_after_it(world: World) -> None:
    dispatcher = make_dispatcher(world)
    (first, *_) = tick(dispatcher)
    assert world.claim(first.episode_id, first.fence)
    world.sql("UPDATE workers SET lease_until = lease_until - 1000")
    _pass_time(world, 600.0)
    assert [each.fence for each in tick(dispatcher) if each.episode_id == first.episode_id] == [2]


def test_a_worker_whose_lease_an_outage_almost_ended_has_time_to_renew_it(world: World) -> None:
    dispatcher = make_dispatcher(world, lease_s=15.0)
    first, *_ = tick(dispatcher)
    assert world.claim(first.episode_id, first.fence)
    world.sql("UPDATE workers SET lease_until = :u", u=world.store.clock() + 14.0)
    for seconds in (13.5, 0.8):
        _pass_time(world, seconds)
        tick(dispatcher)
    assert world.episode(first.episode_id).fence == 1


@pytest.mark.parametrize("seconds", [60.0, 86400.0])
def test_no_attempt_is_lost_in_an_outage_after_the_dispatcher_ended_in_order(
    world: World, seconds: float
) -> None:
    ended = make_dispatcher(world)
    first, *_ = tick(ended)
    assert world.claim(first.episode_id, first.fence)
    ended.serve(lambda _: None, stopped_event())
    _pass_time(world, seconds)
    tick(make_dispatcher(world))
    assert world.episode(first.episode_id).fence == 1


def test_no_attempt_is_lost_in_an_outage_while_the_dispatcher_is_busy_sending(
    world: World,
) -> None:
    sent: list[str] = []
    dispatcher = make_dispatcher(world, clock=lambda: 61.0 * len(sent))

    def send(command: RunEpisode) -> None:
        sent.append(command.episode_id)
        assert world.claim(command.episode_id, deadline_s=600.0)
        _pass_time(world, 61.0)

    dispatcher.tick(send)
    tick(dispatcher)
    assert {world.episode(name).fence for name in sent} == {1}


def test_a_worker_that_died_is_lost_within_its_lease_although_the_broker_is_slow(
    world: World,
) -> None:
    sent: list[str] = []
    dispatcher = make_dispatcher(world, clock=lambda: 1.5 * len(sent))

    def send(command: RunEpisode) -> None:
        if not sent:
            assert world.claim(command.episode_id, deadline_s=600.0)
            world.sql("UPDATE workers SET lease_until = :u", u=world.store.clock() + 10.0)
        sent.append(command.episode_id)
        _pass_time(world, 1.5)

    dispatcher.tick(send)
    assert 1.5 * len(sent) > 10.0
    tick(dispatcher)
    assert world.episode(sent[0]).fence == 2


@pytest.mark.parametrize("is_outage_at_end_of_tick", [False, True])
def test_what_policy_servers_serve_stays_so_when_the_database_was_unavailable(
    world: World, *, is_outage_at_end_of_tick: bool
) -> None:
    """In the last seconds of a tick, the dispatcher has yet to look for killed servers."""
    dispatcher, away_s = make_dispatcher(world), policy_servers.AWAY_S + 120.0

    def send(_command: RunEpisode) -> None:
        nonlocal away_s
        _pass_time(world, away_s)
        away_s = 0.0

    if is_outage_at_end_of_tick:
        dispatcher.tick(send)
    else:
        tick(dispatcher)
        _pass_time(world, away_s)
    served = {f"{world.run_id}-v0"}
    for _ in range(2):
        tick(dispatcher)
        assert world.store.ask(lambda s: checkpoints.checkpoints_in_use(s, world.run_id)) == served
        policies = world.store.ask(lambda s: checkpoints.live_policies(s, world.run_id))
        assert {policy.checkpoint_id for policy in policies} == served


def test_a_worker_that_died_while_the_database_was_away_is_lost_within_a_lease(
    world: World,
) -> None:
    dispatcher, lease_s = make_dispatcher(world, lease_s=15.0), 15.0
    first, *_ = tick(dispatcher)
    assert world.claim(first.episode_id, first.fence)
    _pass_time(world, 3600.0)
    world.sql("UPDATE workers SET lease_until = :u", u=world.store.clock() - 20.0)
    tick(dispatcher)
    assert world.episode(first.episode_id).fence == 1
    ((until,),) = world.ask("SELECT lease_until FROM workers")
    assert until <= world.store.clock() + lease_s


@pytest.mark.parametrize("deadline", ["workers SET lease_until", "episodes SET due_at"])
def test_leases_and_deadlines_end_although_every_tick_takes_seconds(
    world: World, deadline: str
) -> None:
    dispatcher, left_s = make_dispatcher(world), 10.0
    (first, *_) = tick(dispatcher)
    assert world.claim(first.episode_id, first.fence)
    world.sql(f"UPDATE {deadline} = :u", u=world.store.clock() + left_s)
    ticks = 0
    while world.episode(first.episode_id).fence == 1:
        assert ticks <= left_s / dispatcher_lease.ORDINARY_S
        _pass_time(world, 4.0)
        tick(dispatcher)
        ticks += 1
    assert ticks > 1


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
def test_no_attempt_is_lost_while_no_worker_can_renew_its_lease(world: World) -> None:
    """CREATE INDEX takes such a lock on `workers`."""
    dispatcher = make_dispatcher(world)
    (first, *_) = tick(dispatcher)
    assert world.claim(first.episode_id, first.fence)
    world.sql("UPDATE workers SET lease_until = 0")
    with world.store.engine.begin() as beside:
        beside.execute(text("LOCK TABLE workers IN SHARE MODE"))
        with world.store.write() as session:
            session.execute(text("SET LOCAL lock_timeout = 50"))
            with pytest.raises(DBAPIError, match="lock timeout"):
                due_episodes.expired_attempts(session, world.run_id)
            session.rollback()
    assert world.episode(first.episode_id).state == EpisodeState.RUNNING
    tick(dispatcher)
    assert world.episode(first.episode_id).fence == 2


@pytest.mark.parametrize("seconds", [20.0, 86400.0])
def test_a_worker_that_dies_as_the_clock_goes_back_is_lost_within_its_lease(
    world: World, seconds: float
) -> None:
    dispatcher, began = make_dispatcher(world), time.monotonic()
    first, second, *_ = tick(dispatcher)
    assert world.claim(first.episode_id, first.fence)
    _pass_time(world, -seconds)
    tick(dispatcher)
    spent_s = time.monotonic() - began  # the dispatcher cannot tell it from the clock's step
    clock, longest_s = world.store.clock() + spent_s + 1.0, 60.0
    leases = "SELECT lease_until FROM workers UNION SELECT lease_until FROM policy_servers"
    assert max(until for (until,) in world.ask(leases)) <= clock + longest_s
    assert world.episode(second.episode_id).due_at <= clock + PLAN.claim_timeout_s
    world.sql("UPDATE workers SET lease_until = lease_until - :s", s=longest_s + spent_s + 1.0)
    assert [each.fence for each in tick(dispatcher) if each.episode_id == first.episode_id] == [2]


@pytest.mark.parametrize("behind_s", [0.0, 50.0])
def test_a_body_in_the_queue_of_a_recorder_is_not_lost_after_the_clock_went_back(
    world: World, behind_s: float
) -> None:
    """`behind_s`: since when the recorder's queue has not been empty."""
    dispatcher = make_dispatcher(world)
    first, *_ = tick(dispatcher)
    _pass_time(world, -600.0)
    recorded_until = world.store.clock() + 600.0 - behind_s
    world.sql("UPDATE runs SET recorded_until = :u", u=recorded_until)
    tick(dispatcher)
    claimed = world.claim(first.episode_id, first.fence)
    assert claimed
    assert world.finish(claimed, world.body(claimed), body_timeout_s=-1.0)
    assert tick(dispatcher) == []
    world.caught_up()
    assert [each.fence for each in tick(dispatcher)] == [2]


def test_a_lease_from_before_the_clock_went_back_does_not_keep_a_successor_out(
    world: World,
) -> None:
    tick(make_dispatcher(world))
    killed = world.run().dispatcher
    successor = make_dispatcher(world)
    tick(successor)
    assert world.run().dispatcher == killed
    world.sql("UPDATE runs SET dispatcher_until = dispatcher_until + 86400")
    tick(successor)
    assert world.run().dispatcher != killed
