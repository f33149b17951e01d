"""RabbitMQ's embedded twin: one SQLite file, the same interface, the real encoding.

    publish ─▶ one row per bound queue ─▶ receive: rows after the cursor ─▶ ack: rows deleted

A queue has one consumer at a time. What a consumer did not acknowledge stays in its rows, so a new
consumer, whose cursor starts at zero, takes over at once what a dead process left. A queue of
events belongs to one subscriber; it is bounded, and removed when its owner stops reading.
Commits survive a killed process (WAL, synchronous NORMAL), not always a power cut.
"""

import sqlite3
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from broker.api import (
    EVENT_PATIENCE_S,
    LOOK_S,
    Consumer,
    DeadLetter,
    Delivery,
    Publisher,
    Waiting,
    letter_id,
)
from broker.embedded_file import BUSY_S, QueueFile
from broker.messages import Message, decode, encode
from broker.topology import EVENTS, TRAJECTORIES, dead_queue, run_queues
from core.errors import BrokerError, BrokerUnavailable, MessageError, MessageRefused
from core.logging import get_logger
from core.retry import Retry

MAX_EVENTS = 1000  # kept per subscriber; the oldest give way
SUBSCRIBER_LEASE_S = 60.0  # a subscriber that has not looked for this long is gone
TOUCH_S = 5.0  # how often a subscriber says that it is there

Clock = Callable[[], float]  # seconds since the epoch


class EmbeddedPublisher:
    """Publishes into the file; a commit is the confirm."""

    def __init__(self, file: QueueFile, compress_above: int, clock: Clock = time.time) -> None:
        self._file = file
        self._compress_above = compress_above
        self._clock = clock
        self._retry = Retry("broker", lambda error: isinstance(error, BrokerUnavailable))

    def publish(
        self, exchange: str, run_id: str, message: Message, *, waiting: Waiting | None = None
    ) -> None:
        body = encode(message, compress_above=self._compress_above)
        began = time.monotonic()
        while True:
            try:
                put = partial(self._put, exchange, run_id, body)
                return self._retry.call(put, limit_s=LOOK_S)
            except BrokerUnavailable:
                waited_s = time.monotonic() - began
                if exchange == EVENTS and waited_s > EVENT_PATIENCE_S:
                    raise
            if waiting is not None:
                waiting(waited_s)

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
                mend="start the run's dispatcher first: it declares the run's queues",
            )

    def close(self) -> None:
        """The file belongs to the broker."""


class EmbeddedConsumer:
    """Reads a queue in order from the oldest message that was not acknowledged."""

    def __init__(self, file: QueueFile, queue: str) -> None:
        self._file = file
        self._queue = queue
        self._token = uuid.uuid4().hex
        self._cursor = 0
        self._acks: list[object] = []  # which the file did not take yet
        with file.write() as connection:
            connection.execute("REPLACE INTO consumers VALUES (?, ?)", (queue, self._token))

    def receive(self, limit: int, timeout_s: float) -> Sequence[Delivery]:
        end = time.monotonic() + timeout_s
        while True:
            mark = self._file.mark()
            rows = self._rows(limit)
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
        """A file that takes nothing for now gets them with the next ones."""
        self._acks += [delivery.tag for delivery in deliveries]
        delete = "DELETE FROM messages WHERE id = ? AND queue = ?"
        try:
            with self._file.write() as connection:
                connection.executemany(delete, [(tag, self._queue) for tag in self._acks])
        except BrokerUnavailable as error:
            get_logger().warning("Not acknowledged yet", queue=self._queue, error=str(error))
        else:
            self._acks.clear()

    def refuse(self, delivery: Delivery, reason: str) -> None:
        self._bury(delivery.tag, delivery.wire, reason)

    def close(self) -> None:
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
        return deliveries

    def _bury(self, number: object, body: bytes, reason: str) -> None:
        get_logger().warning("message dead-lettered", queue=self._queue, reason=reason)
        with self._file.write() as connection:
            connection.execute(
                "INSERT INTO dead (queue, reason, body) VALUES (?, ?, ?)",
                (self._queue, reason, body),
            )
            connection.execute("DELETE FROM messages WHERE id = ?", (number,))


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
            self._touch()
            left = max(0.0, end - time.monotonic())
            deliveries = super().receive(limit, min(left, TOUCH_S))
            if deliveries:
                self.ack(deliveries)
            if deliveries or left <= TOUCH_S:
                return deliveries

    def close(self) -> None:
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
        busy_s: float = BUSY_S,
        clock: Clock = time.time,
    ) -> None:
        self._file = QueueFile(Path(url.removeprefix("sqlite:///")), busy_s=busy_s)
        self._compress_above = compress_above
        self._clock = clock

    def declare_run(self, run_id: str) -> None:
        with self._file.write() as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO bindings VALUES (?, ?, ?, NULL)",
                [(TRAJECTORIES, run_id, queue) for queue in run_queues(run_id)],
            )

    def stands(self, run_id: str) -> bool:
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
        return EmbeddedConsumer(self._file, queue)

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
