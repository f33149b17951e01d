"""Opening a SQLite file at the same moment as other processes."""

import sqlite3
from collections.abc import Callable

from agentrl.core.retry import Backoff, Retry

BASIC = 0xFF  # bits of the error code; the others say more
PAUSES = Backoff(first_s=0.01, longest_s=0.1, silent=True)


def wait_until_unlocked(work: Callable[[], object], patience_s: float) -> None:
    """Repeat `work` while SQLite refuses it because of a lock. Raises sqlite3.Error.

    SQLite itself waits for locks, but not where a file gets its write-ahead log or its tables.
    """
    Retry("SQLite", _is_locked, limit_s=patience_s, backoff=PAUSES).call(work)


def _is_locked(error: BaseException) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & BASIC == sqlite3.SQLITE_BUSY
