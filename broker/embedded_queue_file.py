"""The file of the embedded broker: tables, transactions, and waiting for a commit.

consumer: mark ─▶ nothing there ─▶ await_commit(mark): asks the file system, not SQLite
"""

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from agentrl.broker.queue_names import MAX_DEAD_BYTES, MAX_DEAD_LETTERS
from agentrl.core.errors import BrokerError, BrokerUnavailable
from agentrl.core.sqlite import lock_hint, wait_until_unlocked

BUSY_S = 10.0  # how long a write waits for another process's
LOOK_S = 1.0  # between two looks at an empty queue while nobody writes to the file
FIRST_STAT_S, LAST_STAT_S = 0.01, 0.1  # between two questions to the file system whether one did
TICK_NS = 50_000_000  # longer than a tick of any file system's clock

Clock = Callable[[], float]  # seconds since the epoch

TABLES = """
CREATE TABLE IF NOT EXISTS bindings (
    exchange TEXT NOT NULL, run_id TEXT NOT NULL, queue TEXT NOT NULL, lease_until REAL,
    PRIMARY KEY (exchange, run_id, queue)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, queue TEXT NOT NULL, body BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS messages_queue ON messages (queue, id);
CREATE TABLE IF NOT EXISTS consumers (queue TEXT PRIMARY KEY, token TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS dead (
    id INTEGER PRIMARY KEY AUTOINCREMENT, queue TEXT NOT NULL, reason TEXT NOT NULL,
    body BLOB NOT NULL);
"""
DEAD_BOUND = """
CREATE TRIGGER IF NOT EXISTS dead_bound AFTER INSERT ON dead BEGIN
    DELETE FROM dead WHERE id IN (SELECT id FROM (
        SELECT id, COUNT(*) OVER newer AS letters, SUM(LENGTH(body)) OVER newer AS bytes
        FROM dead WHERE queue = NEW.queue WINDOW newer AS (ORDER BY id DESC))
    WHERE letters > {letters} OR bytes > {bytes});
END;
"""


def schema(max_dead_letters: int = MAX_DEAD_LETTERS, max_dead_bytes: int = MAX_DEAD_BYTES) -> str:
    """Return the SQL of the tables; only the newest dead letters of each queue are kept."""
    return TABLES + DEAD_BOUND.format(letters=max_dead_letters, bytes=max_dead_bytes)


class QueueFile:
    """One connection to the queue file, shared by the threads of a process behind a lock."""

    def __init__(self, path: Path, *, busy_s: float = BUSY_S, look_s: float = LOOK_S) -> None:
        self._path = path
        self._look_s = look_s
        self._log = f"{path}-wal"
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(
                path, timeout=busy_s, isolation_level=None, check_same_thread=False
            )
            wait_until_unlocked(self._prepare, busy_s)
        except (OSError, sqlite3.Error) as error:
            raise self._failure(error) from error

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._connection
            except sqlite3.Error as error:
                raise self._failure(error) from error

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        with self.read() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def mark(self) -> tuple[int, int]:
        """Return a mark that changes with every commit of any process. It is cheap."""
        try:
            found = os.stat(self._log)  # noqa: PTH116 - half the time of Path.stat
        except OSError:  # no log until the first commit, and where it was folded into the file
            return (0, 0)
        return (found.st_mtime_ns, found.st_size)

    def await_commit(self, mark: tuple[int, int], timeout_s: float) -> None:
        """Wait for a commit after `mark`, at most `timeout_s` or `look_s`.

        Two commits within one tick of the file's clock may have the same mark, so a fresh mark is
        not trusted.
        """
        fresh, pause = time.time_ns() - mark[0] < TICK_NS, FIRST_STAT_S
        end = time.monotonic() + min(timeout_s, pause if fresh else self._look_s)
        while self.mark() == mark and (left := end - time.monotonic()) > 0:
            time.sleep(min(pause, left))
            pause = min(1.5 * pause, LAST_STAT_S)

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _prepare(self) -> None:
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL"):
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.executescript(schema())

    def _failure(self, error: Exception) -> BrokerError:
        locked = "locked" in str(error)
        hint = lock_hint(self._path) if locked else "check the folder's rights and free space"
        kind = BrokerUnavailable if isinstance(error, sqlite3.OperationalError) else BrokerError
        return kind(f"queue file {self._path}: {error}", hint=hint)


def drop_queues(connection: sqlite3.Connection, queues: Sequence[str]) -> None:
    """Remove queues with their messages, bindings and consumers."""
    for table in ("messages", "bindings", "consumers"):
        connection.executemany(
            f"DELETE FROM {table} WHERE queue = ?",  # noqa: S608
            [(queue,) for queue in queues],
        )
