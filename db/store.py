"""Store: read and write transactions, and the database clock.

An unavailable, read-only, full, locked or silent database is not an error of the work:
`transact` and `ask` wait for it (core/retry.py). db/failures.py classifies errors.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar, cast

import psycopg
from sqlalchemy import Engine, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import Float

from agentrl.core.errors import StoreError, StoreUnavailable
from agentrl.core.retry import FOREVER, Retry
from agentrl.db.engine import (
    LEASE,
    TIMEOUTS,
    BoundedConnection,
    Timeouts,
    make_engine,
    mask_password,
    parse_url,
)
from agentrl.db.failures import (
    Failure,
    classify,
    driver_words,
    hint_for,
    is_transient,
    unreachable,
)

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


def read_clock(session: Session) -> float:
    """Return the time on the database's clock."""
    return float(session.scalar(select(now())) or 0.0)


class Store:
    """The database. Thread-safe; a Session belongs to one thread."""

    def __init__(
        self, engine: Engine, retry: Retry | None = None, timeouts: Timeouts = TIMEOUTS
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
        return mask_password(self.engine.url)

    def one_thread(self, timeouts: Timeouts = LEASE, *, autocommit: bool = False) -> "Store":
        """Open the same database with a separate connection, for a thread that must not wait for
        the pool.

        `autocommit`: for work that is one statement on Postgres, of half the processor time then.
        The caller closes it.
        """
        engine = make_engine(self.engine.url, 1, timeouts, self.retry.stop, autocommit=autocommit)
        return Store(engine, self.retry, timeouts)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A read-only transaction. Raises StoreError if the database is unavailable."""
        with self._name_errors(), self._read() as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A transaction that commits at its end. On SQLite it takes the write lock at once.

        Raises StoreError if the database is unavailable.
        """
        with self._name_errors(), self._write.begin() as session:
            yield session

    def transact(
        self,
        work: Callable[[Session], T],
        *,
        done: Callable[[Session], T | None] | None = None,
        patience_s: float | None = None,
    ) -> T:
        """Run `work` in a write transaction; repeat it while the database is unavailable.

        `work` must be a compare-and-set or otherwise safe to repeat, because a commit whose answer
        was lost is repeated too. `done` is asked before each repetition; what it returns, unless
        false, is the result of such a commit. Raises StoreUnavailable after `patience_s` seconds,
        by default the limit of `self.retry`.
        """
        tries = 0

        def work_unless_done(session: Session) -> T:
            nonlocal tries
            tries += 1
            found = done(session) if done is not None and tries > 1 else None
            return found or work(session)

        return self._patiently(self._write.begin, work_unless_done, patience_s)

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
                with begin() as session, self._limit_statement(session, allowed_s):
                    return work(session)
            except DBAPIError as error:
                if isinstance(error.orig, psycopg.errors.QueryCanceled):
                    if allowed_s >= longest_s:
                        raise self._too_slow(error, allowed_s) from error
                    allowed_s = min(2 * allowed_s, longest_s)
                raise

        with self._name_errors():
            return self.retry.call(attempt, limit_s=patience_s)

    @contextmanager
    def _limit_statement(self, session: Session, statement_s: float) -> Iterator[None]:
        """Extend the statement timeout of this transaction, which is one then also for
        `autocommit`."""
        more_s = statement_s - self._timeouts.statement_s
        if not more_s or self.engine.dialect.name != "postgresql":
            yield
            return
        bound = session.connection(execution_options={"isolation_level": "READ COMMITTED"})
        connection = cast(BoundedConnection, bound.connection.driver_connection)
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
    def _name_errors(self) -> Iterator[None]:
        """Convert errors of the database to StoreError, except errors of our own statements."""
        try:
            yield
        except (DBAPIError, PoolTimeoutError) as error:
            failure = classify(error)
            if failure is Failure.OURS:
                raise
            reason = driver_words(error)
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
        return self.ask(read_clock)

    def close(self) -> None:
        self.engine.dispose()


def open_store(
    url: str,
    *,
    threads: int = 8,
    stop: threading.Event | None = None,
    timeouts: Timeouts = TIMEOUTS,
) -> Store:
    """Connect. Raises StoreError.

    `stop`: given by processes of a run. They wait for an unavailable database, here and in each
    transaction, until `stop` is set. Without it an unavailable database is an error at once.
    """
    parsed = parse_url(url)
    engine = make_engine(parsed, threads, timeouts, stop)
    retry = Retry("store", is_transient, limit_s=FOREVER if stop else PATIENCE_S, stop=stop)
    store = Store(engine, retry, timeouts)
    try:
        retry.call(store.check, limit_s=None if stop else 0.0)
    except DBAPIError as error:
        store.close()
        raise unreachable(parsed, error) from error
    return store
