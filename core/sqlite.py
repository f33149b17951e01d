"""Opening a SQLite file at the same moment as other processes."""

import sqlite3
from collections.abc import Callable

from agentrl.core.retry import Backoff, Retry

PRIMARY_CODE = 0xFF  # these bits of an error code; the others are details
PAUSES = Backoff(first_s=0.01, longest_s=0.1, silent=True)


def wait_until_unlocked(work: Callable[[], object], patience_s: float) -> None:
    """Repeat `work` while SQLite refuses it because of a lock. Raises sqlite3.Error.

    SQLite itself waits for locks, but not always where several connections give a file its
    write-ahead log or its tables.
    """
    Retry("SQLite", _is_locked, limit_s=patience_s, backoff=PAUSES).call(work)


def _is_locked(error: BaseException) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & PRIMARY_CODE == sqlite3.SQLITE_BUSY
