"""What every page is made of: figures in a row, charts with their table, live parts, errors."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from agentrl.core.errors import AgentRLError
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


def tell(error: AgentRLError) -> None:
    """One line, with its hint."""
    st.error(f"{error}{f' — {error.hint}' if error.hint else ''}")


def live(draw: Callable[[], None], *, over: bool, every_s: float = EVERY_S) -> None:
    """Draw now, and again and again while the run goes on; an error is one line in its place."""

    @st.fragment(run_every=None if over else every_s)
    def again() -> None:
        try:
            draw()
        except AgentRLError as error:
            tell(error)

    again()


def title(name: str, state: RunState, told: str) -> None:
    """The name, the state and what there is to say of it."""
    st.title(name)
    st.markdown(f":{STATE_COLOURS.get(state, 'blue')}-background[**{state}**]{told}")


def figures(values: Mapping[str, str], helps: Mapping[str, str] | None = None) -> None:
    """Large figures, four side by side. `helps`: what a label means, on hovering."""
    left = list(values.items())
    across = min(len(left), ACROSS)
    while left:
        for column, (label, value) in zip(st.columns(across), left[:across], strict=False):
            column.metric(label, value, help=(helps or {}).get(label))
        left = left[across:]


def chart(spec: Mapping[str, Any], caption: str) -> None:
    """A Vega-Lite chart, what it shows, and its values as a table that a keyboard reaches."""
    st.vega_lite_chart(dict(spec))
    st.caption(caption)
    st.html(markup.folded("The values", spec["data"]["values"]))


def bars(counts: Mapping[str, float], caption: str) -> None:
    """A bar and a number for each name, and what they show."""
    st.html(markup.bars(counts))
    st.caption(caption)


def table(rows: Sequence[Row], nothing: str) -> None:
    """Rows, or what it means that there are none."""
    if rows:
        st.html(markup.table(rows, low=True))
    else:
        st.info(nothing)
