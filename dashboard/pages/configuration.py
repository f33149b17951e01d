"""The page *Configuration*: every key of the run with its default."""

import streamlit as st

from agentrl.dashboard.viewmodels.configuration import config_rows, read_values
from agentrl.dashboard.viewmodels.run import read_head
from agentrl.dashboard.widgets import page_title, table
from agentrl.db.store import Store


def page(store: Store, run_id: str) -> None:
    """Show the keys that differ from their defaults, or all."""
    head = read_head(store, run_id)
    page_title(f"Configuration of {head.name}", head)
    values = read_values(store, run_id)
    changed = not st.toggle("Show every key", help="Else only keys that are not at their default.")
    table(config_rows(values, changed=changed), "Every key has its default.")
    st.caption(
        "The configuration with which the run began. A dash means no value: the key is off, or "
        "another key decides it. docs/configuration.md and `agentrl config "
        "keys` explain each key; the page Compare shows the differences between runs."
    )
