"""What `agentrl chaos` does to a Postgres that a run uses: read-only, locked."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql

HELD = "LOCK TABLE episodes IN SHARE MODE"  # readers go on, every writer waits


def is_postgres(url: str) -> bool:
    return url.startswith("postgresql")


@contextmanager
def read_only(url: str) -> Iterator[None]:
    """Every session of the database refuses writes, as those of a demoted primary do."""
    _set_read_only(url, sql.SQL("SET default_transaction_read_only = on"))
    try:
        yield
    finally:
        _set_read_only(url, sql.SQL("RESET default_transaction_read_only"))


@contextmanager
def episodes_locked(url: str) -> Iterator[None]:
    """Nobody can write a row of `episodes`, and nobody is told why."""
    with _connect(url) as connection, connection.transaction():
        connection.execute(HELD)
        yield


def _set_read_only(url: str, what: sql.SQL) -> None:
    """For sessions that begin from now on; those that stand are ended."""
    with _connect(url) as connection:
        connection.execute("SET default_transaction_read_only = off")
        name = sql.Identifier(connection.info.dbname)
        connection.execute(sql.SQL("ALTER DATABASE {} {}").format(name, what))
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def _connect(url: str) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(url.replace("+psycopg", ""), autocommit=True, connect_timeout=10)
