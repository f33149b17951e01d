"""Faults that `agentrl chaos` injects into Postgres.

The database becomes read-only or locked, has no free connection, gets a stepped clock, or confirms
commits before they are on disk. The faults affect the whole server, so use a private one.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
from psycopg import sql

from agentrl.db.engine import TIMEOUTS, connect_args

LOCK_WRITERS = "LOCK TABLE episodes IN SHARE MODE"  # readers go on, every writer waits
MOST_CONNECTIONS = 1000  # that are taken
RECOVER_S = 60.0  # for a server that crashed to answer again
OTHERS = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> ALL(%s)"""
# Commits are answered at once, and nothing but the WAL writer brings them to the disk.
LATE_COMMITS = {"synchronous_commit": "off", "bgwriter_lru_maxpages": "0"}
OWN_CLOCK = (
    "CREATE SCHEMA IF NOT EXISTS chaos_clock",
    "CREATE TABLE IF NOT EXISTS chaos_clock.step (seconds double precision NOT NULL)",
    "TRUNCATE chaos_clock.step",
    "INSERT INTO chaos_clock.step VALUES (0)",
    """CREATE OR REPLACE FUNCTION public.clock_timestamp() RETURNS timestamptz
     LANGUAGE sql VOLATILE SECURITY DEFINER AS $$
     SELECT pg_catalog.clock_timestamp()
            + make_interval(secs => (SELECT seconds FROM chaos_clock.step)) $$""",
)
FOREIGN_CLOCK = (
    "DROP FUNCTION public.clock_timestamp()",
    "DROP TABLE chaos_clock.step",
    "DROP SCHEMA chaos_clock",
)


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """Facts that a superuser can read: the WAL writer's pid, and the data folder on its machine."""

    walwriter: int
    folder: str


def is_postgres(url: str) -> bool:
    return url.startswith("postgresql")


def server(url: str) -> PostgresServer | None:
    """Return the server's facts, if the URL's role is a superuser."""
    with _connect(url) as connection:
        rows = connection.execute(
            "SELECT a.pid, current_setting('data_directory', true) FROM pg_stat_activity a"
            " WHERE a.backend_type = 'walwriter' AND current_setting('is_superuser') = 'on'"
        ).fetchall()
    return PostgresServer(int(str(rows[0][0])), str(rows[0][1])) if rows else None


@contextmanager
def make_read_only(url: str) -> Iterator[None]:
    """Make every session read-only, as on a demoted primary."""
    _set_read_only(url, sql.SQL("SET default_transaction_read_only = on"))
    try:
        yield
    finally:
        _set_read_only(url, sql.SQL("RESET default_transaction_read_only"))


@contextmanager
def lock_episodes(url: str) -> Iterator[None]:
    """Block writes to `episodes` with a lock."""
    with _connect(url) as connection, connection.transaction():
        connection.execute(LOCK_WRITERS)
        yield


@contextmanager
def take_connections(url: str) -> Iterator[Callable[[], int]]:
    """Terminate all sessions and occupy all connections of the server.

    Yields a function that does it again and returns the number of occupied connections.
    """
    held = [_connect(url)]

    def take() -> int:
        held[0].execute(OTHERS, [[each.info.backend_pid for each in held]])
        with contextlib.suppress(psycopg.OperationalError):  # none is left
            while len(held) < MOST_CONNECTIONS:
                held.append(_connect(url))
        return len(held)

    try:
        take()
        yield take
    finally:
        for connection in held:
            connection.close()


@contextmanager
def use_own_clock(url: str) -> Iterator[None]:
    """Replace the database's clock for new sessions by a function.

    `step_clock` steps it. Existing views keep the true clock.
    """
    path = sql.SQL("SET search_path = public, pg_catalog")
    with _connect(url) as connection:
        for statement in OWN_CLOCK:
            connection.execute(statement)
        _alter(connection, path)
    try:
        yield
    finally:
        with _connect(url) as connection:
            _alter(connection, sql.SQL("RESET search_path"))
            for statement in FOREIGN_CLOCK:
                connection.execute(statement)


def step_clock(url: str, seconds: float) -> None:
    """Step the clock forward, or back if negative."""
    with _connect(url) as connection:
        connection.execute("UPDATE chaos_clock.step SET seconds = seconds + %s", [seconds])


@contextmanager
def delay_commits(url: str) -> Iterator[None]:
    """Let the server confirm commits before they are on disk, so that a crash loses them."""
    with _connect(url) as connection:
        for name, value in LATE_COMMITS.items():
            setting = sql.SQL("ALTER SYSTEM SET {} = {}")
            connection.execute(setting.format(sql.Identifier(name), sql.Literal(value)))
        connection.execute("SELECT pg_reload_conf()")
    try:
        yield
    finally:
        with _await_recovery(url) as connection:
            for name in LATE_COMMITS:
                connection.execute(sql.SQL("ALTER SYSTEM RESET {}").format(sql.Identifier(name)))
            connection.execute("SELECT pg_reload_conf()")


def _set_read_only(url: str, what: sql.SQL) -> None:
    """Set it for new sessions and terminate existing ones."""
    with _connect(url) as connection:
        connection.execute("SET default_transaction_read_only = off")
        _alter(connection, what)
        connection.execute(OTHERS, [[connection.info.backend_pid]])


def _alter(connection: psycopg.Connection[tuple[object, ...]], what: sql.SQL) -> None:
    """Change the default settings of sessions."""
    name = sql.Identifier(connection.info.dbname)
    connection.execute(sql.SQL("ALTER DATABASE {} {}").format(name, what))


def _await_recovery(url: str) -> psycopg.Connection[tuple[object, ...]]:
    """Connect to a server that may be recovering from a crash."""
    deadline = time.monotonic() + RECOVER_S
    while True:
        try:
            return _connect(url)
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _connect(url: str) -> psycopg.Connection[tuple[object, ...]]:
    address = url.replace("+psycopg", "")
    return psycopg.connect(address, autocommit=True, **connect_args(TIMEOUTS))
