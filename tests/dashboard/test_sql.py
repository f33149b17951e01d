"""What the page *SQL* asks: it counts, cuts, refuses, and names what is wrong."""

import csv
import io

import pytest
from backends import plain_login

from agentrl.core.errors import StoreError
from agentrl.dashboard.pages.sql import as_csv, records
from agentrl.db.admin import migrate
from agentrl.db.admin.readonly import QueryBounds, QueryResult, ask, open_readonly
from agentrl.db.store import Store

COUNT = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {}) SELECT i FROM n"
)
SLOW = COUNT.format(50_000_000).replace(") SELECT i", ") SELECT MAX(i)")


def readonly(store: Store) -> Store:
    """The same database, as a login that is no superuser."""
    url = store.engine.url.render_as_string(hide_password=False)
    return open_readonly(plain_login(url) if url.startswith("postgresql") else url)


def test_no_more_rows_are_held_than_asked(store: Store) -> None:
    migrate.upgrade(store)
    looking = readonly(store)
    answer = ask(looking, COUNT.format(1000), QueryBounds(rows=10))
    assert (answer.columns, [row[0] for row in answer.rows]) == (("i",), list(range(1, 11)))
    assert answer.more
    assert not ask(looking, COUNT.format(10), QueryBounds(rows=10)).more
    assert ask(looking, "SELECT 1 AS a WHERE 1 = 2", QueryBounds(rows=10)).rows == []
    assert len(ask(looking, COUNT.format(1000)).rows) == 1000
    assert not ask(looking, COUNT.format(1000)).more
    looking.close()


def test_a_statement_that_takes_too_long_is_ended_and_says_so(store: Store) -> None:
    looking = readonly(store)
    for bounds in (QueryBounds(0.3, 10), QueryBounds(0.3)):
        with pytest.raises(StoreError, match=r"longer than 0\.3 s"):
            ask(looking, SLOW, bounds)
    assert ask(looking, "SELECT 1").rows == [(1,)]
    looking.close()


def test_a_second_statement_cannot_hide_behind_the_first(store: Store) -> None:
    looking = readonly(store)
    with pytest.raises(StoreError):
        ask(looking, "SELECT 1; DELETE FROM runs", QueryBounds(rows=10))
    with pytest.raises(StoreError, match="console is read-only"):
        ask(looking, "DELETE FROM runs")
    looking.close()


def test_csv_is_what_was_shown() -> None:
    answer = QueryResult(("a", "b", "a"), [(1, 'x, "y"\nz', None), (2.5, b"abc", True)])
    rows = list(csv.reader(io.StringIO(as_csv(answer))))
    assert rows == [["a", "b", "a"], ["1", 'x, "y"\nz', ""], ["2.5", "3 bytes", "True"]]
    assert list(records(answer)) == ["a", "b", "a (3)"]
