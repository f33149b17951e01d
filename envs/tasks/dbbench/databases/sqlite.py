"""The item's tables in an SQLite of their own, in this process and in memory.

A statement is bounded in time, in work and in the temporary files that SQLite sorts with, the
database in size. An authorizer lets through only what stays inside: no other files, no extensions,
no settings. Runs in sandboxes too, so it imports, like what it imports, the standard library only.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.core.errors import ItemError
from agentrl.envs.tasks.dbbench import scoring
from agentrl.envs.tasks.dbbench.databases import functions

if TYPE_CHECKING:
    from agentrl.envs.tasks.dbbench.problem import Table

MAX_TEXT = 800  # characters of a result that the agent sees
TRUNCATED = "[TRUNCATED]"
TIMED_OUT = "Error: SQL execution timed out."

MAX_PAGES = 8192  # of 4 KiB: 32 MiB a database
MAX_VALUE = 1_000_000  # bytes of one value or statement
MAX_SPILL = 32 << 20  # bytes in temporary files, after which the next look ends a statement
CHECK_EVERY = 1000  # virtual machine instructions between two looks at the clock and the files
MAX_WORK = 100_000_000  # instructions of a statement

_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: MAX_VALUE,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: MAX_VALUE,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 200,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 200,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
}
_ALLOWED = frozenset(
    {
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_FUNCTION,
        sqlite3.SQLITE_RECURSIVE,
        sqlite3.SQLITE_INSERT,
        sqlite3.SQLITE_UPDATE,
        sqlite3.SQLITE_DELETE,
        sqlite3.SQLITE_TRANSACTION,
        sqlite3.SQLITE_SAVEPOINT,
        sqlite3.SQLITE_CREATE_TABLE,
        sqlite3.SQLITE_CREATE_INDEX,
        sqlite3.SQLITE_CREATE_VIEW,
        sqlite3.SQLITE_DROP_TABLE,
        sqlite3.SQLITE_DROP_INDEX,
        sqlite3.SQLITE_DROP_VIEW,
        sqlite3.SQLITE_ALTER_TABLE,
        sqlite3.SQLITE_REINDEX,
    }
)
_READ_ONLY_PRAGMAS = frozenset({"table_info", "table_xinfo", "table_list", "index_list"})


class _Late(Exception):
    """Raised inside a function when the statement's time is up."""


class SqliteDatabase:
    """A Database on `:memory:`. `timeout_s`: seconds of wall clock for one statement.

    `mysql`: texts compare as MySQL's, and statements come from `translate.py`;
    `max_work`: virtual machine instructions of a statement; `clock`: seconds, only ever more.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        *,
        timeout_s: float,
        mysql: bool = False,
        max_work: int = MAX_WORK,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tables = tables
        self._mysql = mysql
        self._timeout_s = timeout_s
        self._max_work = max_work
        self._clock = clock
        self._deadline = 0.0
        self._checks_left = 0
        self._most_written = 0
        self._connection = sqlite3.connect(
            ":memory:", isolation_level=None, check_same_thread=False
        )
        try:
            self._fill()
        except sqlite3.Error as error:
            self.close()
            raise ItemError(f"table {', '.join(t.name for t in tables)}: {error}") from error
        self._restrict()

    def execute(self, sql: str) -> str:
        self._begin()
        try:
            return self._shown(sql)
        except sqlite3.OperationalError as error:
            late = str(error) == "interrupted" or self._late_in_function(error)
            return TIMED_OUT if late else error_text(error)
        except (sqlite3.Error, sqlite3.Warning, ValueError, MemoryError) as error:
            return error_text(error)

    def rows(self, sql: str) -> list[tuple[str | None, ...]]:
        """Run a trusted statement and return its rows. Raises sqlite3.Error."""
        self._begin()
        return self._connection.execute(sql).fetchall()

    def table_hash(self) -> str:
        try:
            return scoring.combined_hash(self._hash(table) for table in self._tables)
        except sqlite3.Error:
            return ""  # the agent dropped the table or a column: equal to no gold

    def close(self) -> None:
        self._connection.close()

    def _fill(self) -> None:
        self._connection.execute(f"PRAGMA max_page_count = {MAX_PAGES}")
        self._connection.execute("PRAGMA temp_store = FILE")  # in memory nothing would bound it
        if self._mysql:
            functions.register(self._connection, self._tick)
        collation = f" COLLATE {functions.COLLATION}" if self._mysql else ""
        self._connection.execute("BEGIN")
        for table in self._tables:
            columns = ",".join(f"{quoted(column)} TEXT{collation}" for column in table.columns)
            self._connection.execute(f"CREATE TABLE {quoted(table.name)} ({columns})")
            holes = ",".join("?" * len(table.columns))
            insert = f"INSERT INTO {quoted(table.name)} VALUES ({holes})"  # noqa: S608
            self._connection.executemany(insert, table.rows)
        self._connection.execute("COMMIT")

    def _restrict(self) -> None:
        for limit, value in _LIMITS.items():
            self._connection.setlimit(limit, value)
        self._connection.text_factory = lambda raw: raw.decode(errors="replace")
        self._connection.set_authorizer(_authorize)
        self._connection.set_progress_handler(self._late, CHECK_EVERY)

    def _begin(self) -> None:
        self._deadline = self._clock() + self._timeout_s
        self._checks_left = self._max_work // CHECK_EVERY
        self._most_written = bytes_written() + MAX_SPILL

    def _late(self) -> bool:
        self._checks_left -= 1
        return (
            self._checks_left < 0
            or self._clock() > self._deadline
            or bytes_written() > self._most_written
        )

    def _tick(self) -> None:
        """Raise _Late if the time is up; functions that read long texts call it."""
        if self._clock() > self._deadline:
            raise _Late

    def _late_in_function(self, error: sqlite3.OperationalError) -> bool:
        return "user-defined" in str(error) and self._clock() > self._deadline

    def _shown(self, sql: str) -> str:
        """Format rows as Python writes a list of tuples; reads no more than it shows."""
        cursor = self._connection.execute(sql)
        parts: list[str] = []
        length = 0
        for row in cursor:
            parts.append(repr(row))
            length += len(parts[-1]) + 2
            if length > MAX_TEXT:
                break
        cursor.close()
        text = f"[{', '.join(parts)}]"
        return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + TRUNCATED

    def _hash(self, table: Table) -> str:
        columns = ",".join(f"CAST({quoted(column)} AS TEXT)" for column in table.columns)
        return scoring.table_hash(self.rows(f"SELECT {columns} FROM main.{quoted(table.name)}"))  # noqa: S608


def bytes_written() -> int:
    """Return how many bytes this thread has written; 0 where the kernel does not count them."""
    try:
        counts = Path("/proc/thread-self/io").read_bytes()  # proc(5): rchar: …\nwchar: …\n…
    except OSError:
        return 0
    return int(counts.split()[3])


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _authorize(action: int, name: str | None, value: str | None, *_: str | None) -> int:
    if action == sqlite3.SQLITE_PRAGMA:
        return sqlite3.SQLITE_OK if name in _READ_ONLY_PRAGMAS else sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_FUNCTION and value == "load_extension":
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY


def error_text(error: object) -> str:
    """Format an error as the agent reads it."""
    return f"Error executing query: {error}"[:MAX_TEXT]
