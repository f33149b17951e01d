"""The embedded broker: one SQLite file with the interface and the encoding of RabbitMQ.

    publish ─▶ one row per bound queue ─▶ receive: rows after the cursor ─▶ ack: rows deleted

A queue has one consumer at a time. Unacknowledged messages stay in their rows, so a new consumer,
whose cursor starts at zero, takes over the messages of a dead process at once. An event queue
belongs to one subscriber; it is bounded, and deleted when the subscriber stops reading. Commits
survive a killed process (WAL, synchronous NORMAL), but not always a power failure.
"""

import threading
import time
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path

from agentrl.broker.api import Consumer, DeadLetter, Publisher, letter_id, make_retry
from agentrl.broker.embedded_consumer import EmbeddedConsumer, EmbeddedSubscriber
from agentrl.broker.embedded_publisher import EmbeddedPublisher
from agentrl.broker.embedded_queue_file import BUSY_S, Clock, QueueFile, drop_queues
from agentrl.broker.queue_names import TRAJECTORIES, dead_queue, run_queues


class EmbeddedBroker:
    """The Broker of `sqlite:///FILE`; creates a missing file."""

    def __init__(
        self,
        url: str,
        compress_above: int = 4096,
        *,
        stop: threading.Event | None = None,
        busy_s: float = BUSY_S,
        clock: Clock = time.time,
    ) -> None:
        self._retry = make_retry(stop)
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

    def queues_exist(self, run_id: str) -> bool:
        return self._retry.call(partial(self._queues_exist, run_id))

    def _queues_exist(self, run_id: str) -> bool:
        known = "SELECT count(*) FROM bindings WHERE exchange = ? AND run_id = ?"
        with self._file.read() as connection:
            (count,) = connection.execute(known, (TRAJECTORIES, run_id)).fetchone()
        return bool(count)

    def delete_run(self, run_id: str) -> None:
        queues = list(run_queues(run_id))
        with self._file.write() as connection:
            bound = connection.execute("SELECT queue FROM bindings WHERE run_id = ?", (run_id,))
            drop_queues(connection, queues + [queue for (queue,) in bound.fetchall()])
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
