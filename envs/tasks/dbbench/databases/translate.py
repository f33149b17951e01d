"""MySQL's statements for the SQLite of `sqlite.py`; outside the sandbox.

A statement is parsed, `rewrite.py` changes its tree, and it is written for
SQLite. What cannot be parsed goes to SQLite as it is. Parsing is bounded: long statements are not
parsed, deep nesting ends in RecursionError, and many steps back and forth in ValueError.
"""

import logging
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import ClassVar

import sqlglot
from sqlglot import exp
from sqlglot.dialects.mysql import MySQL
from sqlglot.dialects.sqlite import SQLite
from sqlglot.errors import ErrorLevel, SqlglotError
from sqlglot.parsers.mysql import MySQLParser

from agentrl.envs.tasks.dbbench.databases import rewrite
from agentrl.envs.tasks.dbbench.databases.sqlite import error_text, quoted
from agentrl.envs.tasks.dbbench.problem import Database, Table

MAX_PARSED = 20_000  # characters of a statement
MAX_STEPS = 50_000  # of its parser, which reads year(…) twice, so year(year(…)) four times

_ANSWERS = (
    (r"no such table: (?:main\.)?(.*)", "1146 (42S02): Table 'dbbench.{}' doesn't exist"),
    (
        r"(?:no such column: |table .* has no column named )(.*)",
        "1054 (42S22): Unknown column '{}' in 'field list'",
    ),
    (r"ambiguous column name: (.*)", "1052 (23000): Column '{}' in field list is ambiguous"),
    (r".* values for .* columns|.* columns but .*", "1136 (21S01): Column count doesn't match"),
    (r'near "(.*)": syntax error', "1064 (42000): You have an error in your SQL syntax near '{}'"),
)


class Source(MySQL):
    """MySQL as sqlglot parses it; functions keep their names, but MOD is an operator."""

    class Parser(MySQLParser):
        FUNCTIONS: ClassVar[dict[str, Callable[..., exp.Expr]]] = {
            "MOD": MySQLParser.FUNCTIONS["MOD"]
        }
        FUNCTION_PARSERS: ClassVar[dict[str, Callable[..., exp.Expr]]] = {
            name: MySQLParser.FUNCTION_PARSERS[name] for name in ("CAST", "CONVERT", "GROUP_CONCAT")
        }
        steps = 0

        def _advance(self, times: int = 1) -> None:
            """Raise ValueError, which ends all attempts, after too many steps."""
            self.steps += 1
            if self.steps > MAX_STEPS:
                raise ValueError("too many steps")
            super()._advance(times)


class Target(SQLite):
    """SQLite with names in backticks, because double-quoted ones would fall back to strings."""

    class Tokenizer(SQLite.Tokenizer):
        IDENTIFIERS: ClassVar[list[str | tuple[str, str]]] = ["`"]


class MysqlDatabase:
    """A Database that takes MySQL's dialect and passes SQLite's to `inner`."""

    def __init__(self, inner: Database, tables: Sequence[Table]) -> None:
        self._inner = inner
        self._names = frozenset(table.name for table in tables)

    def execute(self, sql: str) -> str:
        try:
            translated = sql if len(sql) > MAX_PARSED else translate(sql, self._names)
            return _as_mysql_says(self._inner.execute(translated))
        except rewrite.Refused as refused:
            return error_text(refused)

    def table_hash(self) -> str:
        return self._inner.table_hash()

    def close(self) -> None:
        self._inner.close()


@lru_cache(maxsize=1024)
def translate(sql: str, tables: frozenset[str] = frozenset()) -> str:
    """Translate a statement. `tables`: names whose case counts. Raises Refused."""
    logging.getLogger("sqlglot").setLevel(logging.CRITICAL)
    plain = re.sub(r"^\s*replace\s+into\b", "INSERT INTO", sql, flags=re.IGNORECASE)  # no keys
    try:
        parsed = [each for each in sqlglot.parse(plain, read=Source) if each]
        if len(parsed) != 1 or isinstance(parsed[0], exp.Command):
            return sql
        if isinstance(parsed[0], (exp.Show, exp.Describe)):
            return _describe_catalogue(parsed[0])
        tree = rewrite.rewrite_tree(parsed[0], tables)
        return tree.sql(Target, copy=False, unsupported_level=ErrorLevel.IGNORE)
    except (SqlglotError, RecursionError, ValueError, TypeError, AttributeError, LookupError):
        return sql  # in these ways sqlglot trips over malformed statements


def _describe_catalogue(asked: exp.Expr) -> str:
    """Answer SHOW TABLES, SHOW COLUMNS and DESCRIBE from SQLite's catalogue."""
    what = asked.name if isinstance(asked, exp.Show) else "COLUMNS"
    if what == "TABLES":
        return "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name"
    table = asked.args.get("target") or asked.this
    if what != "COLUMNS" or not isinstance(table, (exp.Table, exp.Identifier)):
        return asked.key.upper()  # a syntax error
    name = exp.Literal.string(table.name).sql("sqlite")
    exists = f"(SELECT 1 FROM {quoted(table.name)})"  # noqa: S608  fails without the table
    columns = "SELECT name, lower(type), 'YES', '', NULL, ''"
    return f"{columns} FROM pragma_table_info({name}) WHERE 1 OR {exists}"


def _as_mysql_says(reply: str) -> str:
    head = error_text("")
    if not reply.startswith(head):
        return reply
    for pattern, answer in _ANSWERS:
        if found := re.fullmatch(pattern, reply.removeprefix(head), re.DOTALL):
            return error_text(answer.format(*found.groups()))
    return reply
