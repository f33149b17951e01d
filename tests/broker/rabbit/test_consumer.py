"""When RabbitConsumer waits, when it raises, and how it recovers from a failed callback."""

import time
from typing import Any

import pika
import pytest
from rabbit_proxy import RabbitProxy
from trajectories import finished

from agentrl.broker import connect
from agentrl.broker.api import Broker, Delivery
from agentrl.broker.queue_names import TRAJECTORIES, trainer_queue
from agentrl.broker.rabbit_consumer import RabbitConsumer
from agentrl.core.errors import BrokerError


def test_a_consumer_waits_longer_for_an_unavailable_broker_than_for_its_queue(
    proxy: RabbitProxy, proxied_url: str, amqp_url: str, run_id: str
) -> None:
    parameters, queue = pika.URLParameters(proxied_url), trainer_queue(run_id)
    consumer = RabbitConsumer(parameters, queue, patience_s=0.0)
    proxy.refuse_and_wait()
    assert consumer.receive(1, 0.1) == []
    publisher = connect(amqp_url).publisher()
    publisher.publish(TRAJECTORIES, run_id, finished(run_id))
    publisher.close()
    proxy.admit()
    assert len(consumer.receive(1, 3600.0)) == 1
    consumer.close()


def test_consuming_a_queue_that_was_never_declared_is_an_error(amqp_url: str) -> None:
    with pytest.raises(BrokerError, match="no queue"):
        connect(amqp_url).consumer(trainer_queue("test-never-declared"))


def test_a_consumer_whose_queue_was_deleted_raises(
    broker: Broker, proxied_url: str, run_id: str
) -> None:
    parameters = pika.URLParameters(proxied_url)
    consumer = RabbitConsumer(parameters, trainer_queue(run_id), patience_s=0.5)
    broker.delete_run(run_id)

    def receive_for_ever() -> None:
        while True:
            consumer.receive(1, 0.2)

    with pytest.raises(BrokerError, match="no queue"):
        receive_for_ever()
    consumer.close()


def test_a_consumer_receives_again_after_a_callback_failed(
    broker: Broker, run_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    publisher, consumer = broker.publisher(), broker.consumer(trainer_queue(run_id))

    def fail(_channel: Any) -> None:
        raise KeyError("nothing")

    consumer._link.call(fail)  # type: ignore[attr-defined]
    publisher.publish(TRAJECTORIES, run_id, finished(run_id))
    received: list[Delivery] = []
    end = time.monotonic() + 60
    while not received and time.monotonic() < end:
        received += consumer.receive(1, 0.2)
    assert received
    assert consumer._link.generation > 1  # type: ignore[attr-defined]
    consumer.ack(received)
    publisher.close()
    consumer.close()
    assert "Broker connection failed" in "".join(capsys.readouterr())
