"""RabbitMQ's embedded twin: one SQLite file, the same interface, the real encoding.

    publish ─▶ one row per bound queue ─▶ receive: rows after the cursor ─▶ ack: rows deleted

A queue has one consumer at a time. What a consumer did not acknowledge stays in its rows, so a new
consumer, whose cursor starts at zero, takes over at once what a dead process left. A queue of
events belongs to one subscriber; it is bounded, and removed when its owner stops reading.
Commits survive a killed process (WAL, synchronous NORMAL), not always a power cut.
"""

import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from agentrl.broker.api import (
    EVENT_PATIENCE_S,
    LOOK_S,
    Consumer,
    DeadLetter,
    Delivery,
    Publisher,
    Waiting,
    is_away,
    letter_id,
    patience,
)
from agentrl.broker.embedded_file import BUSY_S, QueueFile
from agentrl.broker.messages import Message, decode, encode
from agentrl.broker.topology import EVENTS, TRAJECTORIES, dead_queue, run_queues
from agentrl.core.errors import BrokerError, BrokerUnavailable, MessageError, MessageRefused
from agentrl.core.logging import get_logger
from agentrl.core.retry import FOREVER, Backoff, Retry

MAX_EVENTS = 1000  # kept per subscriber; the oldest give way
SUBSCRIBER_LEASE_S = 60.0  # a subscriber that has not looked for this long is gone
TOUCH_S = 5.0  # how often a subscriber says that it is there
SETTLE_S = 0.1  # for the file to take what may as well wait

Clock = Callable[[], float]  # seconds since the epoch


class EmbeddedPublisher:
    """Publishes into the file; a commit is the confirm."""

    def __init__(self, file: QueueFile, compress_above: int, clock: Clock = time.time) -> None:
        self._file = file
        self._compress_above = compress_above
        self._clock = clock
        self._retry = Retry("broker", is_away, backoff=Backoff(longest_s=LOOK_S))

    def publish(
        self, exchange: str, run_id: str, message: Message, *, waiting: Waiting | None = None
    ) -> None:
        body = encode(message, compress_above=self._compress_above)
        began, tries = time.monotonic(), 0

        def put() -> None:
            nonlocal tries
            tries += 1
            if waiting is not None and tries > 1:
                waiting(time.monotonic() - began)
            self._put(exchange, run_id, body)

        self._retry.call(put, limit_s=EVENT_PATIENCE_S if exchange == EVENTS else FOREVER)

    def _put(self, exchange: str, run_id: str, body: bytes) -> None:
        with self._file.write() as connection:
            if exchange == EVENTS:
                _forget_subscribers(connection, self._clock())
            queues = connection.execute(
                "SELECT queue FROM bindings WHERE exchange = ? AND run_id = ?", (exchange, run_id)
            ).fetchall()
            connection.executemany(
                "INSERT INTO messages (queue, body) VALUES (?, ?)", [(q, body) for (q,) in queues]
            )
            if exchange == EVENTS:
                _bound_events(connection, [queue for (queue,) in queues])
        if not queues and exchange != EVENTS:
            raise MessageRefused(
                f"no queue takes messages of run {run_id} on {exchange}",
                hint="start the run's dispatcher first: it declares the run's queues",
            )

    def close(self) -> None:
        """The file belongs to the broker."""


class EmbeddedConsumer:
    """Reads a queue in order from the oldest message that was not acknowledged.

    A file that takes nothing for now, because the disk is full for instance, gets what it has to
    take with what follows; one that cannot be read holds no messages until it can.
    """

    def __init__(self, file: QueueFile, queue: str) -> None:
        self._file = file
        self._queue = queue
        self._token = uuid.uuid4().hex
        self._cursor = 0
        self._acks: list[object] = []  # which the file did not take yet
        self._burials: list[tuple[object, bytes, str]] = []  # the same: id, body, reason
        self._retry = Retry("broker", is_away, backoff=Backoff(longest_s=LOOK_S))
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
            deliveries = self._decoded(rows)
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
        """What the file does not take now, the next consumer finds as it was."""
        self._settle()
        try:
            self._leave()
        except BrokerUnavailable as error:
            get_logger().warning("Queue left as it is", queue=self._queue, error=str(error))

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
                raise BrokerError(f"{self._queue}: deleted, or taken over by another consumer")
            rows: list[tuple[int, bytes]] = connection.execute(
                "SELECT id, body FROM messages WHERE queue = ? AND id > ? ORDER BY id LIMIT ?",
                (self._queue, self._cursor, limit),
            ).fetchall()
        if rows:
            self._cursor = rows[-1][0]
        return rows

    def _decoded(self, rows: list[tuple[int, bytes]]) -> list[Delivery]:
        deliveries = []
        for number, body in rows:
            try:
                deliveries.append(Delivery(decode(body), body, number))
            except MessageError as error:
                self._bury(number, body, str(error))
        self._settle()
        return deliveries

    def _bury(self, number: object, body: bytes, reason: str) -> None:
        get_logger().warning("message dead-lettered", queue=self._queue, reason=reason)
        self._burials.append((number, body, reason))

    def _settle(self) -> None:
        """Write what was acknowledged and dead-lettered, if the file takes it now."""
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
    """Reads a run's events from now on; acknowledges by itself."""

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
            _drop_queues(connection, [self._queue])

    def _touch(self) -> None:
        """Renew the lease; bind and own the queue again where others already forgot us."""
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


class EmbeddedBroker:
    """The Broker of `sqlite:///file`; the file is made where it is missing."""

    def __init__(
        self,
        url: str,
        compress_above: int = 4096,
        *,
        stop: threading.Event | None = None,
        busy_s: float = BUSY_S,
        clock: Clock = time.time,
    ) -> None:
        self._retry = patience(stop)
        path = Path(url.removeprefix("sqlite:///"))
        self._file = self._retry.call(lambda: QueueFile(path, busy_s=busy_s))
        self._compress_above = compress_above
        self._clock = clock

    def declare_run(self, run_id: str) -> None:
        self._retry.call(partial(self._declare, run_id))

    def _declare(self, run_id: str) -> None:
        with self._file.write() as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO bindings VALUES (?, ?, ?, NULL)",
                [(TRAJECTORIES, run_id, queue) for queue in run_queues(run_id)],
            )

    def stands(self, run_id: str) -> bool:
        return self._retry.call(partial(self._stands, run_id))

    def _stands(self, run_id: str) -> bool:
        known = "SELECT count(*) FROM bindings WHERE exchange = ? AND run_id = ?"
        with self._file.read() as connection:
            (count,) = connection.execute(known, (TRAJECTORIES, run_id)).fetchone()
        return bool(count)

    def delete_run(self, run_id: str) -> None:
        queues = list(run_queues(run_id))
        with self._file.write() as connection:
            bound = connection.execute("SELECT queue FROM bindings WHERE run_id = ?", (run_id,))
            _drop_queues(connection, queues + [queue for (queue,) in bound.fetchall()])
            connection.executemany("DELETE FROM dead WHERE queue = ?", [(q,) for q in queues])

    def publisher(self) -> Publisher:
        return EmbeddedPublisher(self._file, self._compress_above, self._clock)

    def consumer(self, queue: str) -> Consumer:
        return self._retry.call(lambda: EmbeddedConsumer(self._file, queue))

    def subscriber(self, run_id: str) -> Consumer:
        return EmbeddedSubscriber(self._file, run_id, self._clock)

    def depths(self, run_id: str) -> dict[str, int]:
        depths = {}
        with self._file.read() as connection:
            for queue in run_queues(run_id):
                for name, table in ((queue, "messages"), (dead_queue(queue), "dead")):
                    count = f"SELECT count(*) FROM {table} WHERE queue = ?"  # noqa: S608
                    (depths[name],) = connection.execute(count, (queue,)).fetchone()
        return depths

    def dead_letters(self, run_id: str) -> Sequence[DeadLetter]:
        with self._file.read() as connection:
            rows = connection.execute(
                "SELECT queue, reason, body FROM dead WHERE queue IN (?, ?) ORDER BY id",
                run_queues(run_id),
            ).fetchall()
        return [DeadLetter(*row) for row in rows]

    def requeue(self, run_id: str, letter_ids: Collection[str]) -> int:
        back: set[str] = set()
        with self._file.write() as connection:
            rows = connection.execute(
                "SELECT id, queue, body FROM dead WHERE queue IN (?, ?) ORDER BY id",
                run_queues(run_id),
            ).fetchall()
            for number, queue, body in rows:
                name = letter_id(queue, body)
                if name not in letter_ids:
                    continue
                if name not in back:
                    insert = "INSERT INTO messages (queue, body) VALUES (?, ?)"
                    connection.execute(insert, (queue, body))
                    back.add(name)
                connection.execute("DELETE FROM dead WHERE id = ?", (number,))
        return len(back)

    def close(self) -> None:
        self._file.close()


def _forget_subscribers(connection: sqlite3.Connection, now: float) -> None:
    gone = connection.execute("SELECT queue FROM bindings WHERE lease_until < ?", (now,))
    _drop_queues(connection, [queue for (queue,) in gone.fetchall()])


def _bound_events(connection: sqlite3.Connection, queues: Sequence[str]) -> None:
    connection.executemany(
        "DELETE FROM messages WHERE queue = ?1 AND id <= coalesce((SELECT id FROM messages"
        " WHERE queue = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2), -1)",
        [(queue, MAX_EVENTS) for queue in queues],
    )


def _drop_queues(connection: sqlite3.Connection, queues: Sequence[str]) -> None:
    for table in ("messages", "bindings", "consumers"):
        connection.executemany(
            f"DELETE FROM {table} WHERE queue = ?",  # noqa: S608
            [(queue,) for queue in queues],
        )
