"""The page *SQL*: one read-only statement, its rows, and the rows as CSV."""

import csv
import io
from typing import Any

import streamlit as st

from agentrl.core.errors import StoreError
from agentrl.dashboard import markup
from agentrl.dashboard.widgets import show_error
from agentrl.db.admin.readonly import QueryBounds, QueryResult, ask, tables
from agentrl.db.questions import questions
from agentrl.db.store import Store

ROWS = 5_000  # of one answer
MAX_BYTES = 2**25  # of one answer
TIMEOUT_S = 15.0  # of one statement
OWN = "your own statement"
FIRST = "SELECT task, status, COUNT(*) AS episodes\nFROM episodes\nGROUP BY task, status"


def page(store: Store, run_id: str) -> None:
    """Choose or write a statement, run it, and download its rows."""
    st.title("SQL")
    st.caption(
        f"Read-only; at most {ROWS:,} rows, {MAX_BYTES >> 20} MiB and {TIMEOUT_S:.0f} seconds. "
        f"The id of this run is `{run_id}`. Prepared questions cover every run of the database."
    )
    known = {each.title: each for each in questions()}
    chosen = known.get(st.selectbox("Question", [OWN, *known]) or OWN)
    if chosen is not None and chosen.meaning:
        st.caption(chosen.meaning)
    with st.form("statement", border=False):
        written = st.text_area("Statement", chosen.sql if chosen else FIRST, height=220)
        sent = st.form_submit_button("Run", type="primary")
    if sent:
        _run(store, written)
    st.html(markup.folded_table("Tables and views", _table_rows(store)))


def _run(store: Store, statement: str) -> None:
    """Show the rows, or the error of the statement."""
    try:
        answer = ask(store, statement.strip().rstrip(";"), QueryBounds(TIMEOUT_S, ROWS, MAX_BYTES))
    except StoreError as error:
        show_error(error)
        return
    if not answer.rows:
        st.info("The statement returned no rows.")
        return
    st.dataframe(records(answer), hide_index=True)
    more = f"The first {len(answer.rows):,} rows. There are more."
    st.caption(more if answer.more else _row_count_text(answer))
    st.download_button("Download CSV", as_csv(answer), "answer.csv", "text/csv", on_click="ignore")


def _row_count_text(answer: QueryResult) -> str:
    return "1 row" if len(answer.rows) == 1 else f"{len(answer.rows):,} rows"


def records(answer: QueryResult) -> dict[str, list[object]]:
    """Return the columns; bytes are shown as their length."""
    return {
        name: [_plain(row[place]) for row in answer.rows]
        for place, name in enumerate(answer.unique_columns)
    }


def as_csv(answer: QueryResult) -> str:
    """Return the rows as CSV with a header (RFC 4180)."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(answer.columns)
    writer.writerows([_plain(value) for value in row] for row in answer.rows)
    return out.getvalue()


def _plain(value: object) -> object:
    if isinstance(value, bytes | memoryview):
        return f"{len(value)} bytes"
    return value if isinstance(value, str | int | float | None) else str(value)


def _table_rows(store: Store) -> list[dict[str, Any]]:
    answer = tables(store)
    return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
