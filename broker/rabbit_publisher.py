"""Publishes to RabbitMQ from many threads over one channel and waits for each confirm.

threads ─▶ outbox ─▶ link's thread ─▶ unconfirmed ─▶ confirm ─▶ its caller returns
             ▲                            │
             └────── connection lost ◀────┘

The publisher waits for a broker that is unavailable or blocked by a disk or memory alarm. If the
broker closes the channel because of a message (406, too large), the messages of the window are sent
one by one: only the refused message fails.
"""

import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pika

from agentrl.broker.api import EVENT_PATIENCE_S, LOOK_S, Unroutable, Waiting
from agentrl.broker.messages import Message, encode
from agentrl.broker.queue_names import EVENTS, EXCHANGES
from agentrl.broker.rabbit_connection import RabbitConnection
from agentrl.core.errors import BrokerError, BrokerUnavailable, MessageRefused

WINDOW = 128  # messages on their way to a confirm; bounds memory
RETRY_S = 0.5  # after the broker refused it
PRECONDITION_FAILED = 406  # AMQP's code of a message that the broker will not take


@dataclass(eq=False, slots=True)
class _Pending:
    exchange: str
    run_id: str
    body: bytes
    returned: bool = False
    done: "Future[None]" = field(default_factory=Future)

    def settle(self, error: BrokerError | None) -> None:
        """Wake the caller if it still waits."""
        if self.done.set_running_or_notify_cancel():
            if error is None:
                self.done.set_result(None)
            else:
                self.done.set_exception(error)


class RabbitPublisher:
    """Publishes with confirms. `publish` is thread-safe."""

    def __init__(
        self, parameters: pika.URLParameters, compress_above: int, *, window: int = WINDOW
    ) -> None:
        self._compress_above = compress_above
        self._slots = threading.BoundedSemaphore(window)
        self._outbox: deque[_Pending] = deque()
        self._unconfirmed: dict[int, _Pending] = {}  # by publish sequence, ascending
        self._sequence = 0
        self._singly = False  # one message at a time, until it is known which one is refused
        self._link = RabbitConnection(parameters, "publisher", self)
        self._link.start()

    def publish(
        self, exchange: str, run_id: str, message: Message, *, waiting: Waiting | None = None
    ) -> None:
        pending = _Pending(exchange, run_id, encode(message, compress_above=self._compress_above))
        began = time.monotonic()

        def look() -> None:
            waited_s = time.monotonic() - began
            if waiting is not None:
                waiting(waited_s)
            if exchange == EVENTS and waited_s > EVENT_PATIENCE_S:
                failure = self._link.failure()
                raise BrokerUnavailable(
                    f"RabbitMQ did not confirm an event: {failure}", hint=failure.hint
                )

        while not self._slots.acquire(timeout=LOOK_S):
            look()
        try:
            self._outbox.append(pending)
            self._link.call(self._drain)
            while True:
                try:
                    return pending.done.result(LOOK_S)
                except TimeoutError:
                    look()
        finally:
            pending.done.cancel()
            self._slots.release()

    def close(self) -> None:
        self._link.close()

    def on_open(self, channel: Any) -> None:
        for exchange in EXCHANGES:
            channel.exchange_declare(exchange, "direct", durable=True)
        channel.add_on_return_callback(self._on_return)
        channel.confirm_delivery(self._on_confirm, callback=lambda _: self._on_ready(channel))

    def on_loss(self) -> None:
        """Queue unconfirmed messages again, in order, before later ones."""
        waiting = list(self._unconfirmed.values())
        if self._link.reply_code == PRECONDITION_FAILED:
            if len(waiting) == 1:
                waiting.pop().settle(
                    MessageRefused(
                        f"RabbitMQ refused the message: {self._link.why}",
                        hint="raise max_message_size in rabbitmq.conf (up to 128 MiB)",
                    )
                )
            else:
                self._singly = bool(waiting)
        self._outbox.extendleft(reversed(waiting))
        self._unconfirmed.clear()
        self._sequence = 0

    def _on_ready(self, channel: Any) -> None:
        self._link.ready()
        self._drain(channel)

    def _drain(self, channel: Any) -> None:
        while self._outbox and self._link.down_s() == 0:
            if self._singly and self._unconfirmed:
                return
            pending = self._outbox.popleft()
            if not pending.done.cancelled():
                self._send(channel, pending)
        if not self._outbox and not self._unconfirmed:
            self._singly = False

    def _send(self, channel: Any, pending: _Pending) -> None:
        event = pending.exchange == EVENTS
        pending.returned = False
        self._sequence += 1
        self._unconfirmed[self._sequence] = pending
        properties = self._properties(pending, self._sequence)
        channel.basic_publish(
            pending.exchange, pending.run_id, pending.body, properties, mandatory=not event
        )

    def _properties(self, pending: _Pending, sequence: int) -> pika.BasicProperties:
        durable = pending.exchange != EVENTS
        return pika.BasicProperties(message_id=str(sequence), delivery_mode=2 if durable else 1)

    def _on_return(self, _channel: Any, _method: Any, properties: Any, _body: bytes) -> None:
        """Handle a returned (unroutable) message; it arrives before its confirm."""
        self._unconfirmed[int(properties.message_id)].returned = True

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        known = self._unconfirmed
        tags = [method.delivery_tag]
        if method.multiple:
            tags = [tag for tag in known if tag <= method.delivery_tag]
        for tag in tags:
            pending = known.pop(tag)
            if not isinstance(method, pika.spec.Basic.Ack):
                self._outbox.append(pending)
                self._link.later(RETRY_S, self._drain)
            else:
                error = Unroutable(pending.exchange, pending.run_id) if pending.returned else None
                pending.settle(error)
        if self._singly:
            self._link.call(self._drain)
