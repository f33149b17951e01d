"""Streamlit's script, started by `agentrl dashboard`: the TOML file, and the token's variable.

In a folder of its own: Streamlit takes a folder `pages` beside its script for scripts to run.
"""

import sys
from functools import partial
from pathlib import Path

import streamlit as st

from agentrl.core import config_loading
from agentrl.core.config.secrets import secret
from agentrl.core.errors import AgentRLError
from agentrl.core.processes.process import forbid_inspection
from agentrl.dashboard.auth import ask, is_admitted
from agentrl.dashboard.navigation import not_started, show, show_instead
from agentrl.dashboard.streamlit_server import history
from agentrl.dashboard.widgets import show_error
from agentrl.db.admin.readonly import DatabaseAbsent

ICON = (
    Path(__file__).parents[1] / "icon.svg"
)  # a page's own would be fetched from fonts.gstatic.com


def main(arguments: list[str]) -> None:
    """Show the pages for a TOML file's store; an error becomes one line on the page.

    `arguments`: the file, and the environment variable of the token, if login is required.
    """
    forbid_inspection()  # Streamlit started this process, not `agentrl`
    st.set_page_config(page_title="AgentRL", page_icon=ICON, layout="wide")
    path, *named = arguments
    try:
        token = secret(named[0]) if named else ""
        if token and not is_admitted(token):
            show_instead(partial(ask, token))
            return
        config = config_loading.load(Path(path))
        start = config_loading.command("up", Path(path))
        try:
            show(history(config.store_url()), config.run.name, start)
        except DatabaseAbsent:
            show_instead(partial(not_started, config.run.name, start))
    except AgentRLError as error:
        show_error(error)


if __name__ == "__main__":
    main(sys.argv[1:])
