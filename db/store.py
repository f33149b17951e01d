"""Connections: one Store per process, `read()` and `write()` transactions, the database's clock.

If the database is unavailable, read-only, full, locked or silent, `transact` and `ask` wait for it
(core/retry.py). `classify` decides which errors are of this kind, for both databases.
"""

import math
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import psycopg
from sqlalchemy import Connection, Engine, create_engine, event, select, text
from sqlalchemy.engine import URL, ExceptionContext, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    InterfaceError,
    NoSuchModuleError,
    OperationalError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import Float, Integer

from agentrl.core.errors import StoreError, StoreUnavailable
from agentrl.core.process import require_unlocked
from agentrl.core.retry import FOREVER, Retry

PATIENCE_S = 30.0  # of a command that a person waits for; processes of a run wait for ever

T = TypeVar("T")


class now(FunctionElement[float]):  # noqa: N801 - reads as the SQL function it is
    """SQL function: seconds since the epoch on the database's clock."""

    type = Float(53)
    inherit_cache = True
    name = "now_s"


@compiles(now, "sqlite")
def _sqlite_now(_element: now, _compiler: SQLCompiler, **_kw: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(now, "postgresql")
def _postgres_now(_element: now, _compiler: SQLCompiler, **_kw: Any) -> str:
    return "extract(epoch from clock_timestamp())::double precision"


class whole(FunctionElement[int]):  # noqa: N801 - reads as the SQL function it is
    """SQL function: a number ≥ 0 without its fraction."""

    type = Integer()
    inherit_cache = True
    name = "whole"


@compiles(whole, "sqlite")
def _sqlite_whole(element: whole, compiler: SQLCompiler, **kw: Any) -> str:
    return f"CAST({compiler.process(element.clauses, **kw)} AS INTEGER)"


@compiles(whole, "postgresql")
def _postgres_whole(element: whole, compiler: SQLCompiler, **kw: Any) -> str:
    return f"floor({compiler.process(element.clauses, **kw)})::integer"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts of one connection, in seconds. A transaction that needs longer sets its own.

    `connect_s`: to connect. `tcp_s`: until a peer without acknowledgements counts as dead.
    `lock_s`: to wait for a lock, on SQLite for the file lock. `statement_s`: one statement on the
    server; a statement that timed out gets twice the time when it is repeated, up to `longest_s`.
    The client gives up `answer_s` later. `idle_s`: between two statements of a transaction, whose
    locks block others. `pool_s`: to wait for a free connection of the process.

    `stopping_s`: how long a server may stay silent when the process is told to stop. A process of a
    run never waits longer for anything that cannot be interrupted (a free connection, a lock of
    SQLite); it tries again.
    """

    connect_s: float = 10.0
    tcp_s: float = 15.0
    lock_s: float = 10.0
    statement_s: float = 60.0
    longest_s: float = 960.0
    answer_s: float = 5.0
    idle_s: float = 10.0
    pool_s: float = 30.0
    stopping_s: float = 3.0


LEASE = Timeouts(connect_s=3.0, tcp_s=5.0, lock_s=3.0, statement_s=5.0, idle_s=5.0, pool_s=1.0)


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


class Store:
    """The database. Thread-safe; a Session belongs to one thread."""

    def __init__(
        self, engine: Engine, retry: Retry | None = None, timeouts: Timeouts = Timeouts()
    ) -> None:
        """`retry`: how long `transact` and `ask` wait for an unavailable database.

        `timeouts`: of the engine's connections.
        """
        self.engine = engine
        self._timeouts = timeouts
        self.retry = retry or Retry("store", is_transient, limit_s=PATIENCE_S)
        self._read = sessionmaker(engine.execution_options(agentrl_write=False))
        self._write = sessionmaker(engine.execution_options(agentrl_write=True))

    @property
    def url(self) -> str:
        """Return the URL without its password."""
        return redact_url(self.engine.url)

    def one_thread(self, timeouts: Timeouts = LEASE) -> "Store":
        """Open the same database with a separate connection, for a thread that must not wait for
        the pool.

        The caller closes it.
        """
        engine = _engine(self.engine.url, 1, timeouts, self.retry.stop)
        return Store(engine, self.retry, timeouts)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A read-only transaction. Raises StoreError if the database is unavailable."""
        with self._named(), self._read() as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A transaction that commits at its end. On SQLite it takes the write lock at once.

        Raises StoreError if the database is unavailable.
        """
        with self._named(), self._write.begin() as session:
            yield session

    def transact(self, work: Callable[[Session], T], *, patience_s: float | None = None) -> T:
        """Run `work` in a write transaction; repeat it while the database is unavailable.

        `work` must be a compare-and-set or otherwise safe to repeat, because a commit whose answer
        was lost is repeated too. Raises StoreUnavailable after `patience_s` seconds, by default the
        limit of `self.retry`.
        """
        return self._patiently(self._write.begin, work, patience_s)

    def ask(self, work: Callable[[Session], T], *, patience_s: float | None = None) -> T:
        """Like `transact`, in a read-only transaction."""
        return self._patiently(self._read, work, patience_s)

    def _patiently(
        self,
        begin: Callable[[], AbstractContextManager[Session]],
        work: Callable[[Session], T],
        patience_s: float | None,
    ) -> T:
        allowed_s, longest_s = self._timeouts.statement_s, self._timeouts.longest_s

        def attempt() -> T:
            nonlocal allowed_s
            try:
                with begin() as session, self._allowed(session, allowed_s):
                    return work(session)
            except DBAPIError as error:
                if isinstance(error.orig, psycopg.errors.QueryCanceled):
                    if allowed_s >= longest_s:
                        raise self._too_slow(error, allowed_s) from error
                    allowed_s = min(2 * allowed_s, longest_s)
                raise

        with self._named():
            return self.retry.call(attempt, limit_s=patience_s)

    @contextmanager
    def _allowed(self, session: Session, statement_s: float) -> Iterator[None]:
        """Extend the statement timeout of this transaction."""
        more_s = statement_s - self._timeouts.statement_s
        connection = session.connection().connection.driver_connection if more_s else None
        if not isinstance(connection, BoundedConnection):
            yield
            return
        session.execute(text(f"SET LOCAL statement_timeout = {round(1000 * statement_s)}"))
        connection.more_s = more_s
        try:
            yield
        finally:
            connection.more_s = 0.0

    def _too_slow(self, error: DBAPIError, allowed_s: float) -> StoreError:
        statement = " ".join((error.statement or "").split())
        return StoreError(
            f"database {self.url}: after {allowed_s:g} s the database cancelled {statement[:300]}",
            hint="check its load, its disk and its bloat (`agentrl db stats CONFIG`)",
        )

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Convert errors of the database to StoreError, except errors of our own statements."""
        try:
            yield
        except (DBAPIError, PoolTimeoutError) as error:
            failure = classify(error)
            if failure is Failure.OURS:
                raise
            reason = driver_message(error)
            kind = StoreUnavailable if failure is Failure.TRANSIENT else StoreError
            raise kind(
                f"database {self.url}: {reason}", hint=hint_for(self.engine.url, reason)
            ) from error

    def check(self) -> None:
        """Query the database. Raises SQLAlchemy's error if that fails."""
        with self.engine.execution_options(agentrl_write=False).connect() as connection:
            connection.execute(text("SELECT 1"))

    def clock(self) -> float:
        """Return the time on the database's clock."""
        return self.ask(lambda session: float(session.scalar(select(now())) or 0.0))

    def close(self) -> None:
        self.engine.dispose()


def open_store(
    url: str,
    *,
    threads: int = 8,
    stop: threading.Event | None = None,
    timeouts: Timeouts = Timeouts(),
) -> Store:
    """Connect. Raises StoreError.

    `stop`: given by processes of a run. They wait for an unavailable database, here and in each
    transaction, until `stop` is set. Without it an unavailable database is an error at once.
    """
    parsed = parse_url(url)
    try:
        engine = _engine(parsed, threads, timeouts, stop)
    except NoSuchModuleError as error:
        raise _missing_url_error() from error
    retry = Retry("store", is_transient, limit_s=FOREVER if stop else PATIENCE_S, stop=stop)
    store = Store(engine, retry, timeouts)
    try:
        retry.call(store.check, limit_s=None if stop else 0.0)
    except DBAPIError as error:
        store.close()
        raise unreachable_error(parsed, error) from error
    return store


def parse_url(url: str) -> URL:
    """Parse a URL. Raises StoreError, without the password."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise _missing_url_error() from None
    beside = f"{parsed.username}{parsed.host}{parsed.database}"
    if not _is_sqlite(parsed) and "@" in beside:
        raise StoreError(
            "store.url contains a character that must be percent-encoded",
            hint="in user and password write @ as %40, / as %2F, : as %3A",
        )
    return parsed


def _missing_url_error() -> StoreError:
    return StoreError(
        "store.url is not a database URL",
        hint="use sqlite:////PATH/store.db or postgresql+psycopg://USER@HOST/DATABASE; "
        "in a password write @ as %40, / as %2F, : as %3A",
    )


def redact_url(url: URL) -> str:
    """Return a URL without its password."""
    return url.difference_update_query(["password"]).render_as_string(hide_password=True)


def driver_message(error: BaseException) -> str:
    """Return the first line of a driver's error text."""
    said = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    lines = str(said).strip().splitlines()
    return lines[0] if lines else type(said).__name__


def unreachable_error(url: URL, error: DBAPIError) -> StoreError:
    """Create the error for a database that cannot be opened."""
    reason = driver_message(error)
    kind = StoreUnavailable if is_transient(error) else StoreError
    return kind(
        f"database {redact_url(url)} is unreachable: {reason}",
        hint=f"{hint_for(url, reason)}, or correct store.url",
    )


def hint_for(url: URL, reason: str) -> str:
    """Return the hint for a database that cannot be used. `reason`: the driver's text."""
    if url.get_backend_name() != "sqlite":
        return "start the database"
    if "locked" in reason:
        return require_unlocked(url.database or "")
    return "look at the file, its folder's rights and the free space"


def _is_sqlite(url: URL) -> bool:
    return url.get_backend_name() == "sqlite"


def _engine(url: URL, threads: int, timeouts: Timeouts, stop: threading.Event | None) -> Engine:
    """Create an engine, not yet connected. `threads`: number that use it without waiting."""
    if stop is not None:
        timeouts = replace(timeouts, pool_s=min(timeouts.pool_s, timeouts.stopping_s))
    if _is_sqlite(url):
        if stop is not None:
            timeouts = replace(timeouts, lock_s=min(timeouts.lock_s, timeouts.stopping_s))
        return _sqlite(url, threads, timeouts)
    engine = create_engine(
        url,
        pool_size=threads,
        max_overflow=4 if threads > 1 else 0,
        pool_pre_ping=True,
        pool_timeout=timeouts.pool_s,
        connect_args=connect_args(timeouts),
    )
    bound_connections(engine, timeouts, stop)

    @event.listens_for(engine, "handle_error")
    def _leave_standby(context: ExceptionContext) -> None:
        """Discard a connection to a read-only server: the next one may reach the new primary."""
        if isinstance(context.original_exception, psycopg.errors.ReadOnlySqlTransaction):
            context.is_disconnect = True

    return engine


def connect_args(timeouts: Timeouts) -> dict[str, Any]:
    """Return libpq arguments with timeouts for a vanished peer."""
    return {
        "connect_timeout": max(2, round(timeouts.connect_s)),
        "tcp_user_timeout": round(1000 * timeouts.tcp_s),
        "keepalives": 1,
        "keepalives_idle": max(1, round(timeouts.tcp_s / 3)),
        "keepalives_interval": max(1, round(timeouts.tcp_s / 3)),
        "keepalives_count": 2,
    }


def bound_connections(
    engine: Engine, timeouts: Timeouts, stop: threading.Event | None = None
) -> None:
    """Set timeouts on each connection of a Postgres engine; `stop` shortens them.

    random_page_cost is that of a sequential page, because a run queries recent rows, which are in
    memory. With the server's default, meant for disks, it would scan whole tables.
    """
    settings = {
        "statement_timeout": timeouts.statement_s,
        "lock_timeout": timeouts.lock_s,
        "idle_in_transaction_session_timeout": timeouts.idle_s,
    }
    told = "; ".join(f"SET {name} = {round(1000 * value)}" for name, value in settings.items())

    class Bounded(BoundedConnection):
        silence = Silence(timeouts.statement_s + timeouts.answer_s, timeouts.stopping_s, stop)

    @event.listens_for(engine, "do_connect")
    def _connect(_dialect: Any, _record: Any, arguments: Any, named: Any) -> Any:
        return Bounded.connect(*arguments, **named)

    @event.listens_for(engine, "connect")
    def _bound(connection: Any, _record: Any) -> None:
        connection.execute(f"{told}; SET random_page_cost = 1.1")
        connection.commit()


class ServerSilent(psycopg.OperationalError):
    """The server did not answer in time."""


@dataclass(frozen=True, slots=True)
class Silence:
    """How long a server may stay silent: `statement_s` seconds for one statement.

    After `stop` is set it may stay silent for `stopping_s`, also while we connect.
    """

    statement_s: float
    stopping_s: float
    stop: threading.Event | None = None
    clock: Callable[[], float] = time.monotonic

    def bound(self, gen: Generator[Any, Any, T], limit_s: float) -> Generator[Any, Any, T]:
        """Run `gen` with a timeout; psycopg resumes it several times a second.

        Raises ServerSilent.
        """
        latest = deadline = self.clock() + limit_s
        stopping = False
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if self._is_stopping() and (ready or not stopping):
                    deadline, stopping = min(latest, self.clock() + self.stopping_s), True
                if not ready and self.clock() > deadline:
                    allowed_s = self.stopping_s if stopping else limit_s
                    raise ServerSilent(f"the server did not answer within {allowed_s:g} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def _is_stopping(self) -> bool:
        return self.stop is not None and self.stop.is_set()


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that is closed if the server exceeds its own statement timeout."""

    silence: ClassVar[Silence]
    more_s: float = 0.0  # that a statement may take beyond that

    @classmethod
    def _connect_gen(cls, *arguments: Any, **named: Any) -> Generator[Any, Any, Self]:
        """Wait for a connection; `connect_timeout` limits it."""
        return cls.silence.bound(super()._connect_gen(*arguments, **named), math.inf)

    def wait(self, gen: Generator[Any, Any, T], *arguments: Any, **named: Any) -> T:
        try:
            bounded = self.silence.bound(gen, self.silence.statement_s + self.more_s)
            return super().wait(bounded, *arguments, **named)
        except ServerSilent:
            self.close()
            raise


def _sqlite(url: URL, threads: int, timeouts: Timeouts) -> Engine:
    path = url.database
    if path and path != ":memory:":
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(
        url,
        pool_size=threads,
        max_overflow=4 if threads > 1 else 0,
        pool_timeout=timeouts.pool_s,
        connect_args={"timeout": timeouts.lock_s},
    )

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # we emit BEGIN ourselves
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        write = connection.get_execution_options().get("agentrl_write", True)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine
