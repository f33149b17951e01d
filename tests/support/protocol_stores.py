"""The two databases that the model check runs on: a clock that the test moves, and their faults."""

import shutil
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import psycopg
from pause_points import Faults
from psycopg import sql
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from agentrl.core.retry import Backoff, Retry
from agentrl.db.engine import LEASE, Timeouts
from agentrl.db.failures import is_transient
from agentrl.db.store import Store, open_store

BEGIN = 1_000_000.0  # seconds since the epoch: where the clock stands at first
THREADS = 2  # connections of a pool, beside those that it may open above that
POOL_S = 0.01  # for a free connection of an exhausted pool


class Database(Protocol):
    """One database of a model check. `now`: its clock, seconds, which the test moves."""

    now: float

    def begin(self, home: Path) -> Store:
        """An empty store; what was in it before is gone."""

    def attach(self, engine: Engine) -> None:
        """Make the test's clock that of the engine's connections."""

    def lose_statement(self, connection: Any, cursor: Any, number: int) -> None:
        """The next statement fails, as those of a database that is away. `number`: in which way."""

    def lose_answer(self, connection: Any) -> None:
        """Raise what the driver raises where a commit stands and its answer is lost."""

    def go_on(self) -> None:
        """Whatever was in the way is gone."""

    def close(self) -> None: ...


def _store(url: str, database: Database) -> Store:
    """Each wait for the database ends at once, and with it what was in the way."""
    backoff = Backoff(sleep=lambda _s: database.go_on())
    opened = open_store(url, threads=THREADS, timeouts=Timeouts(pool_s=POOL_S))
    opened.engine.dispose()  # connections of before the clock was attached
    database.attach(opened.engine)
    return Store(opened.engine, Retry("store", is_transient, backoff=backoff))


class SqliteDatabase:
    """A copy of a migrated file. Its clock is a function of each connection."""

    def __init__(self, template: Path) -> None:
        self.now = BEGIN
        self._template = template

    def begin(self, home: Path) -> Store:
        self.now = BEGIN
        shutil.copy(self._template, home / "store.db")
        return _store(f"sqlite:///{home / 'store.db'}", self)

    def attach(self, engine: Engine) -> None:
        event.listen(engine, "connect", self._set)

    def _set(self, connection: sqlite3.Connection, _record: object = None) -> None:
        """What is written need outlast nothing."""
        connection.execute("PRAGMA synchronous=OFF")
        connection.create_function(
            "julianday", 1, lambda _: self.now / 86400.0 + 2440587.5, deterministic=False
        )

    def lose_statement(self, _connection: Any, _cursor: Any, _number: int) -> None:
        raise sqlite3.OperationalError("the database is away")

    def lose_answer(self, _connection: Any) -> None:
        raise sqlite3.OperationalError("the database is away")

    def go_on(self) -> None: ...

    def close(self) -> None: ...


class PostgresDatabase:
    """An empty database, migrated once `clock_timestamp` is the test's, so that views ask it too.

    A pool of few connections, with the errors that the server and the driver really raise: a
    session that ends, a transaction that is read-only, a lock that is not had, no free connection.
    """

    CLOCK = (
        "CREATE SCHEMA test_clock",
        "CREATE TABLE test_clock.clock (now double precision NOT NULL)",
        "INSERT INTO test_clock.clock VALUES (0)",
        """CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
         AS 'SELECT to_timestamp(now) FROM test_clock.clock'""",
    )

    def __init__(self, url: str) -> None:
        """`url`: of a new database; `prepare` makes it one for the model check."""
        self._url = url
        self._admin = psycopg.connect(url.replace("+psycopg", ""), autocommit=True)
        self._engine: Engine | None = None
        self._held: list[Any] = []
        self._tables = ""

    def prepare(self) -> None:
        """Before the migrations: views bind the functions that they find."""
        for statement in self.CLOCK:
            self._admin.execute(statement)
        name = sql.Identifier(self._admin.info.dbname)
        path = sql.SQL("ALTER DATABASE {} SET search_path = public, pg_catalog")
        self._admin.execute(path.format(name))

    @property
    def now(self) -> float:
        return self._now

    @now.setter
    def now(self, seconds: float) -> None:
        self._now = seconds
        self._admin.execute("UPDATE test_clock.clock SET now = %s", [seconds])

    def begin(self, home: Path) -> Store:  # noqa: ARG002 - no file of it lies there
        self.now = BEGIN
        rows = self._admin.execute(
            "SELECT quote_ident(relname) FROM pg_class WHERE relnamespace = 'public'::regnamespace"
            " AND relkind IN ('r', 'p') AND NOT relispartition AND relname <> 'alembic_version'"
        )
        tables = ", ".join(name for (name,) in rows)
        self._admin.execute(f"TRUNCATE {tables} RESTART IDENTITY".encode())
        store = _store(self._url, self)
        self._engine = store.engine
        return store

    def attach(self, engine: Engine) -> None:
        """Every connection of the database has it."""

    def lose_statement(self, connection: Any, cursor: Any, number: int) -> None:
        match number % 4:
            case 0:
                self._end(connection.connection.dbapi_connection)
            case 1:
                cursor.execute("SET TRANSACTION READ ONLY")
            case 2:
                raise psycopg.errors.LockNotAvailable("canceling statement due to lock timeout")
            case 3:
                self._exhaust()
                self._end(connection.connection.dbapi_connection)

    def lose_answer(self, connection: Any) -> None:
        self._end(connection.dbapi_connection)
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    def _end(self, connection: Any) -> None:
        """The server ends the session, and is done with it."""
        self._admin.execute("SELECT pg_terminate_backend(%s, 10000)", [connection.info.backend_pid])

    def _exhaust(self) -> None:
        """Somebody else holds every connection of the pool."""
        assert self._engine is not None
        try:
            while True:
                self._held.append(self._engine.pool.connect())
        except PoolTimeoutError:
            return

    def go_on(self) -> None:
        while self._held:
            self._held.pop().close()

    def close(self) -> None:
        self.go_on()
        self._admin.close()


class Beside:
    """A connection of the test's, which no fault meets and which sees what is committed."""

    def __init__(self, store: Store, database: Database) -> None:
        engine = create_engine(store.engine.url, isolation_level="AUTOCOMMIT")
        database.attach(engine)
        self._engine, self._connection = engine, engine.connect()

    def ask(self, statement: str, **values: object) -> Sequence[tuple[Any, ...]]:
        return [tuple(row) for row in self._connection.execute(text(statement), values)]

    def close(self) -> None:
        self._connection.close()
        self._engine.dispose()


class CheckedStore(Store):
    """A store whose connections, and those of a lease of its own, meet the test's faults."""

    def __init__(self, store: Store, database: Database, faults: Faults) -> None:
        super().__init__(store.engine, store.retry)
        self._database, self._faults = database, faults
        faults.attach(self.engine)

    def one_thread(self, timeouts: Timeouts = LEASE, *, autocommit: bool = False) -> Store:
        one = super().one_thread(timeouts, autocommit=autocommit)
        self._database.attach(one.engine)
        self._faults.attach(one.engine)
        return one
