"""The page *Training*: curves of every figure of an update, alarms, and all figures as a table."""

import streamlit as st

from agentrl.dashboard import charts
from agentrl.dashboard.theme import BLUE, colours
from agentrl.dashboard.viewmodels.run import read_head, task_names
from agentrl.dashboard.viewmodels.training import (
    UPDATES,
    WHOLE,
    Training,
    alarm_rows,
    curve,
    figure_rows,
    markers,
    read_training,
    sections,
)
from agentrl.dashboard.widgets import live_part, page_title, table
from agentrl.db.store import Store

EVERY_S = 15.0
ACROSS = 2  # charts in a row
SMOOTHING = 0.6


def page(store: Store, run_id: str) -> None:
    """Show the curves; refresh them while the run is active."""
    head = read_head(store, run_id)
    page_title(f"Training of {head.name}", head)
    live_part(lambda: draw(store, run_id), over=head.over, every_s=EVERY_S)


def draw(store: Store, run_id: str) -> None:
    """Show the curves of the chosen section, the history of alarms, and all figures."""
    training = read_training(store, run_id)
    if not training.versions:
        st.info("No update yet. The first one needs dispatch.groups_per_update groups.")
        return
    found = sections(training)
    left, right = st.columns([3, 2])
    chosen = left.segmented_control("Figures", list(found), default=next(iter(found))) or ""
    smoothing = right.slider(
        "Smoothing",
        0.0,
        0.99,
        SMOOTHING,
        help="Weight of the past in the thick line, an exponential moving average. The thin line "
        "shows the values themselves.",
    )
    known = {**colours(task_names(store)), WHOLE: BLUE}
    columns = st.columns(ACROSS)
    for number, figure in enumerate(found.get(chosen, [])):
        rows = curve(training, figure.name, smoothing)
        with columns[number % ACROSS]:
            st.markdown(f"**{figure.title}**", help=figure.meaning or None)
            st.vega_lite_chart(
                charts.curve(rows, markers(training.alarms, figure.name), known, figure)
            )
    st.caption(
        f"One point per update; of more than {UPDATES}, as many evenly apart. A dashed line marks "
        "the update at which an alarm about the figure was raised."
    )
    _tables(training)


def _tables(training: Training) -> None:
    st.subheader("Alarms")
    table(alarm_rows(training.alarms), "No alarm was raised.")
    st.caption("Every alarm of the run, newest first. docs/alarms.md says what to do.")
    st.subheader("All figures by update")
    table(figure_rows(training), "")
