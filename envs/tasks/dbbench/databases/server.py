"""A MySQL or MariaDB server that holds a database of each episode.

An episode holds a lock that has the name of its database. A new process drops every database whose
lock is free.
"""

import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pymysql

from agentrl.core.errors import ConfigError, EnvironmentFailure
from agentrl.core.logging import get_logger

PREFIX = "agentrl_"
_NAME = re.compile(rf"{PREFIX}[0-9a-f]{{16}}")  # nothing else is swept
CONNECT_S = 10.0
_LOCKED = 1205

log = get_logger()


@dataclass(frozen=True, slots=True)
class Server:
    """The address of a server, and an account that may create databases and users.

    `locked_s`: seconds that a table is waited for which a transaction holds.
    """

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    locked_s: int = 10

    @classmethod
    def at(cls, url: str, password: str) -> "Server":
        """Parse `mysql://user@host:port/`. Raises ConfigError."""
        form = "dbbench: server is not mysql://user@host:port/"
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port or 3306
        except ValueError:  # whose text may hold a part of a password
            raise ConfigError(form, hint="use a URL such as mysql://root@127.0.0.1:3306/") from None
        if parts.password:
            hint = "name the variable of its password in password_env"
            raise ConfigError(f"{form} contains a password", hint=hint)
        if parts.scheme not in ("mysql", "mariadb") or not host:
            raise ConfigError(form, hint="use a URL such as mysql://root@127.0.0.1:3306/")
        return cls(host, port, parts.username or "root", password)

    def connect(self, **others: Any) -> "pymysql.Connection[Any]":
        """Open a connection. Raises EnvironmentFailure."""
        account = {"user": self.user, "password": self.password} | others
        try:
            return pymysql.connect(
                host=self.host,
                port=self.port,
                charset="utf8mb4",
                connect_timeout=CONNECT_S,
                autocommit=True,
                **account,
            )
        except (pymysql.Error, OSError, RuntimeError) as error:
            raise EnvironmentFailure(f"dbbench: {self.host}:{self.port}: {error}") from error

    def administer(self, read_timeout_s: float) -> "pymysql.Connection[Any]":
        """Open a connection that may create and drop databases. Raises EnvironmentFailure."""
        settings = "sql_mode = '', group_concat_max_len = 1024, autocommit = 1"
        init = f"SET {settings}, lock_wait_timeout = {self.locked_s}"
        return self.connect(read_timeout=read_timeout_s, init_command=init)

    def sweep(self) -> list[str]:
        """Drop databases of dead processes; return their names. Raises EnvironmentFailure."""
        opened = self.administer(6.0 * self.locked_s)
        try:
            with opened.cursor() as cursor:
                names = set[str]()
                for asked in ("SHOW DATABASES", "SELECT user FROM mysql.user"):
                    cursor.execute(asked)
                    names |= {row[0] for row in cursor.fetchall() if _NAME.fullmatch(row[0])}
                return [name for name in sorted(names) if _dropped(cursor, name)]
        except pymysql.Error as error:
            raise EnvironmentFailure(f"dbbench: {self.host}:{self.port}: {error}") from error
        finally:
            hang_up(opened)


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _dropped(cursor: Any, name: str) -> bool:
    cursor.execute("SELECT GET_LOCK(%s, 0)", (name,))
    if cursor.fetchone()[0] != 1:
        return False
    try:
        drop_database(cursor, name)
    except pymysql.OperationalError as error:
        if error_code(error) != _LOCKED:
            raise
        log.warning("Database not dropped", database=name, error=str(error))
        return False
    return True


def drop_database(cursor: Any, name: str) -> None:
    cursor.execute(f"DROP DATABASE IF EXISTS {quoted(name)}")
    cursor.execute(f"DROP USER IF EXISTS '{name}'@'%'")
    cursor.execute("SELECT RELEASE_LOCK(%s)", (name,))


def error_code(error: pymysql.Error) -> int:
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


def hang_up(connection: "pymysql.Connection[Any] | None") -> None:
    if connection is not None:
        connection._force_close()  # noqa: SLF001
