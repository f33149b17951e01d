"""Building blocks of every page: figures, charts with their table, live parts, errors."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from agentrl.core.errors import AgentRLError, with_hint
from agentrl.core.types import RunState
from agentrl.dashboard import markup
from agentrl.dashboard.markup import Row

ACROSS = 4  # large figures in a row: more are cut off
EVERY_S = 3.0  # between two looks at a run that goes on

STATE_COLOURS = {
    RunState.RUNNING: "green",
    RunState.PAUSED: "orange",
    RunState.FAILED: "red",
    RunState.STOPPED: "gray",
}


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


def page_title(name: str, state: RunState, told: str) -> None:
    """Show the name and the state of a run, and a remark about the state."""
    st.title(name)
    st.markdown(f":{STATE_COLOURS.get(state, 'blue')}-background[**{state}**]{told}")


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


def table(rows: Sequence[Row], nothing: str) -> None:
    """Show rows, or the text `nothing` if there are none."""
    if rows:
        st.html(markup.table(rows, low=True))
    else:
        st.info(nothing)
