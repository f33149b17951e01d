"""The page *Run*: state, alarms, success by task, updates, policies, accounting. It only reads."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import streamlit as st

from core.types import RUN_OVER, RunState
from dashboard.looks.run import LATE_GROUPS, Point, RunView, look
from dashboard.parts import live
from db.alarms import Raised
from db.lifecycle import UpdateSummary
from db.runs import run_state
from db.store import Store

METRICS = ("loss", "entropy", "grad_norm", "clip_fraction", "mismatch_k3", "effective_sample_size")
COLOURS = {
    RunState.RUNNING: "green",
    RunState.PAUSED: "orange",
    RunState.FAILED: "red",
    RunState.STOPPED: "gray",
}


def page(store: Store, run_id: str) -> None:
    """Look again while the run goes on."""
    with store.read() as session:
        over = run_state(session, run_id) in RUN_OVER
    live(lambda: draw(look(store, run_id)), over=over)


def draw(view: RunView) -> None:
    """All of the page for one moment."""
    _head(view)
    _alarms(view.alarms)
    st.subheader("Success by task")
    if view.curve:
        st.vega_lite_chart(success_chart(view.curve))
        st.caption("Share of finished episodes that succeeded; the band is the 95 % interval.")
    else:
        st.info("No episode has finished yet.")
    left, right = st.columns(2)
    with left:
        _shares(
            f"Policy mix, by steps of the last {LATE_GROUPS} groups",
            view.mix,
            "No step is recorded yet.",
        )
    with right:
        _shares("Groups, by state", view.groups, "No group is admitted yet.")
    _policies(view)
    _updates(view.updates)
    _accounting(view.disagreements)


def success_chart(curve: Sequence[Point]) -> dict[str, Any]:
    """Vega-Lite: a line and its band for each task."""
    percent = {"format": ".0%"}
    x = {"field": "percent", "type": "quantitative", "title": "% of the run so far"}
    colour = {
        "field": "task",
        "type": "nominal",
        "title": None,
        "legend": {"orient": "top"},
        "scale": {"scheme": "tableau10"},
    }
    band = {
        "y": {"field": "low", "type": "quantitative", "title": "success", "axis": percent},
        "y2": {"field": "high"},
    }
    line = {
        "y": {"field": "success", "type": "quantitative", "scale": {"domain": [0, 1]}},
        "tooltip": [
            {"field": "task"},
            {"field": "success", "format": ".1%"},
            {"field": "low", "format": ".1%"},
            {"field": "high", "format": ".1%"},
            {"field": "episodes"},
        ],
    }
    return {
        "data": {"values": [asdict(each) for each in curve]},
        "height": 340,
        "encoding": {"x": x, "color": colour},
        "layer": [
            {"mark": {"type": "area", "opacity": 0.15}, "encoding": band},
            {"mark": {"type": "line", "point": True}, "encoding": line},
        ],
    }


def share_chart(counts: Mapping[str, int]) -> dict[str, Any]:
    """Vega-Lite: a bar a name, the greatest first."""
    return {
        "data": {"values": [{"name": name, "count": n} for name, n in counts.items()]},
        "height": {"step": 26},
        "mark": {"type": "bar", "cornerRadius": 3},
        "encoding": {
            "y": {"field": "name", "type": "nominal", "title": None, "sort": "-x"},
            "x": {"field": "count", "type": "quantitative", "title": None},
            "tooltip": [{"field": "name"}, {"field": "count"}],
        },
    }


def update_rows(updates: Sequence[UpdateSummary]) -> list[dict[str, Any]]:
    """Rows of the updates' table, with the metrics that any of them has."""
    shown = [name for name in METRICS if any(name in row.metrics for row in updates)]
    return [
        {
            "version": row.version,
            "state": row.state.value,
            "groups": row.groups,
            "episodes": row.episodes,
            "loss tokens": row.loss_tokens,
            "seconds": round(row.seconds, 2),
            **{name.replace("_", " "): row.metrics.get(name) for name in shown},
        }
        for row in updates
    ]


def _head(view: RunView) -> None:
    colour = COLOURS.get(view.state, "blue")
    st.title(view.name)
    reason = f" — {view.reason}" if view.reason else ""
    fork = f" · forked from `{view.forked_from}`" if view.forked_from else ""
    st.markdown(f":{colour}-background[**{view.state}**]{reason}{fork}")
    totals = view.totals
    mean = f"{sum(view.recent.values()) / len(view.recent):.0%}" if view.recent else "–"
    figures = {
        "Version": f"{totals.version}",
        "Updates": f"{totals.updates}",
        "Episodes": f"{totals.episodes:,}",
        "Loss tokens": f"{totals.loss_tokens:,}",
        "Recent success": mean,
        "Minutes": f"{totals.seconds / 60:.1f}",
    }
    for column, (label, value) in zip(st.columns(len(figures)), figures.items(), strict=True):
        column.metric(label, value)


def _alarms(raised: Sequence[Raised]) -> None:
    """What is raised now; nothing where nothing is."""
    if not raised:
        return
    st.warning(f"{len(raised)} alarms are raised; docs/alarms.md says what to do.")
    rows = [
        {
            "alarm": each.name,
            "task": each.task or "all",
            "value": each.value,
            "threshold": each.threshold,
            "since version": each.version,
            "minutes": round(each.since_s / 60, 1),
        }
        for each in raised
    ]
    st.dataframe(rows, hide_index=True)


def _shares(title: str, counts: Mapping[str, int], nothing: str) -> None:
    st.subheader(title)
    if counts:
        st.vega_lite_chart(share_chart(counts))
    else:
        st.info(nothing)


def _policies(view: RunView) -> None:
    st.subheader("Live policies")
    if view.policies:
        rows = [asdict(policy) for policy in view.policies]
        st.dataframe(rows, hide_index=True)
    elif view.state in RUN_OVER:
        st.info("The run is over; nothing is served.")
    else:
        st.warning("No policy is live: episodes wait for one.")


def _updates(updates: Sequence[UpdateSummary]) -> None:
    st.subheader("Updates")
    if updates:
        st.dataframe(update_rows(updates), hide_index=True)
    else:
        st.info("No update yet.")


def _accounting(disagreements: Sequence[tuple[str, str]]) -> None:
    st.subheader("Accounting")
    if disagreements:
        st.error(f"{len(disagreements)} disagreements between episodes, trajectories and updates")
        st.dataframe(
            [{"kind": kind, "detail": detail} for kind, detail in disagreements], hide_index=True
        )
    else:
        st.success("Nothing lost, nothing trained twice: the witnesses agree.")
    st.caption(
        f"Of what is open and the last {LATE_GROUPS} groups that closed. Of the whole run: the "
        "views `accounting` and `unserved_steps`, with `agentrl sql`."
    )
