"""The page *Compare*: several runs by update, by tokens, by wall clock and by item."""

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from agentrl.dashboard import charts
from agentrl.dashboard.estimates import duration, success
from agentrl.dashboard.theme import colours
from agentrl.dashboard.viewmodels.compare import (
    PairedScores,
    Side,
    pair_scores,
    pool_points,
    read_side,
)
from agentrl.dashboard.viewmodels.configuration import difference_rows
from agentrl.dashboard.viewmodels.run import EACH_POINT, RECENT, read_head
from agentrl.dashboard.widgets import chart, page_title, table
from agentrl.db.store import Store
from agentrl.db.transitions.runs import run_names

MOST = 6  # runs at once
ALL = "all tasks together"
ALONE = (
    "This database has only one run, so there is nothing to compare. Runs with another `run.home` "
    "have their own database; so does each `agentrl quickstart`."
)
AXES = {
    "By update": ("version", "version"),
    "By tokens": ("tokens", "trained tokens"),
    "By wall clock": ("hours", "hours since the start of the run"),
}


def page(store: Store, run_id: str) -> None:
    """Compare the sidebar's run with chosen runs, which the address keeps as `with`."""
    shown = read_head(store, run_id)
    page_title(f"{shown.name} and other runs", shown)
    with store.read() as session:
        known = run_names(session)
    others = _choice([name for name in known if name != shown.name]) if len(known) > 1 else []
    sides = {name: read_side(store, known[name]) for name in [shown.name, *others]}
    table([side_row(name, side) for name, side in sides.items()], "")
    st.caption(f"Columns of tasks: recent success with its 95 % interval. {RECENT}")
    _curves(sides)
    if len(known) == 1:
        st.info(ALONE)
        return
    st.subheader("Configuration")
    table(
        difference_rows({name: side.config for name, side in sides.items()}),
        "These runs have the same configuration.",
    )
    st.caption("The keys in which the runs differ, without run.name and run.home.")
    st.subheader("Evaluations, compared by item")
    rows = [
        paired_row(shown.name, name, each)
        for name in others
        for each in pair_scores(sides[shown.name], sides[name])
    ]
    table(rows, "The runs have no evaluation in common. Evaluate them with `agentrl eval`.")
    st.caption(
        "Mean difference over the common items, with its 95 % interval. Each run is represented by "
        "its newest version evaluated with the same task, split, temperature and settings."
    )


def side_row(name: str, side: Side) -> dict[str, Any]:
    """Return the overview row of a run."""
    row: dict[str, Any] = {
        "run": name,
        "state": side.head.shown_state,
        "version": side.version,
        "trained episodes": side.learned.episodes,
        "trained tokens": side.learned.trained_tokens,
        "duration": duration(side.seconds),
    }
    for point in side.recent:
        rate = success(point)
        row[point.task] = f"{rate.mean:.1%} ({rate.interval_text('.1%')})"
    return row


def curve_rows(sides: Mapping[str, Side], task: str | None) -> list[dict[str, Any]]:
    """Return a row per run and point with every x value."""
    return [
        {
            "run": name,
            "version": point.span.version,
            "tokens": point.span.tokens,
            "hours": point.span.at_s / 3600,
            "success": rate.mean,
            "low": rate.low,
            "high": rate.high,
            "episodes": point.episodes,
        }
        for name, side in sides.items()
        for point in pool_points(side.curve, task)
        for rate in [success(point)]
    ]


def paired_row(first: str, second: str, each: PairedScores) -> dict[str, Any]:
    """Return a row of the table of differences."""
    task, split, temperature, _ = each.kind
    one = each.difference
    return {
        "task": task,
        "split": split,
        "temperature": temperature,
        "runs": f"{first} v{each.versions[0]} → {second} v{each.versions[1]}",
        "first": f"{each.first:.1%}",
        "second": f"{each.second:.1%}",
        "difference": f"{one.mean:+.1%}",
        "95 %": one.interval_text("+.1%"),
        "items": one.n,
    }


def _curves(sides: Mapping[str, Side]) -> None:
    st.subheader("Success")
    tasks = sorted({point.task for side in sides.values() for point in side.curve})
    if not tasks:
        st.info("None of these runs has an update yet.")
        return
    chosen = st.selectbox("Task", [ALL, *tasks])
    rows = curve_rows(sides, None if chosen == ALL else chosen)
    known = ("run", colours(sides))
    for tab, (x, heading) in zip(st.tabs(list(AXES)), AXES.values(), strict=True):
        with tab:
            chart(
                charts.bands(rows, (x, heading), "success", known, share=True),
                f"{EACH_POINT} The band is the 95 % interval.",
            )


def _choice(others: Sequence[str]) -> list[str]:
    """Return the chosen runs; at first those of the address, else the newest other run."""
    asked = [name for name in st.query_params.get("with", "").split(",") if name in others]
    before = st.session_state.get("with", asked or list(others[:1]))
    st.session_state["with"] = [name for name in before if name in others]
    chosen = st.multiselect("Compare with", others, key="with", max_selections=MOST - 1)
    st.query_params["with"] = ",".join(chosen)
    return list(chosen)
