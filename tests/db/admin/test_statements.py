"""What a console takes and refuses, by the grammar of each database."""

from contextlib import suppress

import pytest

from agentrl.core.errors import StoreError
from agentrl.db.admin.statements import require_read
from agentrl.db.questions import questions

BOTH = ("sqlite", "postgresql")
READS = [
    "SELECT 1; -- a comment",
    "SELECT 1 /* one */; /* another */ ;",
    "SELECT 1",
    "select 1;",
    "-- why\n/* not */ SELECT '/* x' AS a, \"a;b\" FROM t",
    "(SELECT 1) UNION SELECT 2 ORDER BY 1",
    "VALUES (1), (2)",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3) SELECT i FROM n",
    "EXPLAIN SELECT 1",
    *(each.sql for each in questions()),
]
OF_SQLITE = ["PRAGMA table_info(runs)", "pragma integrity_check;", "EXPLAIN QUERY PLAN SELECT 1"]
OF_POSTGRES = [
    "TABLE runs",
    "SHOW server_version",
    "SHOW transaction isolation level;",
    "EXPLAIN (ANALYZE, BUFFERS) SELECT 1",
    "EXPLAIN ANALYZE VERBOSE SELECT 1",
    "/* /* nested */ */ SELECT a::int[] FROM t WHERE x @> '{1}' AND y ~ 'a'",
]
WRITES = [
    "DELETE FROM runs",
    "EXPLAIN ANALYZE DELETE FROM runs",
    "EXPLAIN (ANALYZE) DELETE FROM runs",
    "EXPLAIN",
    "WITH x AS (DELETE FROM runs RETURNING *) SELECT * FROM x",
    "SELECT * INTO copied FROM runs",
    "SELECT * FROM runs FOR UPDATE",
    "SELECT 1; SELECT 2",
    "SELECT 1; -- a comment\n; SELECT 2",
    "; -- only a comment",
    "EXPLAIN SELECT 1; DELETE FROM runs",
    "SHOW a; DELETE FROM runs",
    "COPY (SELECT 1) TO PROGRAM 'id'",
    "CALL anything()",
    "SET role = 'postgres'",
    "BEGIN",
    "VACUUM",
    "PRAGMA query_only = OFF",
    "PRAGMA integrity_check; DELETE FROM runs",
    "SELEC 1",
    "SELECT 'open",
    "  ",
    "-- nothing",
    "(" * 5_000,
]


@pytest.mark.parametrize("database", BOTH)
def test_what_only_reads_is_taken(database: str) -> None:
    for statement in [*READS, *(OF_SQLITE if database == "sqlite" else OF_POSTGRES)]:
        require_read(statement, database)


@pytest.mark.parametrize("database", BOTH)
def test_what_changes_anything_or_is_no_statement_is_refused(database: str) -> None:
    taken = []
    for statement in WRITES:
        with suppress(StoreError):
            require_read(statement, database)
            taken.append(statement)
    assert taken == []


def test_a_comment_within_a_comment_hides_nothing() -> None:
    hidden = "/* /* */ SELECT */ DO $$ BEGIN EXECUTE 'COPY (SELECT 1) TO PROGRAM ''id'''; END $$"
    with pytest.raises(StoreError, match="DO is refused, because the console is read-only"):
        require_read(hidden, "postgresql")
    with pytest.raises(StoreError, match="DELETE is refused"):
        require_read("/* /* */ SELECT */ DELETE FROM runs", "postgresql")


def test_a_mistake_is_told_with_its_place() -> None:
    with pytest.raises(StoreError, match=r"cannot be parsed: .* \(line 1, column \d+\)"):
        require_read("SELECT a FROM", "sqlite")
