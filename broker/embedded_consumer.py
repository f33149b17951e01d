"""The consumers of the embedded broker: of a queue, and of a run's events."""

import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from agentrl.broker.api import LOOK_S, Delivery
from agentrl.broker.embedded_queue_file import Clock, QueueFile, drop_queues
from agentrl.broker.messages import decode
from agentrl.broker.queue_names import EVENTS
from agentrl.core.errors import BrokerError, BrokerUnavailable, MessageError
from agentrl.core.logging import get_logger
from agentrl.core.retry import Backoff, Retry

SUBSCRIBER_LEASE_S = 60.0  # a subscriber that has not looked for this long is gone
TOUCH_S = 5.0  # how often a subscriber says that it is there
SETTLE_S = 0.1  # for the file to take what may as well wait


class EmbeddedConsumer:
    """Reads a queue in order, starting at the oldest unacknowledged message.

    If the file cannot be written (a full disk), acknowledgements are written later with the next
    ones. A file that cannot be read has no messages until it can.
    """

    def __init__(self, file: QueueFile, queue: str) -> None:
        self._file = file
        self._queue = queue
        self._token = uuid.uuid4().hex
        self._cursor = 0
        self._acks: list[object] = []  # which the file did not take yet
        self._burials: list[tuple[object, bytes, str]] = []  # the same: id, body, reason
        self._retry = Retry("broker", BrokerUnavailable, backoff=Backoff(longest_s=LOOK_S))
        with file.write() as connection:
            connection.execute("REPLACE INTO consumers VALUES (?, ?)", (queue, self._token))

    def receive(self, limit: int, timeout_s: float) -> Sequence[Delivery]:
        end = time.monotonic() + timeout_s
        self._settle()
        while True:
            mark, left = self._file.mark(), end - time.monotonic()
            try:
                rows = self._retry.call(partial(self._rows, limit), limit_s=max(left, SETTLE_S))
            except BrokerUnavailable:
                return []
            deliveries = self._decode_rows(rows)
            left = end - time.monotonic()
            if deliveries or left <= 0:
                return deliveries
            if not rows:
                self._file.await_commit(mark, left)

    def is_empty(self) -> bool:
        later = "SELECT 1 FROM messages WHERE queue = ? AND id > ? LIMIT 1"
        try:
            with self._file.read() as connection:
                return connection.execute(later, (self._queue, self._cursor)).fetchone() is None
        except BrokerUnavailable:
            return False

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        self._acks += [delivery.tag for delivery in deliveries]
        self._settle()

    def refuse(self, delivery: Delivery, reason: str) -> None:
        self._bury(delivery.tag, delivery.wire, reason)
        self._settle()

    def close(self) -> None:
        """Write pending acknowledgements if possible; else the next consumer gets the messages."""
        self._settle()
        try:
            self._leave()
        except BrokerUnavailable as error:
            get_logger().warning("Queue not deleted", queue=self._queue, error=str(error))

    def _leave(self) -> None:
        with self._file.write() as connection:
            connection.execute(
                "DELETE FROM consumers WHERE queue = ? AND token = ?", (self._queue, self._token)
            )

    def _rows(self, limit: int) -> list[tuple[int, bytes]]:
        with self._file.read() as connection:
            owner = connection.execute(
                "SELECT token FROM consumers WHERE queue = ?", (self._queue,)
            ).fetchone()
            if owner != (self._token,):
                raise BrokerError(
                    f"queue {self._queue} was deleted or taken over by another consumer"
                )
            rows: list[tuple[int, bytes]] = connection.execute(
                "SELECT id, body FROM messages WHERE queue = ? AND id > ? ORDER BY id LIMIT ?",
                (self._queue, self._cursor, limit),
            ).fetchall()
        if rows:
            self._cursor = rows[-1][0]
        return rows

    def _decode_rows(self, rows: list[tuple[int, bytes]]) -> list[Delivery]:
        deliveries = []
        for number, body in rows:
            try:
                deliveries.append(Delivery(decode(body), body, number))
            except MessageError as error:
                self._bury(number, body, str(error))
        self._settle()
        return deliveries

    def _bury(self, number: object, body: bytes, reason: str) -> None:
        get_logger().warning("Message dead-lettered", queue=self._queue, reason=reason)
        self._burials.append((number, body, reason))

    def _settle(self) -> None:
        """Write acknowledgements and dead letters if the file can be written."""
        if not self._acks and not self._burials:
            return
        try:
            self._retry.call(self._write, limit_s=SETTLE_S)
        except BrokerUnavailable:  # the retry has said so
            return
        self._acks.clear()
        self._burials.clear()

    def _write(self) -> None:
        gone = [*self._acks, *(number for number, _, _ in self._burials)]
        with self._file.write() as connection:
            connection.executemany(
                "INSERT INTO dead (queue, reason, body) VALUES (?, ?, ?)",
                [(self._queue, reason, body) for _, body, reason in self._burials],
            )
            connection.executemany(
                "DELETE FROM messages WHERE id = ? AND queue = ?",
                [(number, self._queue) for number in gone],
            )


class EmbeddedSubscriber(EmbeddedConsumer):
    """Reads a run's events from now on, and acknowledges them itself."""

    def __init__(self, file: QueueFile, run_id: str, clock: Clock = time.time) -> None:
        super().__init__(file, f"events.{run_id}.{uuid.uuid4().hex}")
        self._run_id = run_id
        self._clock = clock
        self._touched = 0.0
        self._touch()

    def receive(self, limit: int, timeout_s: float) -> Sequence[Delivery]:
        end = time.monotonic() + timeout_s
        while True:
            with suppress(BrokerUnavailable):  # the retry has said so
                self._retry.call(self._touch, limit_s=SETTLE_S)
            left = max(0.0, end - time.monotonic())
            deliveries = super().receive(limit, min(left, TOUCH_S))
            if deliveries:
                self.ack(deliveries)
            if deliveries or left <= TOUCH_S:
                return deliveries

    def _leave(self) -> None:
        with self._file.write() as connection:
            drop_queues(connection, [self._queue])

    def _touch(self) -> None:
        """Renew the lease; bind the queue again if it was removed meanwhile."""
        now = self._clock()
        if 0.0 <= now - self._touched < TOUCH_S:
            return
        self._touched = now
        with self._file.write() as connection:
            connection.execute(
                "REPLACE INTO bindings VALUES (?, ?, ?, ?)",
                (EVENTS, self._run_id, self._queue, now + SUBSCRIBER_LEASE_S),
            )
            connection.execute("REPLACE INTO consumers VALUES (?, ?)", (self._queue, self._token))
