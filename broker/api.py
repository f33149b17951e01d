"""What a broker gives its users; `broker.connect(url)` chooses RabbitMQ or the embedded twin.

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
from agentrl.core.errors import BrokerUnavailable
from agentrl.core.retry import FOREVER, Retry

LOOK_S = 1.0  # between two calls of `waiting`
EVENT_PATIENCE_S = 5.0  # for an event: one that is lost only delays

# Called about once in LOOK_S while a publish waits for the broker, with the seconds it has waited;
# what it raises ends the wait.
Waiting = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Delivery:
    """A decoded message and what acknowledges it. `wire`: the body as it came."""

    message: Message
    wire: bytes
    tag: object


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that a consumer could not take, and why."""

    queue: str
    reason: str
    body: bytes

    @property
    def letter_id(self) -> str:
        """The same for every copy of a body in one queue, whatever the reason; 12 hex digits."""
        return letter_id(self.queue, self.body)


def letter_id(queue: str, body: bytes) -> str:
    return hashlib.sha256(queue.encode() + b"\0" + body).hexdigest()[:12]


class Publisher(Protocol):
    def publish(
        self, exchange: str, run_id: str, message: Message, *, waiting: Waiting | None = None
    ) -> None:
        """Return once the broker holds the message, however long it is away.

        Raises MessageRefused where it will never take it, what `waiting` raises, and for an event,
        after EVENT_PATIENCE_S, BrokerUnavailable.
        """

    def close(self) -> None: ...


class Consumer(Protocol):
    def receive(self, limit: int, timeout_s: float) -> Sequence[Delivery]:
        """Up to `limit` deliveries; waits at most `timeout_s` for the first, empty where none came.

        What cannot be decoded goes to the queue's dead letters and is not returned. Reconnects with
        back-off by itself; unacknowledged deliveries then come again.
        """

    def is_empty(self) -> bool:
        """Whether all that was ever published to the queue has been received.

        False also where the broker cannot be asked, or another consumer of the queue may hold some.
        """

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge; a delivery of a connection that is gone is passed over, it comes again."""

    def refuse(self, delivery: Delivery, reason: str) -> None:
        """To the queue's dead letters, for good: it was decoded and cannot be used all the same."""

    def close(self) -> None: ...


def patience(stop: threading.Event | None) -> Retry:
    """How a process waits for its broker: until `stop` is set, or not at all where it has none."""
    limit_s = 0.0 if stop is None else FOREVER
    return Retry("broker", is_away, limit_s=limit_s, stop=stop)


def is_away(error: BaseException) -> bool:
    return isinstance(error, BrokerUnavailable)


class Broker(Protocol):
    def declare_run(self, run_id: str) -> None:
        """Make the run's queues, so that nothing published before a consumer is lost."""

    def stands(self, run_id: str) -> bool:
        """Whether the run's queues are there."""

    def delete_run(self, run_id: str) -> None:
        """Remove all that belongs to the run."""

    def publisher(self) -> Publisher: ...

    def consumer(self, queue: str) -> Consumer:
        """Consume one of the run's durable queues (names in broker/topology.py)."""

    def subscriber(self, run_id: str) -> Consumer:
        """Consume the run's events from now on, for this process alone; nothing stays behind."""

    def depths(self, run_id: str) -> dict[str, int]:
        """Messages waiting in each of the run's queues, dead letters included."""

    def dead_letters(self, run_id: str) -> Sequence[DeadLetter]:
        """The run's dead letters, oldest first, left in place."""

    def requeue(self, run_id: str, letter_ids: Collection[str]) -> int:
        """Put those dead letters back into their queues, once each, and drop their other copies.

        Returns how many were put back. Raises BrokerError.
        """

    def close(self) -> None: ...
