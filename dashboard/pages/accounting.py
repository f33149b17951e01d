"""The page *Accounting*: whether anything was lost or trained twice, failures, leases."""

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from agentrl.core.types import EpisodeState, Reason
from agentrl.dashboard.estimates import duration
from agentrl.dashboard.markup import Row
from agentrl.dashboard.viewmodels.accounting import (
    AccountingLook,
    Disagreements,
    read_accounting,
    read_all_disagreements,
)
from agentrl.dashboard.viewmodels.run import LATE_GROUPS, LEASES, read_head
from agentrl.dashboard.widgets import bars, figures, page_title, table
from agentrl.db.registry.leases import Lease
from agentrl.db.store import Store

SHOWN = 500  # disagreements in the table
BODIES = (Reason.BODY_LOST, Reason.BODY_DAMAGED, Reason.PUBLISH_FAILED)


def page(store: Store, run_id: str) -> None:
    """Check recent rows; check the whole run on request."""
    shown = read_head(store, run_id)
    page_title(
        f"Accounting of {shown.name}", shown.state, f": {shown.reason}" if shown.reason else ""
    )
    view = read_accounting(store, run_id)
    _proof(view.late)
    st.caption(f"Checks open groups and the last {LATE_GROUPS} closed groups.")
    if st.button("Check the whole run", help="Reads every row: 30 s per million episodes."):
        with st.spinner("Reading the whole run"):
            _proof(read_all_disagreements(store, run_id))
        st.caption("Checks the whole run with the views `accounting` and `unserved_steps`.")
    _balance(view)
    _given_up(view)
    st.subheader("Leases")
    table(lease_rows(view.leases), "No process has had a lease yet.")
    st.caption(f"At most {LEASES} workers and {LEASES} policy servers, the newest first.")
    st.subheader("Refused transitions")
    table(
        [
            {
                "transition": each.transition,
                "found": each.found,
                "times": each.number,
                "latest": f"{duration(each.age_s)} ago",
            }
            for each in view.refused
        ],
        "None. No message or process was too late.",
    )
    st.caption(
        "State changes refused because the row had already changed. In a healthy run these are "
        "late duplicates, replaced attempts, and messages after the end of the run or group."
    )


def _proof(disagreements: Disagreements) -> None:
    if not disagreements:
        st.success("Nothing was lost and nothing was trained twice: all records agree.")
        return
    st.error(f"{len(disagreements)} disagreements between episodes, trajectories and updates.")
    rows = [{"kind": kind, "detail": detail} for kind, detail in disagreements[:SHOWN]]
    table(rows, "")


def _balance(view: AccountingLook) -> None:
    st.subheader("Balance")
    found, members = sum(view.balance.episodes.values()), view.balance.members
    figures(
        {
            "Groups": f"{view.balance.groups:,}",
            "Members": f"{members:,}",
            "Episodes": f"{found:,}",
            "Finished": f"{view.balance.episodes.get(EpisodeState.FINISHED, 0):,}",
        },
        {"Members": "Sum of the sizes of all groups. Each member has one episode."},
    )
    if found != members:
        st.error(f"{members} members, but {found} episodes. Each member has one episode.")
    left, right = st.columns(2)
    with left:
        _draw_counts(view.groups, "groups", "All groups by state.")
    with right:
        _draw_counts(view.balance.episodes, "episodes", "All episodes by state.")


def _draw_counts(counts: Mapping[str, int], what: str, caption: str) -> None:
    if counts:
        bars(counts, caption)
    else:
        st.info(f"There are no {what} yet.")


def _given_up(view: AccountingLook) -> None:
    st.subheader("Failed episodes and their reasons")
    lost = body_losses(view)
    if lost:
        st.warning(
            f"{lost} episodes lost their trajectory between worker and database. "
            "`agentrl dead list CONFIG` lists messages that could not be processed."
        )
    rows: list[Row] = [
        {"state": state, "reason": reason, "episodes": episodes, "attempts": attempts}
        for state, reason, episodes, attempts in view.given_up
    ]
    rows += [
        {"state": "retried now", "reason": reason, "episodes": number, "attempts": None}
        for reason, number in view.retried.items()
    ]
    table(rows, "None. Every episode that ended has finished.")


def body_losses(view: AccountingLook) -> int:
    """Count episodes that failed or are retried because their trajectory was lost or damaged."""
    failed = sum(number for _, reason, number, _ in view.given_up if reason in BODIES)
    return failed + sum(number for reason, number in view.retried.items() if reason in BODIES)


def lease_rows(found: Sequence[Lease]) -> list[dict[str, Any]]:
    """Return a row per process: lost ones first, then live ones, then ended ones."""
    order = {"lost": 0, "live": 1, "ended": 2}
    return [
        {
            "state": each.state,
            "role": each.role,
            "name": each.name,
            "where": each.where,
            "lease": lease_text(each),
        }
        for each in sorted(found, key=lambda each: order[each.state])
    ]


def lease_text(lease: Lease) -> str:
    """Return how long the lease is still valid, or when it expired."""
    if lease.left_s is None:
        return ""
    if lease.left_s > 0:
        return f"{duration(lease.left_s)} left"
    return f"expired {duration(-lease.left_s)} ago"
