"""Streamlit's script, started by `agentrl dashboard`; its one argument is the TOML file.

In a folder of its own: Streamlit takes a folder `pages` beside its script for scripts to run.
"""

import sys
from pathlib import Path

import streamlit as st

from core import loading
from core.errors import AgentRLError
from dashboard.navigation import show
from dashboard.parts import tell
from db.readonly import open_history
from db.store import Store


@st.cache_resource
def history(url: str) -> Store:
    """One read-only store for every session."""
    return open_history(url)


def main(arguments: list[str]) -> None:
    """The pages of a TOML file's store; an error is one line on the page."""
    st.set_page_config(page_title="AgentRL", layout="wide")
    try:
        config = loading.load(Path(arguments[0]))
        show(history(config.store_url()), config.run.name)
    except AgentRLError as error:
        tell(error)


if __name__ == "__main__":
    main(sys.argv[1:])
