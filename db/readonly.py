"""A store that can be looked at and not changed: for consoles, tables and the dashboard.

SQLite is opened with mode=ro and query_only; Postgres as a role that may only read (db/roles.py),
in sessions whose transactions are read-only and whose statements end in time. A console's statement
travels alone, as a prepared statement, so that no second one can hide behind it.
"""

import re
import sqlite3
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import DBAPIError

from core.errors import StoreError
from db import migrate
from db.roles import READER, become_reader
from db.store import (
    ANSWER_S,
    Store,
    Timeouts,
    bound_connections,
    connect_args,
    driver_words,
    parse_url,
    unreachable,
)

TIMEOUT_S = 60.0  # of one statement
TIMEOUTS = Timeouts(statement_s=TIMEOUT_S)
READS = frozenset({"select", "with", "values", "explain", "pragma", "show", "table"})
READ_PRAGMAS = re.compile(r"pragma\s+(table_info|table_list|index_list|index_info|integrity_check)")
COMMENTS = re.compile(r"\A(\s+|--[^\n]*(\n|\Z)|/\*.*?\*/)+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of one statement, in the order of `columns`. `more`: there were more than asked."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    more: bool = False


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a statement may take. `rows`: all where None; no more of them is ever held."""

    timeout_s: float = TIMEOUT_S
    rows: int | None = None


PATIENT = Bounds()


def open_readonly(url: str) -> Store:
    """A Store without a way to write. Raises StoreError; no SQLite file is made."""
    store = Store(_engine(url))
    try:
        store.check()
    except DBAPIError as error:
        store.close()
        raise unreachable(store.engine.url, error) from error
    return store


def open_history(url: str) -> Store:
    """As `open_readonly`, of a store whose schema is this code's. Raises StoreError."""
    store = open_readonly(url)
    try:
        migrate.require_current(store)
    except StoreError:
        store.close()
        raise
    except DBAPIError as error:  # a file of something else, or a damaged one
        store.close()
        raise StoreError(f"store {store.url} cannot be read: {driver_words(error)}") from error
    return store


def refuse_absent(url: str) -> None:
    """Raise StoreError for an SQLite file that is not there: to look makes none."""
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite" and not Path(parsed.database or "").is_file():
        raise StoreError(f"no store at {parsed.database}", mend="agentrl up CONFIG")


def ask(store: Store, statement: str, bounds: Bounds = Bounds()) -> Answer:
    """The rows of one statement that reads. Raises StoreError that says what is wrong with it."""
    _refuse_writes(statement)
    if store.engine.dialect.name == "sqlite":
        return _ask_sqlite(store.engine, statement, bounds)
    return _ask_postgres(store.engine, statement, bounds)


def tables(store: Store) -> Answer:
    """Names of tables and views."""
    if store.engine.dialect.name == "sqlite":
        return ask(
            store,
            "SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view') "
            "AND name NOT LIKE 'sqlite%' ORDER BY type, name",
        )
    return ask(
        store,
        "SELECT table_name AS name, CASE table_type WHEN 'VIEW' THEN 'view' ELSE 'table' END "
        "AS type FROM information_schema.tables WHERE table_schema = current_schema() "
        "ORDER BY 2, 1",
    )


def _refuse_writes(statement: str) -> None:
    bare = COMMENTS.sub("", statement).lower()
    verb = re.match(r"[a-z]*", bare.lstrip("("))
    word = verb.group() if verb else ""
    if word not in READS or (word == "pragma" and not READ_PRAGMAS.match(bare)):
        raise StoreError(
            f"this console only reads; {word.upper() or 'that'} is refused",
            mend="begin with SELECT, WITH, VALUES, EXPLAIN or SHOW",
        )


def _ask_sqlite(engine: Engine, statement: str, bounds: Bounds) -> Answer:
    """As `ask`; a statement that runs too long is interrupted."""
    connection = engine.raw_connection()
    deadline = time.monotonic() + bounds.timeout_s
    driver: Any = connection.driver_connection
    driver.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)
    try:
        return _answer(driver.execute(statement), bounds.rows)
    except (sqlite3.Error, sqlite3.Warning) as error:
        if time.monotonic() > deadline:
            raise _late(bounds) from error
        raise StoreError(f"SQL: {error}") from error
    finally:
        driver.set_progress_handler(None, 0)
        connection.close()


def _ask_postgres(engine: Engine, statement: str, bounds: Bounds) -> Answer:
    """As `ask`; transaction and role only read, whatever the session was told before."""
    import psycopg

    connection = engine.raw_connection()
    driver: Any = connection.driver_connection
    driver.silence_s = bounds.timeout_s + ANSWER_S
    try:
        driver.execute("SET TRANSACTION READ ONLY")
        if connection.info.get(READER):
            driver.execute(f"SET LOCAL ROLE {READER}")
        driver.execute(f"SET LOCAL statement_timeout = {round(1000 * bounds.timeout_s)}")
        if bounds.rows is None:
            return _answer(driver.execute(statement, prepare=True), None)
        return _streamed(driver, statement, bounds.rows)
    except psycopg.errors.QueryCanceled as error:
        raise _late(bounds) from error
    except psycopg.Error as error:
        raise StoreError(f"SQL: {driver_words(error)}") from error
    finally:
        connection.close()


def _streamed(driver: Any, statement: str, rows: int) -> Answer:
    """The first rows as they come; psycopg's stream is a prepared statement too."""
    cursor = driver.cursor()
    with closing(cursor.stream(statement)) as stream:
        found = _plain_rows(islice(stream, rows + 1))
        columns = tuple(column[0] for column in cursor.description or ())
    return Answer(columns, found[:rows], len(found) > rows)


def _late(bounds: Bounds) -> StoreError:
    return StoreError(
        f"SQL: it took longer than {bounds.timeout_s:g} s", mend="ask for less, or of one run"
    )


def _answer(cursor: Any, rows: int | None) -> Answer:
    if cursor.description is None:
        return Answer((), [])
    columns = tuple(column[0] for column in cursor.description)
    found = cursor.fetchall() if rows is None else cursor.fetchmany(rows + 1)
    return Answer(columns, _plain_rows(found[:rows]), len(found) > (rows or len(found)))


def _plain_rows(rows: Iterable[Any]) -> list[tuple[Any, ...]]:
    return [tuple(_plain(value) for value in row) for row in rows]


def _plain(value: Any) -> Any:
    """Postgres makes decimals of sums and means; no column of ours holds one."""
    if not isinstance(value, Decimal):
        return value
    return int(value) if value.as_tuple().exponent == 0 else float(value)


def _engine(url: str) -> Engine:
    parsed = parse_url(url)
    if parsed.get_backend_name() != "sqlite":
        # without jit: to compile a proof's plan takes longer than to run it
        options = {"options": "-c default_transaction_read_only=on -c jit=off"}
        arguments = connect_args(TIMEOUTS) | options
        engine = create_engine(parsed, pool_pre_ping=True, connect_args=arguments)
        bound_connections(engine, TIMEOUTS)
        event.listen(engine, "connect", become_reader)
        return engine
    refuse_absent(url)
    address = f"{Path(parsed.database or '').resolve().as_uri()}?mode=ro"

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            address, uri=True, timeout=TIMEOUTS.lock_s, check_same_thread=False
        )
        connection.execute("PRAGMA query_only=ON")
        return connection

    return create_engine(url, creator=connect)
