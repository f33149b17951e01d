"""What every broker owes its users, asked of RabbitMQ and of the embedded twin alike."""

import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from running import eventually
from trajectories import finished, published_event, trajectories

from agentrl.broker import connect
from agentrl.broker.api import Broker, Consumer, Delivery
from agentrl.broker.messages import CheckpointPublished, EpisodeFinished, encode
from agentrl.broker.queue_names import (
    EVENTS,
    TRAJECTORIES,
    dead_queue,
    recorder_queue,
    trainer_queue,
)
from agentrl.broker.run_publisher import RunPublisher
from agentrl.core.errors import BrokerError, MessageRefused
from agentrl.core.trajectory import Trajectory

HOLD = """
import sys, time
from agentrl.broker import connect
consumer = connect(sys.argv[1]).consumer(sys.argv[2])
print(len(consumer.receive(100, 10)), flush=True)
time.sleep(600)
"""

BAD_BODIES = {
    "empty": b"",
    "a newer version": b"\x00"
    + msgspec.msgpack.encode({"type": "PoolChanged", "v": 9, "run_id": "r"}),
    "an unknown tag": b"\x00" + msgspec.msgpack.encode({"type": "Unheard", "v": 1}),
    "an unknown field": b"\x00"
    + msgspec.msgpack.encode({"type": "PoolChanged", "run_id": "r", "x": 1}),
    "truncated": encode(finished(), compress_above=0)[:-9],
    "noise": b"\xff\x00\xfe" * 50,
}


@pytest.fixture(params=["embedded", "rabbit"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "rabbit":
        return str(request.getfixturevalue("amqp_url"))
    return f"sqlite:///{tmp_path / 'queue.db'}"


@pytest.fixture
def broker(url: str) -> Iterator[Broker]:
    broker = connect(url, compress_above=256)
    yield broker
    broker.close()


@pytest.fixture
def run_id(broker: Broker) -> Iterator[str]:
    run_id = f"test-{uuid.uuid4().hex}"
    broker.declare_run(run_id)
    yield run_id
    broker.delete_run(run_id)


def test_a_runs_queues_stand_until_they_are_removed(broker: Broker, run_id: str) -> None:
    assert broker.queues_exist(run_id)
    assert not broker.queues_exist("another")
    broker.delete_run(run_id)
    assert not broker.queues_exist(run_id)


def publish(broker: Broker, run_id: str, count: int, start: int = 0) -> None:
    with closing(broker.publisher()) as publisher:
        for member in range(start, start + count):
            publisher.publish(TRAJECTORIES, run_id, finished(run_id, member=member))


def test_a_runs_queues_that_the_broker_has_lost_are_declared_again_unless_the_run_is_over(
    broker: Broker, run_id: str, url: str
) -> None:
    is_over = False
    with ExitStack() as stack:
        publisher = RunPublisher(broker, broker.publisher(), lambda: is_over)
        stack.callback(publisher.close)
        threads = stack.enter_context(ThreadPoolExecutor(4))

        def consume(queue: str) -> Consumer:
            return stack.enter_context(closing(broker.consumer(queue)))

        queues = (recorder_queue(run_id), trainer_queue(run_id))
        consumers = [consume(each) for each in queues if url.startswith("amqp")]
        broker.delete_run(run_id)
        bodies = [finished(run_id, member=member) for member in range(4)]
        send = partial(publisher.publish, TRAJECTORIES, run_id)
        assert list(threads.map(send, bodies)) == [None] * 4
        for consumer in consumers or map(consume, queues):
            assert sorted(members(drain(consumer, 4))) == list(range(4))
        is_over = True
        broker.delete_run(run_id)
        with pytest.raises(MessageRefused, match="has no queue for"):
            send(bodies[0])
        assert not broker.queues_exist(run_id)


def drain(consumer: Consumer, count: int, within_s: float = 60.0) -> list[Delivery]:
    """The next `count` deliveries, acknowledged; fewer where the time is over."""
    deliveries: list[Delivery] = []
    end = time.monotonic() + within_s
    while len(deliveries) < count and time.monotonic() < end:
        some = consumer.receive(count - len(deliveries), 0.5)
        consumer.ack(some)
        deliveries += some
    return deliveries


def drain_unacknowledged(consumer: Consumer, count: int) -> list[Delivery]:
    """The next `count` deliveries, held."""
    deliveries: list[Delivery] = []
    while len(deliveries) < count and (some := consumer.receive(count - len(deliveries), 60)):
        deliveries += some
    return deliveries


def members(deliveries: Sequence[Delivery]) -> list[int]:
    return [delivery.message.trajectory.member for delivery in deliveries]  # type: ignore[union-attr]


def await_depths(broker: Broker, run_id: str, expected: dict[str, int]) -> None:
    def found() -> dict[str, int]:
        return broker.depths(run_id)

    eventually(lambda: expected.items() <= found().items(), within_s=60, text=lambda: str(found()))


def await_letters(broker: Broker, run_id: str, count: int) -> None:
    def found() -> int:
        return len(broker.dead_letters(run_id))

    eventually(lambda: found() == count, within_s=60, text=lambda: str(found()))


def close_when_buried(consumer: Consumer) -> None:
    """Close once no dead letter waits for its confirm, after which its original goes."""
    eventually(lambda: not getattr(consumer, "_burials", None), within_s=60, text=lambda: "waits")
    consumer.close()


def inject(broker: Broker, url: str, run_id: str, body: bytes) -> None:
    """A body that none of our publishers would send, into the trainer's queue."""
    if url.startswith("sqlite"):
        import sqlite3

        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            insert = "INSERT INTO messages (queue, body) VALUES (?, ?)"
            connection.execute(insert, (trainer_queue(run_id), body))
        connection.close()
        return
    import pika

    link = pika.BlockingConnection(pika.URLParameters(url))
    channel = link.channel()
    channel.confirm_delivery()
    channel.basic_publish("", trainer_queue(run_id), body)
    link.close()


def test_a_message_reaches_recorder_and_trainer_as_it_was_sent(broker: Broker, run_id: str) -> None:
    publish(broker, run_id, 1)
    for queue in (recorder_queue(run_id), trainer_queue(run_id)):
        consumer = broker.consumer(queue)
        (delivery,) = drain(consumer, 1)
        assert delivery.message == finished(run_id)
        assert delivery.wire == encode(finished(run_id), compress_above=256)
        consumer.close()


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(bodies=st.lists(trajectories, min_size=1, max_size=4))
def test_arbitrary_trajectories_survive_the_broker(
    broker: Broker, run_id: str, bodies: list[Trajectory]
) -> None:
    publisher, consumer = broker.publisher(), broker.consumer(trainer_queue(run_id))
    sent = [EpisodeFinished(trajectory=body) for body in bodies]
    for message in sent:
        publisher.publish(TRAJECTORIES, run_id, message)
    assert [delivery.message for delivery in drain(consumer, len(sent))] == sent
    publisher.close()
    consumer.close()


def test_messages_come_in_the_order_of_one_publisher(broker: Broker, run_id: str) -> None:
    publish(broker, run_id, 300)
    consumer = broker.consumer(trainer_queue(run_id))
    assert members(drain(consumer, 300)) == list(range(300))
    assert consumer.receive(10, 0) == []
    consumer.close()


def test_a_consumer_waits_for_what_comes_later_and_gives_up_after_its_timeout(
    broker: Broker, run_id: str
) -> None:
    consumer = broker.consumer(trainer_queue(run_id))
    assert consumer.receive(10, 0.1) == []
    later = threading.Timer(0.2, publish, (broker, run_id, 1))
    later.start()
    assert members(consumer.receive(10, 3600.0)) == [0]
    later.join()
    consumer.close()


def test_a_queue_is_empty_once_all_of_it_was_received(broker: Broker, run_id: str) -> None:
    consumer = broker.consumer(trainer_queue(run_id))
    assert consumer.is_empty()
    publish(broker, run_id, 2)
    assert not consumer.is_empty()
    held = drain_unacknowledged(consumer, 2)
    assert consumer.is_empty()
    consumer.ack(held)
    consumer.close()


def test_what_a_killed_process_held_goes_to_the_next_consumer_at_once(
    broker: Broker, run_id: str, url: str
) -> None:
    publish(broker, run_id, 3)
    queue = trainer_queue(run_id)
    with subprocess.Popen([sys.executable, "-c", HOLD, url, queue], stdout=subprocess.PIPE) as held:
        assert held.stdout is not None
        assert int(held.stdout.readline()) >= 1
        held.send_signal(signal.SIGKILL)
    consumer = broker.consumer(queue)
    assert sorted(members(drain(consumer, 3))) == [0, 1, 2]
    consumer.close()


def test_only_what_was_not_acknowledged_comes_again(broker: Broker, run_id: str) -> None:
    publish(broker, run_id, 4)
    first = broker.consumer(trainer_queue(run_id))
    assert members(drain(first, 2)) == [0, 1]
    assert first.receive(1, 60)
    first.close()
    second = broker.consumer(trainer_queue(run_id))
    assert sorted(members(drain(second, 2))) == [2, 3]
    assert second.receive(1, 0.2) == []
    second.close()


def test_an_acknowledgement_of_a_former_consumer_is_passed_over(
    broker: Broker, run_id: str
) -> None:
    publish(broker, run_id, 1)
    first = broker.consumer(trainer_queue(run_id))
    held = first.receive(1, 60)
    first.close()
    second = broker.consumer(trainer_queue(run_id))
    assert members(second.receive(1, 60)) == members(held) == [0]
    second.close()


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES.keys())
def test_what_cannot_be_decoded_is_dead_lettered_with_its_reason(
    broker: Broker, run_id: str, url: str, body: bytes
) -> None:
    inject(broker, url, run_id, body)
    publish(broker, run_id, 1, start=7)
    consumer = broker.consumer(trainer_queue(run_id))
    assert members(drain(consumer, 1)) == [7]
    await_letters(broker, run_id, 1)
    close_when_buried(consumer)
    await_depths(broker, run_id, {dead_queue(trainer_queue(run_id)): 1, trainer_queue(run_id): 0})
    (letter,) = broker.dead_letters(run_id)
    assert (letter.queue, letter.body) == (trainer_queue(run_id), body)
    assert "message" in letter.reason


def test_what_a_consumer_refuses_is_dead_lettered_with_its_reason(
    broker: Broker, run_id: str
) -> None:
    publish(broker, run_id, 3)
    consumer = broker.consumer(trainer_queue(run_id))
    deliveries = list(drain_unacknowledged(consumer, 3))
    consumer.refuse(deliveries[1], "of no use")
    consumer.ack([deliveries[0], deliveries[2]])
    await_letters(broker, run_id, 1)
    close_when_buried(consumer)
    (letter,) = broker.dead_letters(run_id)
    assert (letter.queue, letter.reason) == (trainer_queue(run_id), "of no use")
    assert letter.body == deliveries[1].wire
    await_depths(broker, run_id, {dead_queue(trainer_queue(run_id)): 1, trainer_queue(run_id): 0})


def test_a_requeued_letter_goes_to_its_queue_alone_and_once_however_often_it_died(
    broker: Broker, run_id: str, url: str
) -> None:
    for body in (b"", BAD_BODIES["noise"], BAD_BODIES["noise"]):
        inject(broker, url, run_id, body)
    publish(broker, run_id, 1)
    consumer = broker.consumer(trainer_queue(run_id))
    (kept,) = drain_unacknowledged(consumer, 1)
    consumer.refuse(kept, "not now")
    await_letters(broker, run_id, 4)
    reasons = {letter.letter_id: letter for letter in broker.dead_letters(run_id)}
    assert len(reasons) == 3
    wanted = [name for name, letter in reasons.items() if letter.body != b""]
    assert broker.requeue(run_id, [*wanted, "unknown"]) == 2
    assert broker.requeue(run_id, ["unknown"]) == 0
    (again,) = drain(consumer, 1)
    assert again.message == kept.message
    await_letters(broker, run_id, 2)
    close_when_buried(consumer)
    assert {letter.body for letter in broker.dead_letters(run_id)} == {b"", BAD_BODIES["noise"]}
    await_depths(broker, run_id, {recorder_queue(run_id): 1})


def test_a_letter_of_another_run_is_not_put_back(broker: Broker, run_id: str, url: str) -> None:
    inject(broker, url, run_id, b"")
    consumer = broker.consumer(trainer_queue(run_id))
    assert consumer.receive(1, 0.5) == []
    await_letters(broker, run_id, 1)
    close_when_buried(consumer)
    other = f"test-{uuid.uuid4().hex}"
    broker.declare_run(other)
    assert broker.requeue(other, [broker.dead_letters(run_id)[0].letter_id]) == 0
    assert len(broker.dead_letters(run_id)) == 1
    broker.delete_run(other)


def test_depths_count_what_waits_in_each_queue(broker: Broker, run_id: str) -> None:
    publish(broker, run_id, 5)
    consumer = broker.consumer(trainer_queue(run_id))
    drain(consumer, 5)
    consumer.close()
    expected = {recorder_queue(run_id): 5, trainer_queue(run_id): 0}
    expected |= {dead_queue(queue): 0 for queue in expected}
    await_depths(broker, run_id, expected)


def test_runs_do_not_see_each_other(broker: Broker, run_id: str) -> None:
    other = f"test-{uuid.uuid4().hex}"
    broker.declare_run(other)
    publish(broker, other, 2)
    consumer = broker.consumer(trainer_queue(run_id))
    assert consumer.receive(10, 0.3) == []
    consumer.close()
    broker.delete_run(other)
    assert broker.depths(run_id)[recorder_queue(run_id)] == 0


def test_a_message_that_no_queue_takes_is_an_error(broker: Broker) -> None:
    with pytest.raises(BrokerError, match="has no queue for"):
        publish(broker, "test-nobody", 1)


def test_declaring_twice_loses_nothing(broker: Broker, run_id: str) -> None:
    publish(broker, run_id, 2)
    broker.declare_run(run_id)
    await_depths(broker, run_id, {trainer_queue(run_id): 2})


def test_many_threads_share_one_publisher(broker: Broker, run_id: str) -> None:
    publisher = broker.publisher()
    sent = [finished(run_id, member=member, text="x" * 5000) for member in range(400)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda message: publisher.publish(TRAJECTORIES, run_id, message), sent))
    publisher.close()
    consumer = broker.consumer(recorder_queue(run_id))
    assert sorted(members(drain(consumer, 400))) == list(range(400))
    consumer.close()


def test_an_event_reaches_every_subscriber_of_its_run_from_now_on(
    broker: Broker, run_id: str
) -> None:
    publisher = broker.publisher()
    publisher.publish(EVENTS, run_id, published_event(run_id))
    first, second = broker.subscriber(run_id), broker.subscriber(run_id)
    event = CheckpointPublished(run_id=run_id, version=3, checkpoint_id="c3")
    publisher.publish(EVENTS, run_id, event)
    publisher.publish(EVENTS, "test-another-run", published_event("x"))
    for subscriber in (first, second):
        heard = [*drain(subscriber, 1), *subscriber.receive(2, 0.5)]
        assert [delivery.message for delivery in heard] == [event]
        subscriber.close()
    publisher.publish(EVENTS, run_id, event)
    publisher.close()
    assert sum(broker.depths(run_id).values()) == 0


def test_a_deleted_run_leaves_nothing_that_takes_its_messages(broker: Broker) -> None:
    run_id = f"test-{uuid.uuid4().hex}"
    broker.declare_run(run_id)
    publish(broker, run_id, 1)
    broker.delete_run(run_id)
    broker.delete_run(run_id)
    with pytest.raises(BrokerError, match="has no queue for"):
        publish(broker, run_id, 1)


def test_an_unknown_scheme_is_named() -> None:
    with pytest.raises(BrokerError, match="redis"):
        connect("redis://localhost")
