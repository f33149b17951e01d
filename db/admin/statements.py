"""Checks statements of a console: their parse tree must only read.

sqlglot parses them with the grammar of the database in use, so both agree on what is a comment.
What the tree cannot show (a function that writes) is prevented by the read-only role and
transaction of db/admin/readonly.py.
"""

import logging
import re

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from agentrl.core.errors import StoreError

CHANGES = (
    exp.Alter, exp.Command, exp.Copy, exp.Create, exp.Delete, exp.Drop, exp.Insert, exp.Into,
    exp.Lock, exp.Merge, exp.Update,
)  # fmt: skip
OPTIONS = re.compile(
    r"\s*(?:(?:ANALYZE|VERBOSE|QUERY\s+PLAN)\b|\(\s*(?:ANALYZE|VERBOSE|COSTS|SETTINGS|BUFFERS|"
    r"SERIALIZE|WAL|TIMING|SUMMARY|MEMORY|FORMAT)\b[^()]*\))",
    re.IGNORECASE,
)  # of EXPLAIN
PRAGMAS = re.compile(r"(table_info|table_list|index_list|index_info|integrity_check)\b")
NAME = re.compile(r"[\w.]+( [\w.]+)*")


def require_read(statement: str, dialect: str) -> None:
    """Raise StoreError if a text is not one read-only statement.

    dialect: the name of the database, as SQLAlchemy has it: "sqlite" or "postgresql".
    """
    logging.getLogger("sqlglot").setLevel(logging.ERROR)  # else it warns of what is refused here
    grammar = "postgres" if dialect == "postgresql" else dialect
    try:
        _require_read(statement, grammar)
    except SqlglotError as error:
        raise StoreError(
            f"SQL: the statement cannot be parsed: {_reason(error)}",
            hint="correct it, or use simpler SQL",
        ) from error
    except RecursionError as error:
        raise StoreError(
            "SQL: the statement is nested too deeply", hint="use simpler SQL"
        ) from error


def _require_read(statement: str, grammar: str) -> None:
    tokens = sqlglot.tokenize(statement, read=grammar)
    if not tokens:
        raise StoreError("SQL: there is no statement", hint="write one, such as SELECT 1")
    word = tokens[0].text.upper()
    rest = statement[tokens[0].end + 1 :]
    if word == "EXPLAIN":
        while option := OPTIONS.match(rest):
            rest = rest[option.end() :]
        _require_read(rest, grammar)
        return
    if word == "PRAGMA" and PRAGMAS.match(rest.strip().lower()) and ";" not in rest.strip("; \n"):
        return
    if word == "SHOW" and NAME.fullmatch(rest.strip().rstrip(";").strip()):
        return
    parsed = sqlglot.parse(statement, read=grammar)
    trees = [each for each in parsed if each and not isinstance(each, exp.Semicolon)]
    if len(trees) > 1:
        raise StoreError(
            "SQL: there is more than one statement", hint="send one statement at a time"
        )
    if not trees or not isinstance(trees[0], exp.Query | exp.Values) or trees[0].find(*CHANGES):
        raise StoreError(
            f"SQL: {word} is refused, because the console is read-only",
            hint="use SELECT, WITH, VALUES, EXPLAIN or SHOW, and change nothing",
        )


def _reason(error: SqlglotError) -> str:
    """Return the error and its position, without sqlglot's terminal colours."""
    for found in getattr(error, "errors", []):
        return f"{found['description']} (line {found['line']}, column {found['col']})"
    return str(error).splitlines()[0]
