"""Building blocks of every page: figures, charts, tables, live parts, errors."""

import re
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from agentrl.core.errors import AgentRLError, with_hint
from agentrl.core.types import RunState
from agentrl.dashboard import markup
from agentrl.dashboard.csv_text import as_csv
from agentrl.dashboard.markup import Row
from agentrl.dashboard.viewmodels.run import NOT_STARTED, Head

ACROSS = 4  # large figures in a row: more are cut off
ROW_PX, MOST_ROWS = 35, 20  # of a table; with more it scrolls
EVERY_S = 3.0  # between two looks at a run that goes on

MARKDOWN = re.compile(f"([{re.escape(string.punctuation)}])")  # what may mean something there

STATE_COLOURS = {
    RunState.RUNNING: "green",
    RunState.PAUSED: "orange",
    RunState.FAILED: "red",
    RunState.STOPPED: "gray",
}


def plain_text(text: str) -> str:
    """Return Markdown that shows a text as it is: a link in an address is no link on a page."""
    return MARKDOWN.sub(r"\\\1", text)


def show_error(error: AgentRLError) -> None:
    """Show an error with its hint."""
    st.error(with_hint(str(error), error.hint))


def live_part(draw: Callable[[], None], *, over: bool, every_s: float = EVERY_S) -> None:
    """Draw now, and repeatedly while the run is active. An error is shown in its place."""

    @st.fragment(run_every=None if over else every_s)
    def again() -> None:
        try:
            draw()
        except AgentRLError as error:
            show_error(error)

    again()


def page_title(title: str, head: Head) -> None:
    """Show a title and the state of the run; if no process works for it, how to start one."""
    st.title(title)
    colour = STATE_COLOURS.get(head.state, "blue") if head.is_working else "orange"
    reason = f": {head.reason}" if head.reason else ""
    fork = f" · forked from `{head.forked_from}`" if head.forked_from else ""
    st.markdown(f":{colour}-background[**{head.shown_state}**]{reason}{fork}")
    if not head.is_working:
        show_start(head.shown_state == NOT_STARTED, "agentrl up CONFIG")


def show_start(first: bool, command: str) -> None:
    """Show the command that starts a run, or that continues it."""
    what = "This run has not started yet." if first else "No process works for this run now."
    st.info(f"{what} {'Start' if first else 'Continue'} it with:")
    st.code(command, language="sh")


def figures(values: Mapping[str, str], helps: Mapping[str, str] | None = None) -> None:
    """Show large figures, four in a row. `helps`: explanation of a label, shown on hovering."""
    left = list(values.items())
    across = min(len(left), ACROSS)
    while left:
        for column, (label, value) in zip(st.columns(across), left[:across], strict=False):
            column.metric(label, value, help=(helps or {}).get(label))
        left = left[across:]


def chart(spec: Mapping[str, Any], caption: str) -> None:
    """Show a Vega-Lite chart, its caption, and its values as a keyboard-accessible table."""
    st.vega_lite_chart(dict(spec))
    st.caption(caption)
    st.html(markup.folded_table("Values", spec["data"]["values"]))


def bars(counts: Mapping[str, float], caption: str) -> None:
    """Show a bar and a number for each name, and a caption."""
    st.html(markup.bars(counts))
    st.caption(caption)


def table(rows: Sequence[Row], nothing: str, percent: Sequence[str] = ()) -> None:
    """Show rows, or the text `nothing` if there are none. `percent`: columns of shares from 0 to 1.

    A click on a head sorts; the buttons above the table search it and download it as CSV.
    """
    if rows:
        shares = {name: st.column_config.NumberColumn(format="percent") for name in percent}
        height = ROW_PX * (min(len(rows), MOST_ROWS) + 1) + 3
        st.dataframe(list(rows), hide_index=True, column_config=shares, height=height)
    else:
        st.info(nothing)


def linked_table(rows: Sequence[Row], file: str) -> None:
    """Show rows with links, which the browser follows in the same tab, and a button for CSV.

    `file`: its name.
    """
    st.html(markup.table(rows))
    st.download_button("Download CSV", as_csv(rows), file, "text/csv", on_click="ignore")
