"""The loop of a dispatcher: its broker, its lease, pauses and the end of its run."""

import threading

import pytest
from dispatching import BOUND, PLAN, close, make_dispatcher, stopped_event, tick
from run_transitions import World, run_concurrently
from structlog.testing import capture_logs

from agentrl.broker.messages import RunEpisode
from agentrl.core.config.config import Config
from agentrl.core.config.sections.tasks import Task
from agentrl.core.config.sections.training import Trainer
from agentrl.core.errors import BrokerError, ConfigError
from agentrl.core.types import GroupState, RunState
from agentrl.db.transitions import groups, runs
from agentrl.ops.processes.dispatcher import dispatcher_config
from agentrl.workers.dispatch.dispatcher import Dispatcher


def test_a_dispatcher_waits_for_an_unavailable_broker(world: World) -> None:
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


def test_a_dispatcher_whose_broker_is_unavailable_ends_at_the_stop_event(
    world: World,
) -> None:
    stop = threading.Event()

    def send(_command: RunEpisode) -> None:
        stop.set()
        raise BrokerError("away")

    make_dispatcher(world).serve(send, stop)
    assert world.ask("SELECT dispatcher FROM runs") == [("",)]


def test_a_paused_run_admits_and_sends_nothing(world: World) -> None:
    dispatcher = make_dispatcher(world)
    for state, expected in ((RunState.PAUSED, 0), (RunState.RUNNING, BOUND * 2)):
        world.store.transact(lambda s, to=state: runs.move_run(s, world.run_id, to))  # type: ignore[misc]
        assert len(tick(dispatcher)) == expected


def test_a_dispatcher_ends_with_its_run(world: World) -> None:
    dispatcher = make_dispatcher(world)
    tick(dispatcher)
    world.store.transact(lambda s: runs.move_run(s, world.run_id, RunState.STOPPED))
    dispatcher.serve(lambda _: pytest.fail("sent"), threading.Event())
    assert world.store.ask(lambda s: groups.open_groups(s, world.run_id)) == {}
    assert world.ask("SELECT DISTINCT state FROM groups") == [(GroupState.CANCELLED,)]


def test_only_one_of_two_dispatchers_holds_the_lease(world: World) -> None:
    one, two = make_dispatcher(world), make_dispatcher(world)
    sent = run_concurrently(lambda: tick(one), lambda: tick(two))
    assert sorted(map(len, sent)) == [0, BOUND * 2]
    holder, other = (one, two) if sent[0] else (two, one)
    close(world)
    assert tick(other) == []
    holder.serve(lambda _: None, stopped_event())
    assert len(tick(other)) == BOUND * 2


def test_the_dispatchers_of_two_runs_in_one_store_touch_only_their_own_rows(world: World) -> None:
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


def test_a_batch_larger_than_the_number_of_open_groups_is_refused(world: World) -> None:
    config = Config(tasks={"a": Task()}, dispatch=PLAN, trainer=Trainer(min_groups=BOUND + 1))
    with pytest.raises(ConfigError, match="min_groups"):
        Dispatcher(dispatcher_config(config), world.run_id, world.store, {})
