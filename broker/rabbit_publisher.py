"""Publishing to RabbitMQ from many threads over one channel, each message confirmed.

threads ─▶ outbox ─▶ link's thread ─▶ unconfirmed ─▶ confirm ─▶ its caller returns
             ▲                            │
             └────── connection lost ◀────┘
"""

import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pika

from broker.messages import Message, encode
from broker.rabbit_link import Link
from broker.topology import EVENTS, EXCHANGES
from core.errors import BrokerError, MessageRefused
from core.trajectory import MAX_BYTES

WINDOW = 128  # messages on their way to a confirm; bounds memory
CONFIRM_S = 60.0  # for one message to be confirmed, reconnections included
TRIES = 5  # times one message is sent
RETRY_S = 0.5  # after the broker refused it


@dataclass(eq=False, slots=True)
class _Pending:
    exchange: str
    run_id: str
    body: bytes
    tries: int = 0
    returned: bool = False
    done: "Future[None]" = field(default_factory=Future)

    def settle(self, error: BrokerError | None) -> None:
        """Wake the caller, unless it gave up."""
        if self.done.set_running_or_notify_cancel():
            if error is None:
                self.done.set_result(None)
            else:
                self.done.set_exception(error)


class RabbitPublisher:
    """`publish` may be called from many threads at once."""

    def __init__(
        self, parameters: pika.URLParameters, compress_above: int, *, window: int = WINDOW
    ) -> None:
        self._compress_above = compress_above
        self._slots = threading.BoundedSemaphore(window)
        self._outbox: deque[_Pending] = deque()
        self._unconfirmed: dict[int, _Pending] = {}  # by publish sequence, ascending
        self._sequence = 0
        self._link = Link(parameters, "publisher", self)
        self._link.start()

    def publish(self, exchange: str, run_id: str, message: Message) -> None:
        body = encode(message, compress_above=self._compress_above)
        if len(body) > MAX_BYTES:
            raise MessageRefused(f"message of {len(body)} bytes, the limit is {MAX_BYTES}")
        pending = _Pending(exchange, run_id, body)
        with self._slots:
            self._outbox.append(pending)
            self._link.call(self._drain)
            try:
                pending.done.result(CONFIRM_S)
            except TimeoutError:
                if pending.done.cancel():
                    raise self._unanswered() from None
                pending.done.result()

    def close(self) -> None:
        self._link.close()

    def opened(self, channel: Any) -> None:
        for exchange in EXCHANGES:
            channel.exchange_declare(exchange, "direct", durable=True)
        channel.add_on_return_callback(self._returned)
        channel.confirm_delivery(self._confirmed, callback=lambda _: self._ready(channel))

    def lost(self) -> None:
        """What was not confirmed goes out again, in its order, before what came later."""
        self._outbox.extendleft(reversed(self._unconfirmed.values()))
        self._unconfirmed.clear()
        self._sequence = 0

    def _ready(self, channel: Any) -> None:
        self._link.ready()
        self._drain(channel)

    def _drain(self, channel: Any) -> None:
        while self._outbox and self._link.down_s() == 0:
            pending = self._outbox.popleft()
            if pending.done.cancelled():
                continue
            if pending.tries == TRIES:
                pending.settle(self._unanswered())
                continue
            self._send(channel, pending)

    def _send(self, channel: Any, pending: _Pending) -> None:
        event = pending.exchange == EVENTS
        pending.tries += 1
        pending.returned = False
        self._sequence += 1
        self._unconfirmed[self._sequence] = pending
        properties = pika.BasicProperties(
            message_id=str(self._sequence), delivery_mode=1 if event else 2
        )
        channel.basic_publish(
            pending.exchange, pending.run_id, pending.body, properties, mandatory=not event
        )

    def _returned(self, _channel: Any, _method: Any, properties: Any, _body: bytes) -> None:
        """The broker says so before it confirms."""
        self._unconfirmed[int(properties.message_id)].returned = True

    def _confirmed(self, frame: Any) -> None:
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
                pending.settle(_unroutable(pending) if pending.returned else None)

    def _unanswered(self) -> BrokerError:
        failure = self._link.failure()
        return BrokerError(f"message not confirmed. {failure}", mend=failure.mend)


def _unroutable(pending: _Pending) -> BrokerError:
    return MessageRefused(
        f"no queue takes messages of run {pending.run_id} on {pending.exchange}",
        mend="start the run's dispatcher first: it declares the run's queues",
    )
