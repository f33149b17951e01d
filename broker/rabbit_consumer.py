"""Consumes from RabbitMQ: the connection's thread receives frames, the caller's thread decodes
them.

channel ─▶ arrived ─▶ receive(): decode ─▶ Delivery ─▶ ack() ─▶ channel
          MessageError, refuse() ─▶ agentrl.dead, confirmed ─▶ ack
"""

import queue
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import pika

from agentrl.broker.api import Delivery
from agentrl.broker.messages import decode
from agentrl.broker.queue_names import DEAD, EVENTS, MAX_EVENTS
from agentrl.broker.rabbit_connection import RabbitConnection
from agentrl.core.errors import MessageError
from agentrl.core.logging import get_logger

PREFETCH = 128  # unacknowledged deliveries held at once
PATIENCE_S = 120.0  # without its queue before `receive` says so
NO_QUEUE = 404  # AMQP's code of a queue that is not there
ANSWER_S = 5.0  # for the broker to count a queue


class _Tag(NamedTuple):
    generation: int
    number: int


class RabbitConsumer:
    """Consumes one durable queue. For one thread."""

    def __init__(
        self, parameters: pika.URLParameters, queue_name: str, *, patience_s: float = PATIENCE_S
    ) -> None:
        self._patience_s = patience_s
        self._queue = queue_name
        self._arrived: queue.SimpleQueue[tuple[_Tag, bytes]] = queue.SimpleQueue()
        self._burials: dict[int, _Tag] = {}  # publish sequence of a dead letter -> what it acks
        self._buried = 0
        self._link = RabbitConnection(parameters, "consumer", self)
        self._link.start()

    def receive(self, limit: int, timeout_s: float) -> Sequence[Delivery]:
        end = time.monotonic() + timeout_s
        deliveries: list[Delivery] = []
        while len(deliveries) < limit:
            wait = 0.0 if deliveries else max(0.0, end - time.monotonic())
            try:
                tag, body = self._arrived.get(timeout=wait) if wait else self._arrived.get_nowait()
            except queue.Empty:
                break
            self._take(tag, body, deliveries)
        if (
            not deliveries
            and self._link.reply_code == NO_QUEUE
            and self._link.down_s() > self._patience_s
        ):
            raise self._link.failure()
        return deliveries

    def is_empty(self) -> bool:
        if self._link.down_s():
            return False
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def ask(channel: Any) -> None:
            channel.queue_declare(self._queue, passive=True, callback=answers.put)

        self._link.call(ask)
        try:
            found = answers.get(timeout=ANSWER_S).method
        except queue.Empty:
            return False
        # Another consumer, or a lost connection that the broker still counts, may hold messages.
        alone = found.consumer_count <= 1
        # What the broker sent before its answer has arrived before it.
        return bool(alone and found.message_count == 0 and self._arrived.empty())

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        tags = [delivery.tag for delivery in deliveries if isinstance(delivery.tag, _Tag)]

        def acknowledge(channel: Any) -> None:
            for tag in tags:
                self._ack(channel, tag)

        self._link.call(acknowledge)

    def refuse(self, delivery: Delivery, reason: str) -> None:
        tag = delivery.tag
        if isinstance(tag, _Tag):
            self._dead(tag, delivery.wire, reason)

    def close(self) -> None:
        self._link.close()

    def on_open(self, channel: Any) -> None:
        channel.confirm_delivery(self._on_confirm)
        channel.basic_qos(prefetch_count=PREFETCH)
        channel.add_on_cancel_callback(lambda _: channel.close(404, "the queue was deleted"))
        channel.basic_consume(self._queue, self._on_message, callback=lambda _: self._link.ready())

    def on_loss(self) -> None:
        self._burials.clear()
        self._buried = 0
        with suppress(queue.Empty):
            while True:
                self._arrived.get_nowait()

    def _on_message(self, _channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        self._arrived.put((_Tag(self._link.generation, method.delivery_tag), body))

    def _take(self, tag: _Tag, body: bytes, deliveries: list[Delivery]) -> None:
        try:
            deliveries.append(Delivery(decode(body), body, tag))
        except MessageError as error:
            self._dead(tag, body, str(error))

    def _dead(self, tag: _Tag, body: bytes, reason: str) -> None:
        get_logger().warning("Message dead-lettered", queue=self._queue, reason=reason)
        self._link.call(lambda channel: self._bury(channel, tag, body, reason))

    def _bury(self, channel: Any, tag: _Tag, body: bytes, reason: str) -> None:
        if tag.generation != self._link.generation:
            return
        self._buried += 1
        self._burials[self._buried] = tag
        headers = {"reason": reason[:1000]}
        properties = pika.BasicProperties(headers=headers, delivery_mode=2)
        channel.basic_publish(DEAD, self._queue, body, properties)

    def _on_confirm(self, frame: Any) -> None:
        """Acknowledge the original of a confirmed dead letter."""
        method = frame.method
        upto = method.delivery_tag
        numbers = [n for n in self._burials if n == upto or (method.multiple and n < upto)]
        for number in numbers:
            tag = self._burials.pop(number)
            if isinstance(method, pika.spec.Basic.Ack):
                self._link.call(partial(self._ack, tag=tag))

    def _ack(self, channel: Any, tag: _Tag) -> None:
        if tag.generation == self._link.generation:
            channel.basic_ack(tag.number)


class RabbitSubscriber(RabbitConsumer):
    """Consumes a run's events from now on, through an exclusive queue."""

    def __init__(self, parameters: pika.URLParameters, run_id: str) -> None:
        self._run_id = run_id
        super().__init__(parameters, "")

    def on_open(self, channel: Any) -> None:
        self._queue = f"events.{self._run_id}.{uuid.uuid4().hex}"
        channel.exchange_declare(EVENTS, "direct", durable=True)
        channel.queue_declare(
            self._queue, exclusive=True, auto_delete=True, arguments={"x-max-length": MAX_EVENTS}
        )
        channel.queue_bind(self._queue, EVENTS, self._run_id)
        super().on_open(channel)

    def receive(self, limit: int, timeout_s: float) -> Sequence[Delivery]:
        deliveries = super().receive(limit, timeout_s)
        self.ack(deliveries)
        return deliveries
