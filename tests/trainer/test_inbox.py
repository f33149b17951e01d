import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_scrape import free_port, scrape
from run_transitions import World
from running import eventually
from sqlalchemy import event
from structlog.testing import capture_logs

from agentrl import broker
from agentrl.broker.api import Broker, Consumer, Delivery, Publisher
from agentrl.broker.messages import CheckpointPublished, EpisodeFinished, Message, encode
from agentrl.broker.queue_names import TRAJECTORIES, trainer_queue
from agentrl.core.config.sections.monitoring import Metrics
from agentrl.core.errors import BrokerError
from agentrl.core.telemetry.exposition import serve_metrics
from agentrl.core.trajectory import Trajectory
from agentrl.core.types import EpisodeState, GroupState, Reason, RunState
from agentrl.db.models.updates import Checkpoint
from agentrl.db.transitions import runs, updates
from agentrl.db.transitions.updates import TrainerReplaced
from agentrl.trainer.batch import TrainableGroup
from agentrl.trainer.group_selection import (
    InboxBounds,
    classify_group,
    close_useless,
    is_too_old,
)
from agentrl.trainer.inbox import Inbox

BOUNDS = InboxBounds(
    min_groups=2, max_groups=3, max_staleness=2, max_lag=4, abnormal_reward=None, max_attempts=3
)
LOOKS = 3  # what a test waits for in vain
MANY_LOOKS = 600  # of a tenth of a second each where nothing comes: a busy machine has its time


class StopAfterLooks(threading.Event):
    """Asks the inbox to stop once it has looked so many times."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self._left = looks

    def is_set(self) -> bool:
        self._left -= 1
        return self._left < 0 or super().is_set()


@pytest.fixture
def link(request: pytest.FixtureRequest, world: World, tmp_path: Path) -> Iterator[Broker]:
    """The embedded twin beside SQLite, RabbitMQ beside Postgres."""
    url = f"sqlite:///{tmp_path / 'queue.db'}"
    if world.store.engine.dialect.name == "postgresql":
        url = request.getfixturevalue("amqp_url")
    with closing(broker.connect(url)) as opened:
        opened.declare_run(world.run_id)
        yield opened
        opened.delete_run(world.run_id)


@pytest.fixture
def publisher(link: Broker) -> Iterator[Publisher]:
    with closing(link.publisher()) as opened:
        yield opened


@pytest.fixture
def inbox(link: Broker, world: World) -> Iterator[Inbox]:
    with closing(link.consumer(trainer_queue(world.run_id))) as consumer:
        yield Inbox(world.store, consumer, world.run_id, BOUNDS)


def _given(inbox: Inbox) -> Sequence[TrainableGroup]:
    """What the inbox gives, as long as that takes on a busy machine."""
    return _look(inbox, looks=MANY_LOOKS)


def _receive(inbox: Inbox, count: int) -> None:
    """Until it holds so many bodies that the broker brought."""

    def held() -> bool:
        inbox._receive()
        return len(inbox._bodies) >= count

    eventually(held, within_s=60, text=lambda: f"{len(inbox._bodies)} of {count}")


def _look(
    inbox: Inbox, version: int = 0, epoch: int = 0, looks: int = LOOKS
) -> Sequence[TrainableGroup]:
    """What the inbox gives within so many looks at queue and database."""
    taken = inbox.next_groups(version, epoch, StopAfterLooks(looks), lambda: False)
    return taken.trained if taken else ()


def _publish(publisher: Publisher, world: World, bodies: Sequence[Trajectory]) -> None:
    for body in bodies:
        publisher.publish(TRAJECTORIES, world.run_id, EpisodeFinished(trajectory=body))


def _ids(groups: Sequence[TrainableGroup]) -> list[str]:
    return [group.group_id for group in groups]


def test_a_batch_holds_the_oldest_groups_from_the_fewest_to_the_most(
    world: World, inbox: Inbox, publisher: Publisher
) -> None:
    bodies = [world.ready(0, stored=False)]
    _publish(publisher, world, bodies[0])
    assert _look(inbox) == ()
    for position in range(1, 5):
        bodies.append(world.ready(position, stored=False))
        _publish(publisher, world, bodies[-1])
    _receive(inbox, 20)
    chosen = _given(inbox)
    assert _ids(chosen) == [each[0].group_id for each in bodies[:3]]
    assert [group.members for group in chosen] == [tuple(each) for each in bodies[:3]]
    assert chosen[0].task == "dbbench"


def test_the_groups_of_the_update_in_flight_are_not_returned_again(
    world: World, inbox: Inbox
) -> None:
    """They are ready until it is committed, whether or not their bodies are forgotten."""
    names = [world.ready(position)[0].group_id for position in range(7)]
    first = _given(inbox)
    inbox.forget(first)
    second = _given(inbox)
    assert [_ids(first), _ids(second)] == [names[:3], names[3:6]]
    trained = f"UPDATE groups SET state = 'trained' WHERE group_id IN {tuple(names[:3])}"  # noqa: S608
    world.sql(trained)
    assert _look(inbox) == (), "one is left, which is too few"


def test_bodies_that_the_broker_did_not_bring_are_read_from_the_store(
    world: World, inbox: Inbox, publisher: Publisher
) -> None:
    first = world.ready(0, stored=False)
    _publish(publisher, world, first[:2])
    world.keep(first[2:])
    second = world.ready(1)
    assert [group.members for group in _given(inbox)] == [tuple(first), tuple(second)]


def test_a_body_with_another_hash_or_fence_is_never_trained(
    world: World, inbox: Inbox, publisher: Publisher
) -> None:
    world.ready(0)
    bodies = world.ready(1, stored=False)
    forged = msgspec.structs.replace(bodies[0], reward=9.0)
    other = msgspec.structs.replace(bodies[1], fence=2)
    _publish(publisher, world, [forged, other, *bodies[1:]])
    _receive(inbox, 5)
    assert _look(inbox) == (), "the other group is too few"
    world.keep([bodies[0]])
    chosen = _given(inbox)
    assert chosen[1].members == tuple(bodies)


@pytest.mark.parametrize("damage", ["no message", "not a body", "another body"])
def test_a_stored_body_that_is_damaged_is_given_up_once_and_played_again(
    world: World, inbox: Inbox, damage: str
) -> None:
    world.ready(0)
    bodies = world.ready(1)
    message: Message = EpisodeFinished(trajectory=msgspec.structs.replace(bodies[0], reward=9.0))
    if damage == "not a body":
        message = CheckpointPublished(run_id=world.run_id, version=1, checkpoint_id="stop")
    wire = b"\x07damaged" if damage == "no message" else encode(message)
    episode_id = bodies[0].episode_id
    world.sql("UPDATE trajectories SET body = :b WHERE episode_id = :e", b=wire, e=episode_id)
    assert _look(inbox) == ()
    row = world.episode(episode_id)
    assert (row.state, row.fence, row.reason) == (EpisodeState.QUEUED, 2, Reason.BODY_DAMAGED)
    assert world.ask("SELECT 1 FROM trajectories WHERE episode_id = :e", e=episode_id) == []
    assert world.group(bodies[0].group_id).state == GroupState.OPEN
    (claimed,) = world.claimed(bodies[0].group_id)
    again = world.body(claimed, 0.5)
    assert world.finish(claimed, again)
    world.keep([again])
    chosen = _given(inbox)
    assert chosen[1].members == (again, *bodies[1:])
    assert world.accounting() == []


def test_a_group_without_spread_is_ready_where_its_task_has_a_teacher(
    make_trajectory: Callable[..., Trajectory],
) -> None:
    flat = TrainableGroup("g", "db", (make_trajectory(), make_trajectory(seed=1)))
    for tasks, expected in (((), Reason.ZERO_SPREAD), (("db",), None)):
        bounds = replace(BOUNDS, taught_tasks=tasks)
        assert classify_group(flat, 4, bounds, {}) == expected


def test_groups_without_spread_are_filtered_and_old_ones_stale(world: World, inbox: Inbox) -> None:
    flat = world.ready(0, (1.0, 1.0, 1.0))[0].group_id
    chosen = _look(inbox, version=3)
    assert chosen == ()
    group = world.group(flat)
    assert (group.state, group.reason) == (GroupState.FILTERED, Reason.ZERO_SPREAD)
    old = world.ready(1)[0].group_id
    assert _look(inbox, version=3) == ()
    group = world.group(old)
    assert (group.state, group.reason) == (GroupState.STALE, Reason.TOO_STALE)
    assert group.closed_at is not None
    assert world.accounting() == []


def test_lagged_policies_have_a_bound_of_their_own(world: World) -> None:
    group = TrainableGroup("g", "dbbench", tuple(world.ready(0)))
    for version, expected in ((2, False), (3, True)):
        assert is_too_old(group, version, BOUNDS, {}) == expected
    lagged = msgspec.structs.replace(group.members[0], policies=group.members[0].policies[1:])
    only = TrainableGroup("g", "dbbench", (lagged,))
    assert [is_too_old(only, version, BOUNDS, {}) for version in (4, 5)] == [False, True]
    teacher = msgspec.structs.replace(lagged.policies[0], version=-1, trainable=False)
    masked = msgspec.structs.replace(lagged, policies=(teacher,))
    assert not is_too_old(TrainableGroup("g", "dbbench", (masked,)), 99, BOUNDS, {})


def test_a_policy_that_was_rolled_back_is_as_far_as_both_lines_are_long(world: World) -> None:
    body = world.ready(0)[0]
    left = msgspec.structs.replace(body.policies[0], version=3, checkpoint_id="left")
    group = TrainableGroup("g", "dbbench", (msgspec.structs.replace(body, policies=(left,)),))
    found = [is_too_old(group, version, BOUNDS, {"left": 1}) for version in (1, 2, 3)]
    assert found == [False, True, True], "2, 3 and 4 updates away, of 2"
    assert not is_too_old(group, 3, BOUNDS, {"another": 1})


def test_a_trainer_that_resumed_closes_what_the_line_it_left_sampled(
    world: World, inbox: Inbox
) -> None:
    epoch = world.store.transact(lambda session: runs.begin_epoch(session, world.run_id))
    first = world.run_id + "-v0"
    for version in (1, 2):
        checkpoint = world.checkpoint(version, parent_id=f"{world.run_id}-v{version - 1}")
        update = world.new_update(version, (), epoch, checkpoint=checkpoint)
        world.store.transact(partial(updates.commit_update, new=update))
    root = world.store.ask(lambda session: session.get_one(Checkpoint, first))
    world.store.transact(
        lambda session: updates.roll_back(session, world.run_id, root, epoch=epoch)
    )
    (group_id,) = world.admit(0)
    for claimed in world.claimed(group_id):
        body = world.body(claimed, float(claimed.member % 2))
        left = msgspec.structs.replace(
            body.policies[0], version=2, checkpoint_id=f"{world.run_id}-v2"
        )
        body = msgspec.structs.replace(body, policies=(left, *body.policies[1:]))
        assert world.finish(claimed, body)
        world.keep([body])
    assert _look(inbox, version=1, epoch=epoch) == ()
    assert world.group(group_id).state == GroupState.STALE, "3 updates away, of 2"


@pytest.mark.parametrize("state", [RunState.STOPPED, RunState.COMPLETED])
def test_a_run_that_is_over_gives_no_batch(world: World, inbox: Inbox, state: RunState) -> None:
    world.store.transact(lambda session: runs.move_run(session, world.run_id, state))
    assert inbox.next_groups(0, 0, threading.Event(), lambda: False) is None


def test_a_trainer_that_was_replaced_closes_no_group_that_another_may_learn_from(
    world: World, inbox: Inbox
) -> None:
    too_old = world.ready(0)[0].group_id
    world.store.transact(lambda session: runs.begin_epoch(session, world.run_id))
    with pytest.raises(TrainerReplaced):
        _look(inbox, version=9)
    with pytest.raises(TrainerReplaced):  # also where it looked before the other began
        close_useless(world.store, world.run_id, 0, {Reason.TOO_STALE: [too_old]})
    assert world.group(too_old).state == GroupState.READY
    assert _look(inbox, version=9, epoch=1) == ()
    assert world.group(too_old).state == GroupState.STALE


def test_a_paused_run_gives_its_batch_when_it_goes_on(world: World, inbox: Inbox) -> None:
    world.ready(0)
    world.ready(1)
    _move(world, RunState.PAUSED)
    assert _look(inbox) == ()
    _move(world, RunState.RUNNING)
    assert len(_given(inbox)) == 2


def test_bodies_beyond_the_bound_give_way_and_are_read_again(world: World, link: Broker) -> None:
    bodies = [world.ready(0), world.ready(1)]
    size = 10 * len(bodies[0][0]) + 40
    bounds = InboxBounds(2, 3, 2, 4, None, 3, held_bytes=8 * size)
    with closing(link.consumer(trainer_queue(world.run_id))) as consumer:
        inbox = Inbox(world.store, consumer, world.run_id, bounds)
        for member in range(100):
            inbox._keep_body(msgspec.structs.replace(bodies[0][0], episode_id=f"lapsed-{member}"))
        assert inbox._held_bytes <= bounds.held_bytes
        chosen = _given(inbox)
        assert [group.members for group in chosen] == [tuple(each) for each in bodies]
        inbox.forget(chosen)
        assert (inbox._bodies, inbox._held_bytes) == ({}, 0)


def _counted_reads(world: World) -> list[str]:
    """Grows by one entry each time bodies are read from the database."""
    reads: list[str] = []

    @event.listens_for(world.store.engine, "before_cursor_execute")
    def count(_c: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        if "FROM trajectories" in statement:
            reads.append(statement)

    return reads


def test_a_batch_larger_than_the_bound_comes_together_and_stays(world: World, link: Broker) -> None:
    """Bodies of groups that are not ready arrive meanwhile: they push none of it out."""
    bodies = [world.ready(position) for position in range(3)]
    size = 10 * len(bodies[0][0]) + 40
    bounds = InboxBounds(4, 4, 2, 4, None, 3, held_bytes=5 * size)
    reads = _counted_reads(world)
    with closing(link.consumer(trainer_queue(world.run_id))) as consumer:
        inbox = Inbox(world.store, consumer, world.run_id, bounds)
        assert _look(inbox) == ()
        assert len(reads) == 1
        for member in range(100):
            inbox._keep_body(msgspec.structs.replace(bodies[0][0], episode_id=f"lapsed-{member}"))
        assert _look(inbox) == ()
        assert len(reads) == 1, "what a batch waits with is not read again"
        bodies.append(world.ready(3))
        assert [group.members for group in _given(inbox)] == [tuple(each) for each in bodies]
        assert len(reads) == 2


class Away:
    """A consumer whose broker is away while `away`."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self.away = True

    def receive(self, limit: int, timeout_s: float) -> Sequence[Delivery]:
        if self.away:
            raise BrokerError("RabbitMQ does not answer")
        return self._consumer.receive(limit, timeout_s)

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        self._consumer.ack(deliveries)

    def refuse(self, delivery: Delivery, reason: str) -> None:
        self._consumer.refuse(delivery, reason)

    def close(self) -> None: ...


def test_while_the_broker_is_away_batches_come_from_the_database(
    world: World, link: Broker, publisher: Publisher
) -> None:
    with closing(link.consumer(trainer_queue(world.run_id))) as consumer:
        away = Away(consumer)
        inbox = Inbox(world.store, away, world.run_id, BOUNDS)
        bodies = [world.ready(position) for position in range(2)]
        port = free_port()
        with serve_metrics(Metrics(port=port), "run", "trainer"), capture_logs() as lines:
            chosen = _given(inbox)
            assert [group.members for group in chosen] == [tuple(each) for each in bodies]
            inbox.forget(chosen)
            gauge = 'agentrl_service_away{name="broker",process="trainer",run="run"}'
            assert f"{gauge} 1.0" in scrape(port)
            away.away = False
            later = world.ready(5, stored=False)
            _publish(publisher, world, later)
            _receive(inbox, 4)
            assert f"{gauge} 0.0" in scrape(port)
        assert [line["log_level"] for line in lines] == ["warning", "info"], "once each"


def test_what_is_waiting_is_acknowledged_on_receipt(
    world: World, link: Broker, inbox: Inbox, publisher: Publisher
) -> None:
    _publish(publisher, world, world.ready(0, stored=False))
    _receive(inbox, 4)
    eventually(
        lambda: link.depths(world.run_id)[trainer_queue(world.run_id)] == 0,
        within_s=60,
        text=lambda: str(link.depths(world.run_id)),
    )


def _move(world: World, state: RunState) -> None:
    assert world.store.transact(lambda session: runs.move_run(session, world.run_id, state))
