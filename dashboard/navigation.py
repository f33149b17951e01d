"""The pages, and the choice of the run that they show.

    ?run=NAME, or the configured run ─▶ the sidebar's choice ─▶ ?run=NAME ─▶ page(store, run_id)

A page is one file of `pages/` with a function `page(store, run_id)`; `links.py` makes links to it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import streamlit as st

from agentrl.dashboard.links import FIRST
from agentrl.dashboard.markup import STYLE
from agentrl.dashboard.pages import (
    accounting,
    checkpoints,
    compare,
    configuration,
    episodes,
    processes,
    run,
    sql,
    tasks,
    training,
)
from agentrl.dashboard.widgets import show_start
from agentrl.db.store import Store
from agentrl.db.transitions.runs import run_names

SEARCHED_RUN = "looked for the run"  # of the session's state
IN_URL = "run in the URL"  # of the session's state: the name that was written there last


@dataclass(frozen=True, slots=True)
class Page:
    """A page. Its `name` is in the menu and, in lower case, in the address."""

    name: str
    icon: str
    draw: Callable[[Store, str], None]


PAGES = (
    Page("Run", ":material/monitoring:", run.page),
    Page("Training", ":material/show_chart:", training.page),
    Page("Tasks", ":material/checklist:", tasks.page),
    Page("Episodes", ":material/forum:", episodes.page),
    Page("Checkpoints", ":material/account_tree:", checkpoints.page),
    Page("Compare", ":material/compare_arrows:", compare.page),
    Page("Configuration", ":material/tune:", configuration.page),
    Page("Processes", ":material/memory:", processes.page),
    Page("Accounting", ":material/balance:", accounting.page),
    Page("SQL", ":material/database:", sql.page),
)


START_EVERY_S = 3.0  # between two looks for a run that has not started


def show(store: Store, configured: str, start: str) -> None:
    """Show the menu, the choice of a run, and the chosen page.

    `start`: the command that starts the configured run.
    """
    with store.read() as session:
        known = run_names(session)
    if not known:
        show_instead(partial(not_started, configured, start))
        return
    if configured not in known:
        st.sidebar.info(f"Run {configured} has not started yet. Start it with: `{start}`")
    st.html(STYLE)
    name = _choice(list(known), configured)
    if name is None:
        show_instead(_unknown)
        return
    run_id = known[name]
    pages = [
        st.Page(
            partial(each.draw, store, run_id),
            title=each.name,
            icon=each.icon,
            url_path=each.name.lower(),
            default=each.name == FIRST,
        )
        for each in PAGES
    ]
    chosen = st.navigation(pages)
    st.set_page_config(page_title=f"{chosen.title} · {name} · AgentRL")
    chosen.run()


def not_started(name: str, start: str) -> None:
    """Show how to start the configured run, and look for it every few seconds."""
    st.title(name)
    show_start(first=True, command=start)
    st.caption("This page shows the run as soon as it has started.")

    @st.fragment(run_every=START_EVERY_S)
    def look_again() -> None:
        if st.session_state.get(SEARCHED_RUN):
            st.session_state[SEARCHED_RUN] = False
            st.rerun(scope="app")
        st.session_state[SEARCHED_RUN] = True

    look_again()


def show_instead(draw: Callable[[], None]) -> None:
    """Show one thing instead of every page, without a menu."""
    pages = [
        st.Page(draw, title=each.name, url_path=each.name.lower(), default=each.name == FIRST)
        for each in PAGES
    ]
    st.navigation(pages, position="hidden").run()


def _choice(names: list[str], configured: str) -> str | None:
    """Return the name of the run: from the URL if it has changed, else from the sidebar.

    None: the URL names an unknown run, and none has been chosen yet.
    """
    asked, state = st.query_params.get("run", ""), st.session_state
    if asked and asked != state.get(IN_URL):
        state["run"], state[IN_URL] = asked, asked
    elif not asked and state.get("run") not in names:
        state["run"] = configured if configured in names else names[0]
    if state.get("run") not in names:
        state["run"] = None
    first = None if state["run"] is None else 0  # with None the choice could be cleared
    name = st.sidebar.selectbox("Run", names, first, key="run", placeholder="Choose a run")
    if name is not None:
        st.query_params["run"] = state[IN_URL] = name
    return name


def _unknown() -> None:
    st.error("The database has no run with the name in the address. Choose one in the sidebar.")
