"""MySQL's statements for the SQLite of `envs/tasks/dbbench/sqlite.py`; outside the sandbox.

A statement is parsed, its operators and functions become those of
`envs/tasks/dbbench/functions.py`, and it is written for SQLite. What cannot be parsed goes to
SQLite as it is. Parsing is bounded: long statements are not parsed, and deep nesting ends in
RecursionError.
"""

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import sqlglot
from sqlglot import exp
from sqlglot.dialects.mysql import MySQL
from sqlglot.dialects.sqlite import SQLite
from sqlglot.errors import ErrorLevel, SqlglotError
from sqlglot.parsers.mysql import MySQLParser

from agentrl.envs.tasks.dbbench import rewrite, statements
from agentrl.envs.tasks.dbbench.clauses import Refused
from agentrl.envs.tasks.dbbench.problem import Database, Table
from agentrl.envs.tasks.dbbench.sqlite import told

MAX_PARSED = 20_000  # characters of a statement

_ANSWERS = (
    (r"no such table: (?:main\.)?(.*)", "1146 (42S02): Table 'dbbench.{}' doesn't exist"),
    (r"no such column: (.*)", "1054 (42S22): Unknown column '{}' in 'field list'"),
    (r"table .* has no column named (.*)", "1054 (42S22): Unknown column '{}' in 'field list'"),
    (r"ambiguous column name: (.*)", "1052 (23000): Column '{}' in field list is ambiguous"),
    (r"table (.*) already exists", "1050 (42S01): Table '{}' already exists"),
    (
        r".* values for .* columns|table .* has .* columns but .* values were supplied",
        "1136 (21S01): Column count doesn't match value count at row 1",
    ),
    (r'near "(.*)": syntax error', "1064 (42000): You have an error in your SQL syntax near '{}'"),
)


class Source(MySQL):
    """MySQL whose functions keep their names."""

    class Parser(MySQLParser):
        FUNCTIONS: ClassVar[dict[str, Callable[..., exp.Expr]]] = {}


class Target(SQLite):
    """SQLite with names in backticks: double-quoted ones would fall back to strings."""

    class Tokenizer(SQLite.Tokenizer):
        IDENTIFIERS: ClassVar[list[str | tuple[str, str]]] = ["`"]


@dataclass(frozen=True, slots=True)
class Translated:
    """`sql` for SQLite; `missing`: the table that is not there where no row comes back."""

    sql: str
    missing: str = ""


class MysqlDatabase:
    """A Database that is spoken to in MySQL's dialect; `inner` speaks SQLite's."""

    def __init__(self, inner: Database, tables: Sequence[Table]) -> None:
        self._inner = inner
        self._names = frozenset(table.name for table in tables)

    def execute(self, sql: str) -> str:
        try:
            translated = translate(sql, self._names)
        except Refused as refused:
            return told(refused)
        reply = self._inner.execute(translated.sql)
        if translated.missing and reply == "[]":
            return told(f"1146 (42S02): Table 'dbbench.{translated.missing}' doesn't exist")
        return _as_mysql_says(reply)

    def table_hash(self) -> str:
        return self._inner.table_hash()

    def close(self) -> None:
        self._inner.close()


def translate(sql: str, tables: Iterable[str] = ()) -> Translated:
    """`tables`: names whose case counts. Raises Refused with the answer of MySQL."""
    if len(sql) > MAX_PARSED:
        return Translated(sql)
    return _translated(sql, frozenset(tables))


@lru_cache(maxsize=256)
def _translated(sql: str, tables: frozenset[str]) -> Translated:
    if (emulated := statements.emulated(sql)) is not None:
        return Translated(*emulated)
    logging.getLogger("sqlglot").setLevel(logging.CRITICAL)
    try:
        parsed = [each for each in sqlglot.parse(statements.plain(sql), read=Source) if each]
        if len(parsed) != 1 or isinstance(parsed[0], exp.Command):
            return Translated(sql)
        tree = rewrite.rewritten(parsed[0], tables)
        return Translated(tree.sql(dialect=Target, unsupported_level=ErrorLevel.IGNORE))
    except (SqlglotError, RecursionError, ValueError, TypeError, AttributeError, LookupError):
        return Translated(sql)  # in these ways sqlglot trips over malformed statements


def _as_mysql_says(reply: str) -> str:
    head = told("")
    if not reply.startswith(head):
        return reply
    for pattern, answer in _ANSWERS:
        if found := re.fullmatch(pattern, reply.removeprefix(head), re.DOTALL):
            return told(answer.format(*found.groups()))
    return reply
