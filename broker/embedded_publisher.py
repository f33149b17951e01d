"""The publisher of the embedded broker."""

import sqlite3
import time
from collections.abc import Sequence

from agentrl.broker.api import EVENT_PATIENCE_S, LOOK_S, Unroutable, Waiting
from agentrl.broker.embedded_queue_file import Clock, QueueFile, drop_queues
from agentrl.broker.messages import Message, encode
from agentrl.broker.queue_names import EVENTS, MAX_EVENTS
from agentrl.core.errors import BrokerUnavailable
from agentrl.core.retry import FOREVER, Backoff, Retry


class EmbeddedPublisher:
    """Publishes to the file; the commit is the confirm."""

    def __init__(self, file: QueueFile, compress_above: int, clock: Clock = time.time) -> None:
        self._file = file
        self._compress_above = compress_above
        self._clock = clock
        self._retry = Retry("broker", BrokerUnavailable, backoff=Backoff(longest_s=LOOK_S))

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
            raise Unroutable(exchange, run_id)

    def close(self) -> None:
        """Do nothing: the file belongs to the broker."""


def _forget_subscribers(connection: sqlite3.Connection, now: float) -> None:
    gone = connection.execute("SELECT queue FROM bindings WHERE lease_until < ?", (now,))
    drop_queues(connection, [queue for (queue,) in gone.fetchall()])


def _bound_events(connection: sqlite3.Connection, queues: Sequence[str]) -> None:
    connection.executemany(
        "DELETE FROM messages WHERE queue = ?1 AND id <= coalesce((SELECT id FROM messages"
        " WHERE queue = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2), -1)",
        [(queue, MAX_EVENTS) for queue in queues],
    )
