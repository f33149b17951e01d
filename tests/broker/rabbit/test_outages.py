"""A publisher and a consumer whose connections are cut, or whose broker is away."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from rabbit_proxy import RabbitProxy
from trajectories import finished, published_event

from agentrl.broker.api import Broker, Delivery
from agentrl.broker.queue_names import EVENTS, TRAJECTORIES, trainer_queue


def test_no_message_is_lost_while_the_connection_is_cut_again_and_again(
    broker: Broker, proxy: RabbitProxy, run_id: str
) -> None:
    publisher, consumer = broker.publisher(), broker.consumer(trainer_queue(run_id))
    seen: set[int] = set()
    with ThreadPoolExecutor(8) as pool:
        sent = [
            pool.submit(publisher.publish, TRAJECTORIES, run_id, finished(run_id, member=member))
            for member in range(600)
        ]
        next_cut, cuts, end = 0, 0, time.monotonic() + 200
        while len(seen) < 600 and time.monotonic() < end:
            if len(seen) >= next_cut and cuts < 4:
                proxy.cut()
                next_cut, cuts = len(seen) + 100, cuts + 1
            deliveries = consumer.receive(50, 0.2)
            seen |= {delivery.message.trajectory.member for delivery in deliveries}  # type: ignore[union-attr]
            consumer.ack(deliveries)
        for one in sent:
            one.result()
    assert seen == set(range(600))
    assert cuts == 4
    publisher.close()
    consumer.close()


def test_a_subscriber_receives_again_after_a_cut(
    broker: Broker, proxy: RabbitProxy, run_id: str
) -> None:
    publisher, subscriber = broker.publisher(), broker.subscriber(run_id)
    proxy.cut()
    received, end = False, time.monotonic() + 60
    while not received and time.monotonic() < end:
        publisher.publish(EVENTS, run_id, published_event(run_id))
        received = bool(subscriber.receive(1, 0.2))
    assert received
    publisher.close()
    subscriber.close()


def test_an_acknowledgement_from_before_a_cut_is_ignored(
    broker: Broker, proxy: RabbitProxy, run_id: str
) -> None:
    publisher, consumer = broker.publisher(), broker.consumer(trainer_queue(run_id))
    for member in range(2):
        publisher.publish(TRAJECTORIES, run_id, finished(run_id, member=member))
    (before,) = consumer.receive(1, 60)
    proxy.cut()
    again: list[Delivery] = []
    end = time.monotonic() + 60
    while not again and time.monotonic() < end:
        again = [d for d in consumer.receive(1, 10) if d.message == before.message]
    assert again
    consumer.ack([before])
    consumer.close()
    fresh = broker.consumer(trainer_queue(run_id))
    assert before.message in [d.message for d in fresh.receive(1, 60)]
    publisher.close()
    fresh.close()


def test_closing_ends_threads_while_the_broker_is_away(
    broker: Broker, proxy: RabbitProxy, run_id: str
) -> None:
    before = set(threading.enumerate())
    publisher, consumer = broker.publisher(), broker.consumer(trainer_queue(run_id))
    proxy.refuse_and_wait()
    publisher.close()
    consumer.close()
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert not {name for name in left if name.startswith("amqp-")}
