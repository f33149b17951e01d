"""The item's tables in a database of their own on a MySQL or MariaDB server.

An episode has a database and a user that may use nothing else, both of one random name.
"""

import contextlib
import secrets
import time
from collections.abc import Sequence
from typing import Any

import pymysql
from pymysql.cursors import SSCursor

from agentrl.core.errors import EnvironmentFailure, ItemError
from agentrl.core.logging import get_logger
from agentrl.envs.tasks.dbbench import scoring
from agentrl.envs.tasks.dbbench.databases.server import (
    PREFIX,
    Server,
    drop_database,
    error_code,
    hang_up,
    quoted,
)
from agentrl.envs.tasks.dbbench.databases.sqlite import MAX_TEXT, TIMED_OUT, TRUNCATED, error_text
from agentrl.envs.tasks.dbbench.problem import Table

GRACE_S = 5.0  # beyond a statement's own limit, before its connection is killed
DRAINED = 2000  # rows read beyond those shown, before the statement is killed
GRANTS = "SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, INDEX, CREATE VIEW, SHOW VIEW"
MARIADB_COLLATION = "utf8mb4_unicode_520_nopad_ci"  # nearest to MySQL 8's utf8mb4_0900_ai_ci
_LATE = frozenset({1317, 1969, 3024})  # interrupted; max_statement_time; max_execution_time
_LOST = frozenset({0, 1927, 2006, 2013, 2014, 2055})  # 1927: killed

log = get_logger()


class ServerDatabase:
    """A Database on a server. `timeout_s`: seconds of wall clock for one statement.

    `grace_s`: beyond that, before the statement's connection is killed; `name`: of the database,
    a random one where it is not given.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        *,
        server: Server,
        timeout_s: float,
        grace_s: float = GRACE_S,
        name: str = "",
    ) -> None:
        self._tables, self._server, self._timeout_s = tables, server, timeout_s
        self._grace_s = grace_s
        self._name = name or PREFIX + secrets.token_hex(8)
        self._password = secrets.token_urlsafe(16)
        self._agent: pymysql.Connection[Any] | None = None
        self._admin: pymysql.Connection[Any] | None = server.administer(timeout_s + grace_s)
        try:
            self._create()
            self._agent = self._connect()
        except BaseException:
            self.close()
            raise

    def execute(self, sql: str) -> str:
        began = time.monotonic()
        try:
            shown = self._shown(sql)
            late = time.monotonic() - began >= self._timeout_s
            cut = late and "benchmark" in sql.lower()  # the server answers 0 for one that it ended
            return TIMED_OUT if cut else shown
        except pymysql.Error as error:
            return self._mishap(error)
        except (UnicodeError, ValueError, TypeError) as error:
            return error_text(error)

    def table_hash(self) -> str:
        self.execute("UNLOCK TABLES")
        self.execute("COMMIT")
        try:
            return scoring.combined_hash(self._hash(table) for table in self._tables)
        except pymysql.Error as error:
            if error_code(error) in _LOST:
                raise EnvironmentFailure(f"dbbench: {error}") from error
            return ""  # the agent dropped the table or a column: equal to no gold

    def close(self) -> None:
        admin, self._admin = self._admin, None
        hang_up(self._agent)
        if admin is None:
            return
        try:
            with admin.cursor() as cursor:
                drop_database(cursor, self._name)
        except pymysql.Error as error:
            log.warning("Database not dropped", database=self._name, error=str(error))
        finally:
            hang_up(admin)

    def _create(self) -> None:
        """Create tables. Raises ItemError if the server refuses them, EnvironmentFailure."""
        try:
            with self._administer().cursor() as cursor:
                cursor.execute("SELECT GET_LOCK(%s, 5)", (self._name,))
                collation = _collation_clause(self._admin)
                cursor.execute(f"CREATE DATABASE {self._name} CHARACTER SET utf8mb4{collation}")
                account = f"'{self._name}'@'%%' IDENTIFIED BY %s"
                cursor.execute(f"CREATE USER {account}", (self._password,))
                pattern = self._name.replace("_", "\\_")
                cursor.execute(f"GRANT {GRANTS} ON `{pattern}`.* TO '{self._name}'@'%'")
        except pymysql.Error as error:
            raise EnvironmentFailure(f"dbbench: {error}") from error
        for table in self._tables:
            self._fill(table)

    def _fill(self, table: Table) -> None:
        columns = ",".join(f"{quoted(column)} TEXT" for column in table.columns)
        place = f"{self._name}.{quoted(table.name)}"
        holes = ",".join(["%s"] * len(table.columns))
        try:
            with self._administer().cursor() as cursor:
                cursor.execute(f"CREATE TABLE {place} ({columns})")
                insert = f"INSERT INTO {place.replace('%', '%%')} VALUES ({holes})"  # noqa: S608
                cursor.executemany(insert, table.rows)
        except (pymysql.Error, TypeError) as error:
            if isinstance(error, pymysql.Error) and error_code(error) in _LOST:
                raise EnvironmentFailure(f"dbbench: {error}") from error
            raise ItemError(f"table {table.name}: {error}") from error

    def _connect(self) -> "pymysql.Connection[Any]":
        """Connect as the episode's user."""
        seconds = float(self._timeout_s)
        maria = bool(_collation_clause(self._admin))
        limit = (
            f"max_statement_time={seconds}" if maria else f"max_execution_time={seconds * 1e3:.0f}"
        )
        names = f"NAMES utf8mb4 COLLATE {MARIADB_COLLATION}, " if maria else ""
        return self._server.connect(
            user=self._name,
            password=self._password,
            database=self._name,
            read_timeout=seconds + self._grace_s,
            cursorclass=SSCursor,
            init_command=f"SET {names}sql_mode='', {limit}",
        )

    def _shown(self, sql: str) -> str:
        """Format rows as Python writes a list of tuples; reads few more than it shows."""
        if self._agent is None:
            raise EnvironmentFailure("dbbench: the database is closed")
        cursor = self._agent.cursor()
        try:
            cursor.execute(sql)
            parts: list[str] = []
            length = 0
            while length <= MAX_TEXT and (row := cursor.fetchone()) is not None:
                parts.append(repr(row))
                length += len(parts[-1]) + 2
            if length > MAX_TEXT:
                self._drain(cursor)
        finally:
            with contextlib.suppress(pymysql.Error):
                cursor.close()
        text = f"[{', '.join(parts)}]".replace(self._name, "dbbench")
        return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + TRUNCATED

    def _drain(self, cursor: SSCursor) -> None:
        for _ in range(DRAINED):
            if cursor.fetchone() is None:
                return
        self._kill("QUERY")

    def _mishap(self, error: pymysql.Error) -> str:
        """Return the agent's error message; reconnect if the server still answers."""
        code = error_code(error)
        if code in _LATE:
            return TIMED_OUT
        if code not in _LOST:
            text = f"{code} ({error.sqlstate}): {error.args[-1]}"
            return error_text(text.replace(self._name, "dbbench"))
        self._kill("CONNECTION")
        hang_up(self._agent)
        self._agent = self._connect()
        late = "timed out" in str(error)
        return (
            TIMED_OUT if late else error_text(f"{code}: {error.args[-1] if error.args else error}")
        )

    def _kill(self, what: str) -> None:
        """Kill the running statement. Raises EnvironmentFailure if the server is silent."""
        if self._agent is None:
            return
        try:
            with self._administer().cursor() as cursor:
                cursor.execute(f"KILL {what} {self._agent.thread_id()}")
        except pymysql.Error as error:
            if error_code(error) in _LOST:
                raise EnvironmentFailure(f"dbbench: {error}") from error

    def _hash(self, table: Table) -> str:
        columns = ",".join(quoted(column) for column in table.columns)
        with self._administer().cursor() as cursor:
            cursor.execute(
                "SELECT MD5(GROUP_CONCAT(h ORDER BY h)) FROM (SELECT SUBSTRING(MD5("  # noqa: S608
                f"CONCAT_WS(',', {columns})), 1, 5) AS h "
                f"FROM {self._name}.{quoted(table.name)}) AS hashes"
            )
            row = cursor.fetchone()
        return scoring.NO_ROWS if row is None or row[0] is None else str(row[0])

    def _administer(self) -> "pymysql.Connection[Any]":
        if self._admin is None:
            raise EnvironmentFailure("dbbench: the database is closed")
        return self._admin


def _collation_clause(connection: "pymysql.Connection[Any] | None") -> str:
    """Return a clause of CREATE DATABASE; empty if the server's own collation is right."""
    version = connection.get_server_info() if connection is not None else ""
    return f" COLLATE {MARIADB_COLLATION}" if "MariaDB" in version else ""
