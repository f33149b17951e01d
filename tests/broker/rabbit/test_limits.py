"""How much RabbitMQ keeps for us: unacknowledged messages, events and dead letters."""

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

import pika
from running import eventually
from trajectories import published_event

from agentrl.broker import connect
from agentrl.broker.api import Delivery
from agentrl.broker.messages import encode
from agentrl.broker.queue_names import (
    DEAD,
    EVENTS,
    MAX_DEAD_LETTERS,
    MAX_EVENTS,
    dead_queue,
    trainer_queue,
)
from agentrl.broker.rabbit_consumer import PREFETCH


@contextlib.contextmanager
def plain_channel(amqp_url: str) -> Iterator[Any]:
    """Open a channel of pika; each message is in its queue when `basic_publish` returns."""
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(amqp_url))) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel


def test_a_consumer_that_acknowledges_nothing_receives_at_most_its_prefetch(
    amqp_url: str, run_id: str
) -> None:
    with plain_channel(amqp_url) as channel:
        for _ in range(PREFETCH + 9):
            channel.basic_publish("", trainer_queue(run_id), encode(published_event(run_id)))
    with contextlib.closing(connect(amqp_url).consumer(trainer_queue(run_id))) as consumer:
        held: list[Delivery] = []
        while len(held) < PREFETCH:
            held += (some := consumer.receive(2 * PREFETCH, 300))
            assert some
        assert consumer.receive(1, 0.2) == []
        consumer.ack(held[:5])
        assert consumer.receive(1, 300)


def test_the_events_of_a_subscriber_that_never_reads_are_bounded(
    amqp_url: str, run_id: str
) -> None:
    """Beyond the bound of the queue there are those that the consumer was sent before."""
    most, last = MAX_EVENTS + PREFETCH, f"{MAX_EVENTS + PREFETCH + 99}"
    with contextlib.closing(connect(amqp_url).subscriber(run_id)) as subscriber:
        with plain_channel(amqp_url) as channel:
            for number in range(int(last) + 1):
                event = published_event(run_id, str(number))
                channel.basic_publish(EVENTS, run_id, encode(event))
        received: list[str] = []
        while last not in received:
            events = subscriber.receive(2 * most, 60)
            assert events, "the newest gave way"
            received += [getattr(event.message, "checkpoint_id", "") for event in events]
    assert len(received) <= most


def test_only_the_newest_dead_letters_are_kept(amqp_url: str, run_id: str) -> None:
    broker = connect(amqp_url)
    queue = trainer_queue(run_id)
    with plain_channel(amqp_url) as channel:
        for number in range(MAX_DEAD_LETTERS + 3):
            channel.basic_publish(DEAD, queue, str(number).encode())
    eventually(
        lambda: broker.depths(run_id)[dead_queue(queue)] == MAX_DEAD_LETTERS,
        within_s=60,
        text=lambda: str(broker.depths(run_id)),
    )
    assert broker.dead_letters(run_id)[0].body == b"3"


def test_a_dead_letter_queue_of_an_older_version_is_left_as_it_is(amqp_url: str) -> None:
    run_id = f"test-{uuid.uuid4().hex}"
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(dead_queue(trainer_queue(run_id)), durable=True)
    broker = connect(amqp_url)
    broker.declare_run(run_id)
    broker.declare_run(run_id)
    try:
        assert broker.queues_exist(run_id)
    finally:
        broker.delete_run(run_id)
