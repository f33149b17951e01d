"""Database engines for Postgres and SQLite, and the timeouts of their connections."""

import math
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import psycopg
from psycopg.waiting import Ready
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, ExceptionContext, make_url
from sqlalchemy.exc import ArgumentError

from agentrl.core.errors import StoreError
from agentrl.core.sqlite import wait_until_unlocked

AGAIN_S = 0.3  # for a server that was silent before, or a file that was locked, while we end

DRIVERS = ("sqlite", "sqlite+pysqlite", "postgresql+psycopg")
FORMS = "use sqlite:////PATH/store.db or postgresql+psycopg://USER@HOST/DATABASE"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts of one connection, in seconds. A transaction that needs longer sets its own.

    `connect_s`: to connect. `tcp_s`: until a peer without acknowledgements counts as dead.
    `lock_s`: to wait for a lock, on SQLite for the file lock. `statement_s`: one statement on the
    server; a statement that timed out gets twice the time when it is repeated, up to `longest_s`.
    The client gives up `answer_s` later. `idle_s`: between two statements of a transaction, whose
    locks block others. `pool_s`: to wait for a free connection of the process.

    `stopping_s`: how long a server may stay silent when the process is told to stop, for all calls
    of a connection pool together. A process of a run never waits longer for anything that cannot be
    interrupted (a free connection, a lock of SQLite); it tries again.
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


TIMEOUTS = Timeouts()
LEASE = Timeouts(connect_s=3.0, tcp_s=5.0, lock_s=3.0, statement_s=5.0, idle_s=5.0, pool_s=1.0)


def parse_url(url: str) -> URL:
    """Parse a URL of a database that we support. Raises StoreError, without the password."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise StoreError(
            "store.url is not a database URL",
            hint=f"{FORMS}; in a password write @ as %40, / as %2F, : as %3A",
        ) from None
    if parsed.drivername not in DRIVERS:
        raise StoreError(f"store.url: {parsed.drivername}:// is not supported", hint=FORMS)
    beside = f"{parsed.username}{parsed.host}{parsed.database}"
    if not _is_sqlite(parsed) and "@" in beside:
        raise StoreError(
            "store.url contains a character that must be percent-encoded",
            hint="in user and password write @ as %40, / as %2F, : as %3A",
        )
    return parsed


def mask_password(url: URL) -> str:
    """Return a URL without its password."""
    return url.difference_update_query(["password"]).render_as_string(hide_password=True)


def _is_sqlite(url: URL) -> bool:
    return url.get_backend_name() == "sqlite"


def make_engine(
    url: URL,
    threads: int,
    timeouts: Timeouts,
    stop: threading.Event | None,
    *,
    autocommit: bool = False,
) -> Engine:
    """Create an engine, not yet connected. `threads`: number that use it without waiting.

    `autocommit`: on Postgres each statement is a transaction, and a connection that broke while it
    was idle is found by its next statement, which `Store.transact` repeats.
    """
    if stop is not None:
        timeouts = replace(timeouts, pool_s=min(timeouts.pool_s, timeouts.stopping_s))
    if _is_sqlite(url):
        if stop is not None:
            timeouts = replace(timeouts, lock_s=min(timeouts.lock_s, timeouts.stopping_s))
        return _sqlite(url, threads, timeouts, stop)
    engine = create_engine(
        url,
        pool_size=threads,
        max_overflow=4 if threads > 1 else 0,
        pool_pre_ping=not autocommit,
        pool_timeout=timeouts.pool_s,
        connect_args=connect_args(timeouts),
        **({"isolation_level": "AUTOCOMMIT"} if autocommit else {}),
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
    set_timeouts = "; ".join(
        f"SET {name} = {round(1000 * value)}" for name, value in settings.items()
    )

    class Bounded(BoundedConnection):
        silence = Silence(timeouts.statement_s + timeouts.answer_s, timeouts.stopping_s, stop)

    @event.listens_for(engine, "do_connect")
    def _connect(_dialect: Any, _record: Any, arguments: Any, named: Any) -> Any:
        return Bounded.connect(*arguments, **named)

    @event.listens_for(engine, "connect")
    def _set_timeouts_on(connection: Any, _record: Any) -> None:
        connection.execute(f"{set_timeouts}; SET random_page_cost = 1.1")
        connection.commit()


class ServerSilent(psycopg.OperationalError):
    """The server did not answer in time."""


@dataclass(slots=True)
class Silence:
    """How long a server may stay silent: `statement_s` seconds for one statement.

    After `stop` is set it may stay silent for `stopping_s`, also while we connect. Calls after such
    a silence wait AGAIN_S each until the server answers one of them, so that all calls of an ending
    process take little longer than the first.
    """

    statement_s: float
    stopping_s: float
    stop: threading.Event | None = None
    clock: Callable[[], float] = time.monotonic
    was_silent: bool = False  # for `stopping_s`

    def bound(self, gen: Generator[Any, Any, T], limit_s: float) -> Generator[Any, Any, T]:
        """Run `gen` with a timeout; psycopg resumes it several times a second.

        Raises ServerSilent.
        """
        latest = deadline = self.clock() + limit_s
        stopping = False
        try:
            readiness = next(gen)
            while True:
                ready = yield readiness
                answers = bool(ready & Ready.R)  # what it is sent, a frozen server's machine takes
                if self._is_stopping() and (answers or not stopping):
                    self.was_silent = self.was_silent and not answers
                    allowed_s = AGAIN_S if self.was_silent else self.stopping_s
                    deadline, stopping = min(latest, self.clock() + allowed_s), True
                if not ready and self.clock() > deadline:
                    self.was_silent = stopping
                    allowed_s = self.stopping_s if stopping else limit_s
                    raise ServerSilent(f"the server did not answer within {allowed_s:g} s")
                readiness = gen.send(ready)
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


def _sqlite(url: URL, threads: int, timeouts: Timeouts, stop: threading.Event | None) -> Engine:
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
            wait_until_unlocked(partial(connection.execute, f"PRAGMA {pragma}"), timeouts.lock_s)

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        write = connection.get_execution_options().get("agentrl_write", True)
        if stop is not None and stop.is_set():
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {round(1000 * AGAIN_S)}")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine
