import dataclasses
import threading
import time

import pytest
from dispatching import BOUND, PLAN, close, make_dispatcher, positions, stopped_event, tick
from run_transitions import World, run_concurrently
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from agentrl.broker.messages import RunEpisode
from agentrl.core.config.config import Config
from agentrl.core.config.sections.tasks import Task
from agentrl.core.config.sections.training import Trainer
from agentrl.core.errors import BrokerError, ConfigError
from agentrl.core.types import CURRENT, EpisodeState, GroupState, Reason, RunState
from agentrl.db.models.processes import PolicyServer
from agentrl.db.registry import policy_servers
from agentrl.db.store import Store
from agentrl.db.transitions import due_episodes, episodes, groups, refusals, runs
from agentrl.db.transitions.episodes import ClaimedEpisode
from agentrl.ops.processes.dispatcher import dispatcher_config
from agentrl.workers.dispatch.dispatcher import ADMITTED, AWAIT_S, Dispatcher


@pytest.fixture
def world(store: Store) -> World:
    return World.begin(store)


def test_a_dispatcher_outlasts_a_broker_that_is_away(world: World) -> None:
    stop, sent = threading.Event(), list[RunEpisode]()

    def send(command: RunEpisode) -> None:
        sent.append(command)
        if len(sent) == 1:
            raise BrokerError("away")
        stop.set()

    with capture_logs() as lines:
        make_dispatcher(world, claim_timeout_s=0.01).serve(send, stop)
    assert len(sent) > 1
    assert [line["event"] for line in lines if line.get("service") == "tasks broker"] == [
        "Waiting for a service that is unavailable",
        "Service is available again",
    ]


def test_a_dispatcher_whose_broker_is_away_ends_when_it_is_told_to(world: World) -> None:
    stop = threading.Event()

    def send(_command: RunEpisode) -> None:
        stop.set()
        raise BrokerError("away")

    make_dispatcher(world).serve(send, stop)
    assert world.ask("SELECT dispatcher_until FROM runs") == [(0.0,)]


def test_groups_are_admitted_up_to_the_bound_and_their_episodes_sent(world: World) -> None:
    dispatcher = make_dispatcher(world)
    sent = tick(dispatcher)
    assert len(sent) == BOUND * 2
    assert {command.fence for command in sent} == {1}
    assert {command.run_id for command in sent} == {world.run_id}
    assert tick(dispatcher) == []
    assert positions(world) == [0, 1, 2, 3]
    world.sql("UPDATE groups SET state = 'ready', pending = 0 WHERE position = 0")
    assert tick(dispatcher) == []
    world.sql("UPDATE groups SET state = 'filtered', closed_at = admitted_at WHERE position = 0")
    assert len(tick(dispatcher)) == 2
    assert positions(world) == [0, 1, 2, 3, 4]


def served(world: World, version: int) -> None:
    """The world's server has come to this version of `current`."""

    def serve(session: Session) -> None:
        checkpoint = world.checkpoint(version)
        session.add(checkpoint)
        session.flush()
        (server_id,) = session.scalars(select(PolicyServer.server_id))
        policy_servers.begin_serving(session, server_id, CURRENT, checkpoint)

    world.store.transact(serve)


def test_many_free_slots_are_filled_some_episodes_at_a_time(world: World) -> None:
    groups = ADMITTED // 2 + 1
    dispatcher = make_dispatcher(world, groups_per_update=groups, max_staleness=0)
    assert [len(tick(dispatcher)) for _ in range(3)] == [ADMITTED, 2, 0]


def test_on_policy_no_group_begins_before_the_newest_checkpoint_is_served(world: World) -> None:
    dispatcher = make_dispatcher(world, max_staleness=0)
    world.sql("UPDATE runs SET version = 2")
    assert tick(dispatcher) == []
    assert world.run().state == RunState.RUNNING
    served(world, 2)
    assert len(tick(dispatcher)) == 4


def test_off_policy_nobody_waits_for_a_checkpoint(world: World) -> None:
    world.sql("UPDATE runs SET version = 2")
    assert len(tick(make_dispatcher(world, max_staleness=1))) == 2 * BOUND


def test_a_checkpoint_that_no_server_can_load_holds_up_admission_for_a_while_only(
    world: World,
) -> None:
    now = [0.0]
    dispatcher = make_dispatcher(world, clock=lambda: now[0], max_staleness=0)
    world.sql("UPDATE runs SET version = 2")
    assert tick(dispatcher) == []
    now[0] += AWAIT_S
    assert len(tick(dispatcher)) == 4


def test_tasks_are_admitted_by_their_weights(world: World) -> None:
    dispatcher = make_dispatcher(world, weights={"a": 3.0, "b": 1.0})
    for _ in range(4):
        tick(dispatcher)
        close(world)
    assert (len(positions(world, "a")), len(positions(world, "b"))) == (12, 4)


def test_a_restart_forgets_nothing(world: World) -> None:
    for _ in range(5):
        dispatcher = make_dispatcher(world)
        tick(dispatcher)
        assert tick(dispatcher) == []
        close(world)
        dispatcher.serve(lambda _: None, stopped_event())
    assert positions(world) == list(range(5 * BOUND))
    items = [item for (item,) in world.ask("SELECT item_id FROM groups ORDER BY position LIMIT 18")]
    assert all(len(set(items[start : start + 6])) == 6 for start in (0, 6, 12))


def test_positions_rolled_back_come_again_with_the_next_round(world: World) -> None:
    dispatcher = make_dispatcher(world)
    tick(dispatcher)
    close(world, "trained")
    world.sql("UPDATE groups SET state = 'rolled_back' WHERE position IN (1, 3)")
    sent = tick(dispatcher)
    again = world.ask("SELECT position FROM groups WHERE round = 1 ORDER BY position")
    assert again == [(1,), (3,)]
    assert len(sent) == BOUND * 2
    assert positions(world) == [0, 1, 1, 2, 3, 3, 4, 5]
    same = world.ask("SELECT COUNT(DISTINCT item_id) FROM groups WHERE position IN (1, 3)")
    assert same == [(2,)]


def test_items_that_are_solved_retire_and_the_run_ends_exhausted(world: World) -> None:
    dispatcher = make_dispatcher(world, items=3, retire_at=0.9)
    states = []
    for _ in range(4):
        states.append(dispatcher.tick(lambda _: None))
        close(world)
    assert states[-1] == RunState.EXHAUSTED
    assert world.run().state == RunState.EXHAUSTED
    assert len(positions(world)) == BOUND
    assert tick(dispatcher) == []


def test_ready_groups_too_few_for_a_batch_do_not_hold_up_the_end(world: World) -> None:
    dispatcher = make_dispatcher(world, items=3, retire_at=0.9)
    tick(dispatcher)
    close(world)
    world.sql("UPDATE groups SET state = 'ready' WHERE position >= 2")
    world.sql("UPDATE groups SET item_id = 'a0' WHERE position = 2")
    world.sql("UPDATE groups SET item_id = 'a1' WHERE position = 0")
    world.sql("UPDATE groups SET item_id = 'a2' WHERE position = 1")
    _retire(world)
    assert dispatcher.tick(lambda _: None) == RunState.RUNNING
    world.sql("UPDATE groups SET state = 'filtered', closed_at = admitted_at WHERE position = 3")
    assert dispatcher.tick(lambda _: None) == RunState.EXHAUSTED


def _retire(world: World) -> None:
    """One closed and solved group for the item that has none."""
    (group_id,) = world.admit(9, size=2, task="a")
    world.sql("UPDATE groups SET item_id = 'a0', pending = 0 WHERE group_id = :g", g=group_id)
    close(world)


def test_a_paused_run_admits_and_sends_nothing(world: World) -> None:
    dispatcher = make_dispatcher(world)
    for state, expected in ((RunState.PAUSED, 0), (RunState.RUNNING, BOUND * 2)):
        world.store.transact(lambda s, to=state: runs.move_run(s, world.run_id, to))  # type: ignore[misc]
        assert len(tick(dispatcher)) == expected


def test_of_two_dispatchers_one_holds_the_lease(world: World) -> None:
    one, two = make_dispatcher(world), make_dispatcher(world)
    sent = run_concurrently(lambda: tick(one), lambda: tick(two))
    assert sorted(map(len, sent)) == [0, BOUND * 2]
    holder, other = (one, two) if sent[0] else (two, one)
    close(world)
    assert tick(other) == []
    holder.serve(lambda _: None, stopped_event())
    assert len(tick(other)) == BOUND * 2


def test_rows_nobody_claimed_are_sent_again_with_the_same_fence(world: World) -> None:
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


def test_of_refusals_the_latest_are_kept(world: World) -> None:
    now = [0.0]
    dispatcher = make_dispatcher(world, clock=lambda: now[0])
    (command, *_) = tick(dispatcher)

    def refuse(session: Session) -> None:
        for fence in range(100, 130):
            episodes.claim(session, command.episode_id, fence, "nobody", deadline_s=1.0)

    def kept() -> list[int]:
        rows = world.ask("SELECT fence FROM refusals ORDER BY refusal_id")
        return [fence for (fence,) in rows]

    world.store.transact(refuse)
    world.store.transact(lambda session: refusals.prune(session, world.run_id, kept=30))
    assert kept() == list(range(100, 130))
    world.store.transact(lambda session: refusals.prune(session, world.run_id, kept=3))
    assert kept() == [127, 128, 129]
    world.store.transact(lambda s: refusals.prune(s, "another", kept=0))
    tick(dispatcher)
    assert kept() == [127, 128, 129]


def test_the_dispatcher_removes_the_oldest_refusals_and_rows_of_processes_that_are_gone(
    world: World,
) -> None:
    def add(table: str, rows: int, columns: str, values: str) -> None:
        numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :most)"
        chosen = f"SELECT r.run_id, {values} FROM n, runs r"  # noqa: S608
        world.sql(f"INSERT INTO {table} (run_id, {columns}) {numbers} {chosen}", most=rows)

    refused = "transition, subject, fence, found, refused_at"
    add("refusals", refusals.KEPT + 5, refused, "'claim', 'nobody', i, 'queued', 0")
    worker = "worker_id, host, pid, started_at, lease_until"
    add("workers", runs.KEPT + 5, worker, "'gone-' || i, 'host', 1, i, i")
    server = "server_id, name, engine, url, started_at, lease_until"
    add("policy_servers", runs.KEPT + 5, server, "'gone-' || i, 'policy', 'local', 'url', i, i")
    tick(make_dispatcher(world))
    fences = world.ask("SELECT MIN(fence), COUNT(*) FROM refusals")
    assert fences == [(6, refusals.KEPT)]
    for table, key in (("workers", "worker_id"), ("policy_servers", "server_id")):
        gone = f"SELECT MIN(started_at), COUNT(*) FROM {table} WHERE {key} LIKE 'gone-%'"  # noqa: S608
        assert world.ask(gone) == [(6, runs.KEPT)]
        living = f"SELECT COUNT(*) FROM {table} WHERE {key} NOT LIKE 'gone-%'"  # noqa: S608
        assert world.ask(living) == [(1,)]


def test_what_a_killed_policy_server_left_open_is_closed(world: World) -> None:
    world.sql("UPDATE policy_servers SET lease_until = 1")
    tick(make_dispatcher(world))
    assert world.ask("SELECT COUNT(*) FROM servings WHERE live_until IS NULL") == [(0,)]


def test_what_was_lost_is_issued_again_with_the_next_fence(world: World) -> None:
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


def overdue(world: World) -> RunEpisode:
    """An episode finished, its body published, and the time for it to be stored is over."""
    (group_id,) = world.admit(90, size=2, task="a")
    claims = world.claimed(group_id)
    bodies = [world.body(claimed, 1.0) for claimed in claims]
    for claimed, body in zip(claims, bodies, strict=True):
        assert world.finish(claimed, body, body_timeout_s=-1.0)
    world.keep(bodies[1:])
    return RunEpisode(run_id=world.run_id, episode_id=claims[0].episode_id, fence=2)


def test_a_body_that_a_recorder_may_yet_bring_is_not_lost(world: World) -> None:
    """However long the recorder is down: only once it has emptied its queue since."""
    dispatcher = make_dispatcher(world, groups_per_update=1, max_staleness=0)
    again = overdue(world)
    for until in (world.run().recorded_until, world.store.clock() - 1000.0):
        world.sql("UPDATE runs SET recorded_until = :u", u=until)
        assert tick(dispatcher) == []
    world.caught_up()
    assert tick(dispatcher) == [again]


def test_beside_a_recorder_that_does_not_say_how_far_it_is_the_deadline_decides(
    world: World,
) -> None:
    """One of an older version, while a cluster is upgraded: its run has the column's default."""
    dispatcher = make_dispatcher(world, groups_per_update=1, max_staleness=0)
    again = overdue(world)
    world.sql("UPDATE runs SET recorded_until = 0")
    assert tick(dispatcher) == [again]


def test_what_the_trainer_learns_from_is_not_issued_again(world: World) -> None:
    dispatcher = make_dispatcher(world, groups_per_update=1, max_staleness=0)
    again = overdue(world)
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


def test_an_episode_that_takes_its_workers_with_it_fails_and_its_group_goes_on(
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


def test_the_dispatchers_of_two_runs_in_one_store_touch_their_own_rows_alone(world: World) -> None:
    other = World.begin(world.store, "other")
    first, second = make_dispatcher(world), make_dispatcher(other)
    sent = {world.run_id: tick(first), other.run_id: tick(second)}
    for run_id, commands in sent.items():
        assert len(commands) == 2 * BOUND
        assert {command.run_id for command in commands} == {run_id}
        assert all(command.episode_id.startswith(f"{run_id}-") for command in commands)
    assert world.claim(sent[world.run_id][0].episode_id) is not None
    world.sql("UPDATE workers SET lease_until = 0")
    world.sql("UPDATE episodes SET due_at = 0 WHERE state = 'queued'")
    assert {command.run_id for command in tick(second)} == {other.run_id}
    assert world.episode(sent[world.run_id][0].episode_id).fence == 1
    other.store.transact(lambda s: runs.move_run(s, other.run_id, RunState.STOPPED))
    assert len(tick(first)) == 2 * BOUND
    assert world.ask(
        "SELECT run_id, COUNT(*) FROM groups WHERE state = 'open' GROUP BY run_id"
    ) == [(world.run_id, BOUND)]
    assert world.accounting() == []


def test_a_dispatcher_ends_with_its_run(world: World) -> None:
    dispatcher = make_dispatcher(world)
    tick(dispatcher)
    world.store.transact(lambda s: runs.move_run(s, world.run_id, RunState.STOPPED))
    dispatcher.serve(lambda _: pytest.fail("sent"), threading.Event())
    assert world.store.ask(lambda s: groups.open_groups(s, world.run_id)) == {}
    assert world.ask("SELECT DISTINCT state FROM groups") == [(GroupState.CANCELLED,)]


def test_a_batch_larger_than_what_is_ever_open_is_refused(world: World) -> None:
    config = Config(tasks={"a": Task()}, dispatch=PLAN, trainer=Trainer(min_groups=BOUND + 1))
    with pytest.raises(ConfigError, match="min_groups"):
        Dispatcher(dispatcher_config(config), world.run_id, world.store, {})


def standstill(world: World, seconds: float) -> None:
    """So much time passes, in which nobody can reach the database."""
    for statement in (
        "UPDATE runs SET dispatcher_until = dispatcher_until - :s",
        "UPDATE workers SET lease_until = lease_until - :s, started_at = started_at - :s",
        "UPDATE episodes SET due_at = due_at - :s, queued_at = queued_at - :s,"
        " started_at = started_at - :s, ended_at = ended_at - :s",
    ):
        world.sql(statement, s=seconds)


@pytest.mark.parametrize("looked", [True, False])
@pytest.mark.parametrize("seconds", [20.0, 600.0, 86400.0])
def test_attempts_and_bodies_outlast_a_database_that_is_away(
    world: World, seconds: float, *, looked: bool
) -> None:
    """`looked`: the dispatcher between the claims and the outage."""
    dispatcher = make_dispatcher(world)
    first, *others = tick(dispatcher)
    claimed = world.claim(first.episode_id, first.fence)
    finished = world.claim(others[0].episode_id, others[0].fence)
    assert claimed
    assert finished
    assert world.finish(finished, world.body(finished))
    if looked:
        tick(dispatcher)
    standstill(world, seconds)
    assert not [each for each in tick(dispatcher) if each.fence > 1]
    assert world.episode(first.episode_id).state == EpisodeState.RUNNING
    assert world.episode(others[0].episode_id).state == EpisodeState.FINISHED
    assert claimed.started_at is not None
    shifted = dataclasses.replace(claimed, started_at=claimed.started_at - seconds)
    assert world.finish(shifted, world.body(shifted))


@pytest.mark.parametrize("seconds", [20.0, 86400.0])
def test_who_dies_as_the_databases_clock_goes_back_is_lost_in_time(
    world: World, seconds: float
) -> None:
    dispatcher, began = make_dispatcher(world), time.monotonic()
    first, second, *_ = tick(dispatcher)
    assert world.claim(first.episode_id, first.fence)
    standstill(world, -seconds)
    world.sql("UPDATE policy_servers SET lease_until = lease_until + :s", s=seconds)
    tick(dispatcher)
    spent_s = time.monotonic() - began  # the dispatcher cannot tell it from the clock's step
    clock, longest_s = world.store.clock() + spent_s + 1.0, 60.0
    leases = "SELECT lease_until FROM workers UNION SELECT lease_until FROM policy_servers"
    assert max(until for (until,) in world.ask(leases)) <= clock + longest_s
    assert world.episode(second.episode_id).due_at <= clock + PLAN.claim_timeout_s
    world.sql("UPDATE workers SET lease_until = lease_until - :s", s=longest_s + spent_s + 1.0)
    assert [each.fence for each in tick(dispatcher) if each.episode_id == first.episode_id] == [2]


def test_a_lease_from_before_the_clock_went_back_keeps_no_dispatcher_out(world: World) -> None:
    tick(make_dispatcher(world))
    killed = world.run().dispatcher
    successor = make_dispatcher(world)
    tick(successor)
    assert world.run().dispatcher == killed
    world.sql("UPDATE runs SET dispatcher_until = dispatcher_until + 86400")
    tick(successor)
    assert world.run().dispatcher != killed


def test_who_was_lost_before_the_database_went_away_is_lost_after_it(world: World) -> None:
    dispatcher = make_dispatcher(world)
    (first, *_) = tick(dispatcher)
    assert world.claim(first.episode_id, first.fence)
    world.sql("UPDATE workers SET lease_until = lease_until - 1000")
    standstill(world, 600.0)
    assert [each.fence for each in tick(dispatcher) if each.episode_id == first.episode_id] == [2]


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
def test_while_no_worker_can_beat_none_is_lost(world: World) -> None:
    """A lock on `workers`, as an index being made takes it."""
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
