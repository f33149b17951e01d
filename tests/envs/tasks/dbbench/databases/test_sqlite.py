"""SQLite as the agent meets it: text results, bounded work, nothing outside its tables."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.core.errors import ItemError
from agentrl.envs.tasks.dbbench.databases.sqlite import (
    MAX_SPILL,
    MAX_TEXT,
    TIMED_OUT,
    SqliteDatabase,
    bytes_written,
)
from agentrl.envs.tasks.dbbench.problem import Table

TABLE = Table("t", ["a", "b c"], [["1", "x"], ["2", "y"]])
ENDLESS = "with recursive c(x) as (select 1 union all select x+1 from c) select {} from c"
SPILL = (
    "with recursive c(x) as (select 1 union all select x+1 from c limit {}) "
    "select length(y) from (select x, zeroblob(900000) as y from c) {} by y, x"
)


@pytest.fixture
def database() -> Iterator[SqliteDatabase]:
    opened = SqliteDatabase([TABLE], timeout_s=0.2)
    yield opened
    opened.close()


def test_a_result_is_the_text_of_its_row_tuples(database: SqliteDatabase) -> None:
    assert database.execute("select * from t") == "[('1', 'x'), ('2', 'y')]"
    assert database.execute("select count(*) from t") == "[(2,)]"
    assert database.execute("select `b c` from t where a='3'") == "[]"
    assert database.execute("delete from t") == "[]"


def test_every_column_is_text(database: SqliteDatabase) -> None:
    database.execute("update t set a = a + 40")
    assert database.execute("select a from t") == "[('41',), ('42',)]"


def test_a_long_result_is_cut_and_says_so(database: SqliteDatabase) -> None:
    result = database.execute(ENDLESS.format("x"))
    assert len(result) == MAX_TEXT + len("[TRUNCATED]")
    assert result.endswith("[TRUNCATED]")


def test_a_statement_that_takes_too_long_is_told_so(database: SqliteDatabase) -> None:
    assert database.execute(ENDLESS.format("count(*)")) == TIMED_OUT
    assert database.execute("select 1") == "[(1,)]"


def test_work_is_bounded_whatever_the_clock_says() -> None:
    patient = SqliteDatabase([TABLE], timeout_s=60.0, max_work=100_000, clock=lambda: 0.0)
    assert patient.execute(ENDLESS.format("count(*)")) == TIMED_OUT
    assert patient.execute("select 1") == "[(1,)]"
    patient.close()


@pytest.mark.skipif(not bytes_written(), reason="the kernel does not count a thread's writes")
@pytest.mark.parametrize("clause", ["order", "group"])
def test_temporary_files_are_bounded_whatever_the_clock_says(clause: str) -> None:
    patient = SqliteDatabase([TABLE], timeout_s=60.0, clock=lambda: 0.0)
    before = bytes_written()
    assert patient.execute(SPILL.format(400, clause)) == TIMED_OUT
    assert MAX_SPILL < bytes_written() - before < 4 * MAX_SPILL
    assert patient.execute(SPILL.format(10, clause)).startswith("[(900000,)")
    patient.close()


@pytest.mark.parametrize(
    "sql",
    [
        "attach 'made.db' as made",
        "vacuum into 'made.db'",
        "pragma journal_mode=wal",
        "pragma writable_schema=1",
        "select load_extension('made.db')",
        "create virtual table v using fts5(a)",
        "create temp table t as select 1",
        "create trigger g after insert on t begin delete from t; end",
        "select 1; delete from t",
        "select zeroblob(1000000000)",
        "select '\x00'",
        "select '\ud800'",
        "no sql at all",
    ],
)
def test_what_is_refused_comes_back_as_text_and_changes_nothing(
    database: SqliteDatabase, sql: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = database.table_hash()
    assert database.execute(sql).startswith("Error")
    assert database.table_hash() == before
    assert not list(tmp_path.iterdir())


def test_a_database_cannot_grow_without_bound() -> None:
    grown = SqliteDatabase([TABLE], timeout_s=10.0)
    endless = ENDLESS.format("hex(randomblob(400)) as h")
    assert "full" in grown.execute(f"create table big as {endless}")
    grown.close()


def test_the_schema_can_be_read(database: SqliteDatabase) -> None:
    assert "'b c'" in database.execute("pragma table_info(t)")


def test_a_dropped_table_has_no_hash(database: SqliteDatabase) -> None:
    database.execute("drop table t")
    assert database.table_hash() == ""


def test_the_hash_follows_the_rows_and_not_their_order(database: SqliteDatabase) -> None:
    before = database.table_hash()
    database.execute("delete from t where a='1'")
    assert database.table_hash() != before
    database.execute("insert into t values('1','x')")
    assert database.table_hash() == before


@pytest.mark.parametrize(
    "table",
    [
        Table("t", ["a"], [["1", "2"]]),
        Table("t", ["a", "a"], []),
        Table("t", [], []),
        Table("sqlite_x", ["a"], []),
    ],
)
def test_a_broken_table_is_an_item_error_that_names_it(table: Table) -> None:
    with pytest.raises(ItemError, match=table.name):
        SqliteDatabase([table], timeout_s=1.0)


def test_awkward_names_are_quoted() -> None:
    table = Table('a "b"; drop', ["select", "é `x`"], [["1", "2"]])
    database = SqliteDatabase([table], timeout_s=1.0)
    assert database.execute('select "select" from "a ""b""; drop"') == "[('1',)]"
    assert database.table_hash()
    database.close()


@settings(max_examples=200, deadline=None)
@given(st.text() | st.text(alphabet="select *from t'\";()-,0=", max_size=40))
def test_any_text_is_answered_with_text(sql: str) -> None:
    database = SqliteDatabase([TABLE], timeout_s=1.0)
    try:
        assert isinstance(database.execute(sql), str)
    finally:
        database.close()
