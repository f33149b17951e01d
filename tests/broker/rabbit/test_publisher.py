"""How long RabbitPublisher waits for a confirm, and what a refused message does to the others."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pika
import pytest
from rabbit_proxy import RabbitProxy
from running import eventually
from trajectories import finished, published_event

from agentrl.broker import connect
from agentrl.broker.api import Broker
from agentrl.broker.messages import encode
from agentrl.broker.queue_names import EVENTS, TRAJECTORIES, trainer_queue
from agentrl.broker.rabbit_publisher import RabbitPublisher
from agentrl.core.errors import BrokerUnavailable, MessageRefused


def await_depth(broker: Broker, run_id: str, depth: int) -> None:
    eventually(
        lambda: broker.depths(run_id)[trainer_queue(run_id)] == depth,
        within_s=60,
        text=lambda: str(broker.depths(run_id)),
    )


def test_publish_waits_until_the_broker_is_back(
    broker: Broker, proxy: RabbitProxy, run_id: str
) -> None:
    publisher = broker.publisher()
    proxy.refuse_and_wait()
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(publisher.publish, TRAJECTORIES, run_id, finished(run_id))
        proxy.refuse_and_wait()
        assert not sent.done()
        proxy.admit()
        sent.result(timeout=60)
    publisher.close()
    await_depth(broker, run_id, 1)


def test_publish_waits_for_a_silent_broker_until_its_caller_raises(
    broker: Broker, proxy: RabbitProxy, run_id: str
) -> None:
    """A caller that raises nothing waits until the broker answers again."""

    class EnoughError(Exception):
        pass

    def waiting(waited_s: float) -> None:
        waits.append(waited_s)
        if len(waits) == 2:
            raise EnoughError

    waits: list[float] = []
    publisher = broker.publisher()
    proxy.stall()
    with ThreadPoolExecutor(1) as pool:
        patient = pool.submit(publisher.publish, TRAJECTORIES, run_id, finished(run_id))
        with pytest.raises(EnoughError):
            publisher.publish(TRAJECTORIES, run_id, finished(run_id, member=1), waiting=waiting)
        assert not patient.done()
        proxy.resume()
        patient.result(timeout=120)
    publisher.close()


def test_publish_gives_up_an_event_soon_while_the_broker_is_away(
    broker: Broker, proxy: RabbitProxy, run_id: str
) -> None:
    publisher = broker.publisher()
    proxy.refuse_and_wait()
    with pytest.raises(BrokerUnavailable, match="did not confirm an event"):
        publisher.publish(EVENTS, run_id, published_event(run_id))
    proxy.admit()
    publisher.close()


def test_the_number_of_unconfirmed_messages_is_bounded(
    broker: Broker, proxy: RabbitProxy, proxied_url: str, run_id: str
) -> None:
    publisher = RabbitPublisher(pika.URLParameters(proxied_url), 4096, window=3)

    def waiting() -> int:
        return len(publisher._outbox) + len(publisher._unconfirmed)

    proxy.refuse()
    with ThreadPoolExecutor(12) as pool:
        sent = [
            pool.submit(publisher.publish, TRAJECTORIES, run_id, finished(run_id, member=member))
            for member in range(12)
        ]
        eventually(
            lambda: all(one.running() for one in sent) and waiting() >= 3,
            within_s=60,
            text=lambda: str(waiting()),
        )
        proxy.refuse_and_wait()
        assert waiting() == 3
        proxy.admit()
        for one in sent:
            one.result(timeout=60)
    publisher.close()
    await_depth(broker, run_id, 12)


class PoisoningPublisher(RabbitPublisher):
    """A publisher that makes the broker close the channel (406) over messages with one body."""

    poison = b""

    def _properties(self, pending: Any, sequence: int) -> pika.BasicProperties:
        properties = super()._properties(pending, sequence)
        if pending.body == self.poison:
            properties.expiration = "never"
        return properties


def test_a_message_that_the_broker_refuses_fails_alone_and_the_others_arrive(
    amqp_url: str, run_id: str
) -> None:
    publisher, broker = PoisoningPublisher(pika.URLParameters(amqp_url), 4096), connect(amqp_url)
    sent = [finished(run_id, member=member) for member in range(40)]
    publisher.poison = encode(sent[17])
    with ThreadPoolExecutor(40) as pool:
        ends = [pool.submit(publisher.publish, TRAJECTORIES, run_id, each) for each in sent]
        failed = [number for number, end in enumerate(ends) if end.exception(timeout=120)]
    assert failed == [17]
    with pytest.raises(MessageRefused, match="PRECONDITION_FAILED"):
        ends[17].result()
    publisher.publish(TRAJECTORIES, run_id, finished(run_id, member=99))
    publisher.close()
    consumer = broker.consumer(trainer_queue(run_id))
    seen: set[int] = set()
    while len(seen) < 40:
        seen |= {each.message.trajectory.member for each in consumer.receive(50, 3600.0)}  # type: ignore[union-attr]
    assert seen == {*range(40), 99} - {17}
    consumer.close()
