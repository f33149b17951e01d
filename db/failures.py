"""Classify errors of the database, and word them for people."""

import sqlite3
from enum import StrEnum

import psycopg
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from agentrl.core.errors import StoreError, StoreUnavailable
from agentrl.core.sqlite import lock_hint
from agentrl.db.engine import mask_password


class Failure(StrEnum):
    """The class of a database error, which decides how it is handled."""

    TRANSIENT = "transient"  # wait and repeat: the database is away, full, read-only, locked, slow
    PERMANENT = "permanent"  # a person must act: wrong login, no such database, a damaged file
    OURS = "ours"  # the statement is wrong, or violates a constraint: our code must act


# SQLSTATEs, or their classes of two characters, of what passes by itself or with a person's help.
TRANSIENT_STATES = frozenset(
    {
        "08",  # connection exceptions
        "40",  # serialization failure, deadlock, completion unknown
        "53",  # disk full, out of memory, too many connections
        "58000",  # errors of the system below
        "58030",  # of its disk
        "25006",  # read-only: a standby, or a primary that was demoted
        "25P03",  # idle_in_transaction_session_timeout
        "25P04",  # transaction_timeout
        "55P03",  # lock_timeout
        "57014",  # statement_timeout
        "57P01",  # the server shuts down, or an administrator ends the session
        "57P02",  # the server crashed and restarts
        "57P03",  # it starts or recovers
        "57P05",  # idle_session_timeout
        "72000",  # snapshot too old
    }
)
# Login, database, schema, a limit of the configuration, a file that is not there, damage.
PERMANENT_STATES = frozenset({"28", "3D000", "42P01", "53400", "57P04", "58", "XX"})
# What the server says when it refuses a connection; libpq passes on no SQLSTATE then.
PERMANENT_WORDS = (
    "password authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "does not exist",
    "permission denied for database",
)
TRANSIENT_SQLITE = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_READONLY,
    }
)
PERMANENT_SQLITE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


def classify(error: BaseException) -> Failure | None:
    """Classify an error of SQLAlchemy or a driver; None: another error."""
    if isinstance(error, PoolTimeoutError):
        return Failure.TRANSIENT
    driver = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(driver, sqlite3.Error):
        return _classify_sqlite(driver)
    if isinstance(driver, psycopg.Error):
        return _classify_postgres(driver)
    if isinstance(error, DBAPIError):
        lost = isinstance(error, OperationalError | InterfaceError)
        return Failure.TRANSIENT if lost else Failure.OURS
    return None


def _classify_sqlite(error: sqlite3.Error) -> Failure:
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        transient = isinstance(error, sqlite3.OperationalError | sqlite3.InterfaceError)
        return Failure.TRANSIENT if transient else Failure.OURS
    primary = code & 0xFF
    if primary in TRANSIENT_SQLITE:
        return Failure.TRANSIENT
    permanent = primary in PERMANENT_SQLITE or "no such table" in str(error)  # no schema of ours
    return Failure.PERMANENT if permanent else Failure.OURS


def _classify_postgres(error: psycopg.Error) -> Failure:
    state = error.sqlstate
    if state is None:  # of the connection: refused, lost, timed out
        if not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            return Failure.OURS
        permanent = any(words in str(error) for words in PERMANENT_WORDS)
        return Failure.PERMANENT if permanent else Failure.TRANSIENT
    for known in (state, state[:2]):  # what is said of a state alone goes before its class
        if known in TRANSIENT_STATES:
            return Failure.TRANSIENT
        if known in PERMANENT_STATES:
            return Failure.PERMANENT
    return Failure.OURS


def is_transient(error: BaseException) -> bool:
    """Return whether the call may succeed later."""
    return classify(error) is Failure.TRANSIENT


def driver_words(error: BaseException) -> str:
    """Return the first line of a driver's error text."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    lines = str(cause).strip().splitlines()
    return lines[0] if lines else type(cause).__name__


def unreachable(url: URL, error: DBAPIError) -> StoreError:
    """Create the error for a database that cannot be opened."""
    reason = driver_words(error)
    kind = StoreUnavailable if is_transient(error) else StoreError
    return kind(
        f"database {mask_password(url)} is unreachable: {reason}",
        hint=f"{hint_for(url, reason)}, or correct store.url",
    )


def hint_for(url: URL, reason: str) -> str:
    """Return the hint for a database that cannot be used. `reason`: the driver's text."""
    if url.get_backend_name() != "sqlite":
        return "start the database"
    if "locked" in reason:
        return lock_hint(url.database or "")
    return "look at the file, its folder's rights and the free space"
