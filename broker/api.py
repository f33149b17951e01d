"""The broker interface. `broker.connect(url)` chooses RabbitMQ or the embedded broker.

    publisher.publish(exchange, run_id, message)  ─▶ returns when the broker has confirmed
    consumer.receive(limit, timeout_s)            ─▶ deliveries; consumer.ack(deliveries)

Publishers may be used from many threads at once; a consumer belongs to one thread.
"""

import hashlib
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from agentrl.broker.messages import Message
from agentrl.core.errors import BrokerUnavailable, MessageRefused
from agentrl.core.retry import FOREVER, Retry

LOOK_S = 1.0  # between two calls of `waiting`
EVENT_PATIENCE_S = 5.0  # for an event: one that is lost only delays

# Called about once in LOOK_S while a publish waits for the broker, with the seconds it has waited;
# what it raises ends the wait.
Waiting = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Delivery:
    """A decoded message with its delivery tag. `wire`: the body as received."""

    message: Message
    wire: bytes
    tag: object


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that a consumer could not process, and the reason."""

    queue: str
    reason: str
    body: bytes

    @property
    def letter_id(self) -> str:
        """Return the id of a dead letter: 12 hex digits, equal for all copies in a queue."""
        return letter_id(self.queue, self.body)


def letter_id(queue: str, body: bytes) -> str:
    return hashlib.sha256(queue.encode() + b"\0" + body).hexdigest()[:12]


class Publisher(Protocol):
    def publish(
        self, exchange: str, run_id: str, message: Message, *, waiting: Waiting | None = None
    ) -> None:
        """Publish a message and wait for the confirm, also while the broker is unavailable.

        Raises MessageRefused if the broker will never accept it, errors of `waiting`, and, for an
        event, BrokerUnavailable after EVENT_PATIENCE_S.
        """

    def close(self) -> None: ...


class Consumer(Protocol):
    def receive(self, limit: int, timeout_s: float) -> Sequence[Delivery]:
        """Return up to `limit` deliveries; wait at most `timeout_s` for the first one.

        Messages that cannot be decoded are dead-lettered and not returned. The consumer reconnects
        with back-off; unacknowledged deliveries are then delivered again.
        """

    def is_empty(self) -> bool:
        """Return whether everything published to the queue has been received.

        False also if the broker is unavailable, or another consumer may hold messages.
        """

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge. Deliveries of a lost connection are ignored; they are delivered again."""

    def refuse(self, delivery: Delivery, reason: str) -> None:
        """Dead-letter a delivery that was decoded but cannot be used."""

    def close(self) -> None: ...


def make_retry(stop: threading.Event | None) -> Retry:
    """Return how a process waits for its broker: until `stop` is set, or not at all without it."""
    limit_s = 0.0 if stop is None else FOREVER
    return Retry("broker", BrokerUnavailable, limit_s=limit_s, stop=stop)


class Unroutable(MessageRefused):
    """The run has no queues."""

    def __init__(self, exchange: str, run_id: str) -> None:
        super().__init__(
            f"exchange {exchange} has no queue for messages of run {run_id}",
            hint="start the run (`agentrl up CONFIG`): that declares its queues",
        )


class Broker(Protocol):
    def declare_run(self, run_id: str) -> None:
        """Create the run's queues, so that messages published before a consumer exists are kept."""

    def queues_exist(self, run_id: str) -> bool: ...

    def delete_run(self, run_id: str) -> None:
        """Delete everything that belongs to the run."""

    def publisher(self) -> Publisher: ...

    def consumer(self, queue: str) -> Consumer:
        """Consume one of the run's durable queues (names in broker/queue_names.py)."""

    def subscriber(self, run_id: str) -> Consumer:
        """Consume the run's events from now on, for this process only; leaves nothing behind."""

    def depths(self, run_id: str) -> dict[str, int]:
        """Return the number of messages in each of the run's queues, including dead letters."""

    def dead_letters(self, run_id: str) -> Sequence[DeadLetter]:
        """Return the run's dead letters, oldest first, without removing them."""

    def requeue(self, run_id: str, letter_ids: Collection[str]) -> int:
        """Requeue these dead letters, each once, and delete their other copies.

        Returns the number of requeued letters. Raises BrokerError.
        """

    def close(self) -> None: ...
