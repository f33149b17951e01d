"""Connections: one Store per process, `read()` and `write()` transactions, the database's clock."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from psycopg.errors import IdleInTransactionSessionTimeout
from sqlalchemy import Connection, Engine, create_engine, event, select, text
from sqlalchemy.engine import URL, ExceptionContext, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    InterfaceError,
    NoSuchModuleError,
    OperationalError,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import Float, Integer

from core.errors import StoreError
from core.process import unlocked

BUSY_TIMEOUT_S = 10.0
IDLE_S = 10.0  # between two statements of one transaction on Postgres
AWAY = (OperationalError, InterfaceError)  # of the connection, not of the statement

T = TypeVar("T")


class now(FunctionElement[float]):  # noqa: N801 - reads as the SQL function it is
    """Seconds since the epoch on the database's clock."""

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
    """A number ≥ 0 without its fraction."""

    type = Integer()
    inherit_cache = True
    name = "whole"


@compiles(whole, "sqlite")
def _sqlite_whole(element: whole, compiler: SQLCompiler, **kw: Any) -> str:
    return f"CAST({compiler.process(element.clauses, **kw)} AS INTEGER)"


@compiles(whole, "postgresql")
def _postgres_whole(element: whole, compiler: SQLCompiler, **kw: Any) -> str:
    return f"floor({compiler.process(element.clauses, **kw)})::integer"


class Store:
    """The database of truth. Safe for many threads; a Session belongs to one."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._read = sessionmaker(engine.execution_options(agentrl_write=False))
        self._write = sessionmaker(engine.execution_options(agentrl_write=True))

    @property
    def url(self) -> str:
        """The URL without its password."""
        return self.engine.url.render_as_string(hide_password=True)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A transaction that changes nothing. Raises StoreError while the database is away."""
        with self._named(), self._read() as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A transaction that commits at its end; on SQLite it takes the write lock at once.

        Raises StoreError while the database is away.
        """
        with self._named(), self._write.begin() as session:
            yield session

    def transact(self, work: Callable[[Session], T], *, patience_s: float = 30.0) -> T:
        """`work` in one write transaction, again while the database is away or refuses the turn.

        `work` must be a compare-and-set or otherwise safe to repeat: a commit whose answer was lost
        is repeated too. Raises StoreError after `patience_s` seconds.
        """
        return self._patiently(self._write.begin, work, patience_s)

    def ask(self, work: Callable[[Session], T], *, patience_s: float = 30.0) -> T:
        """As `transact`, in a transaction that changes nothing."""
        return self._patiently(self._read, work, patience_s)

    def _patiently(
        self,
        begin: Callable[[], AbstractContextManager[Session]],
        work: Callable[[Session], T],
        patience_s: float,
    ) -> T:
        deadline, pause = time.monotonic() + patience_s, 0.05
        with self._named():
            while True:
                try:
                    with begin() as session:
                        return work(session)
                except AWAY:
                    if time.monotonic() + pause > deadline:
                        raise
                time.sleep(pause)
                pause = min(2 * pause, 2.0)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Errors of the connection as errors of this store."""
        try:
            yield
        except AWAY as error:
            reason = str(error.orig).strip().splitlines()[0]
            raise StoreError(
                f"store {self.url}: {reason}", mend=mended(self.engine.url, reason)
            ) from error

    def clock(self) -> float:
        """Now, on the database's clock."""
        return self.ask(lambda session: float(session.scalar(select(now())) or 0.0))

    def close(self) -> None:
        self.engine.dispose()


def open_store(url: str, *, threads: int = 8) -> Store:
    """Connect. Raises StoreError that names the store and how to mend it."""
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
        engine = _sqlite(url) if backend == "sqlite" else _postgres(url, threads)
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
    except (ArgumentError, NoSuchModuleError) as error:
        raise StoreError(
            f"store.url is no database URL: {error}",
            mend="sqlite:////a/path/store.db, or postgresql+psycopg://user@host/database",
        ) from error
    except DBAPIError as error:
        reason = str(error.orig).strip().splitlines()[0]
        shown = parsed.render_as_string(hide_password=True)
        raise StoreError(
            f"store {shown} is unreachable: {reason}",
            mend=f"{mended(parsed, reason)}, or mend store.url",
        ) from error
    return Store(engine)


def mended(url: URL, reason: str) -> str:
    """What a person does about a store that cannot be used. `reason`: the driver's words."""
    if url.get_backend_name() != "sqlite":
        return "start the database"
    if "locked" in reason:
        return unlocked(url.database or "")
    return "look at the file, its folder's rights and the free space"


def _postgres(url: str, threads: int) -> Engine:
    """What stands still within a transaction loses it: its locks would hold up everybody else.

    A page that an index names costs what the next page does: what a run asks for is of late, and in
    memory. By the server's own figure, meant for disks, it would read whole tables instead.
    """
    engine = create_engine(
        url, pool_size=threads, max_overflow=4, pool_pre_ping=True, pool_timeout=30
    )

    @event.listens_for(engine, "connect")
    def _bound(connection: Any, _record: Any) -> None:
        connection.execute(f"SET idle_in_transaction_session_timeout = {round(IDLE_S * 1000)}")
        connection.execute("SET random_page_cost = 1.1")
        connection.commit()

    @event.listens_for(engine, "handle_error")
    def _away(context: ExceptionContext) -> None:
        """psycopg calls it an internal error; it is a connection that is gone."""
        error = context.original_exception
        if isinstance(error, IdleInTransactionSessionTimeout):
            raise OperationalError(context.statement, None, error)

    return engine


def _sqlite(url: str) -> Engine:
    path = make_url(url).database
    if path and path != ":memory:":
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S})

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
