"""The page *Accounting*: was anything lost or trained twice, what was given up, who lives."""

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from agentrl.core.types import EpisodeState, Reason
from agentrl.dashboard.estimates import duration
from agentrl.dashboard.markup import Row
from agentrl.dashboard.parts import bars, figures, table, title
from agentrl.dashboard.viewmodels.accounting import AccountingLook, Disagreements, look, whole
from agentrl.dashboard.viewmodels.run import LATE_GROUPS, LEASES, head
from agentrl.db.registry.leases import Lease
from agentrl.db.store import Store

SHOWN = 500  # disagreements in the table
BODIES = (Reason.BODY_LOST, Reason.BODY_DAMAGED, Reason.PUBLISH_FAILED)


def page(store: Store, run_id: str) -> None:
    """The proof of what is late, then of everything for who asks."""
    shown = head(store, run_id)
    title(f"Accounting of {shown.name}", shown.state, f" — {shown.reason}" if shown.reason else "")
    view = look(store, run_id)
    _proof(view.late)
    st.caption(f"Of what is open and of the last {LATE_GROUPS} groups that closed.")
    if st.button("Prove the whole run", help="Reads every row of it: 30 s for a million episodes."):
        with st.spinner("Reading the whole run"):
            _proof(whole(store, run_id))
        st.caption("Of the whole run: the views `accounting` and `unserved_steps`.")
    _balance(view)
    _given_up(view)
    st.subheader("Leases")
    table(lease_rows(view.leases), "No process has held a lease yet.")
    st.caption(f"Of workers and of policy servers the {LEASES} that started last.")
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
        "None: nothing came too late.",
    )
    st.caption(
        "Moves that changed nothing. In a sound run: late duplicates, replaced attempts, and what "
        "came after the run or its group had ended."
    )


def _proof(disagreements: Disagreements) -> None:
    if not disagreements:
        st.success("Nothing lost, nothing trained twice: the witnesses agree.")
        return
    st.error(f"{len(disagreements)} disagreements between episodes, trajectories and updates")
    rows = [{"kind": kind, "detail": detail} for kind, detail in disagreements[:SHOWN]]
    table(rows, "")


def _balance(view: AccountingLook) -> None:
    st.subheader("The balance")
    found, members = sum(view.balance.episodes.values()), view.balance.members
    figures(
        {
            "Groups": f"{view.balance.groups:,}",
            "Members": f"{members:,}",
            "Episodes": f"{found:,}",
            "Finished": f"{view.balance.episodes.get(EpisodeState.FINISHED, 0):,}",
        },
        {"Members": "The sizes of all groups together: each has one episode."},
    )
    if found != members:
        st.error(f"{members} members, {found} episodes: each member has one")
    left, right = st.columns(2)
    with left:
        _counted(view.groups, "groups", "All groups, by state.")
    with right:
        _counted(view.balance.episodes, "episodes", "All episodes, by state.")


def _counted(counts: Mapping[str, int], what: str, caption: str) -> None:
    if counts:
        bars(counts, caption)
    else:
        st.info(f"There are no {what} yet.")


def _given_up(view: AccountingLook) -> None:
    st.subheader("What was given up, and why")
    lost = body_losses(view)
    if lost:
        st.warning(
            f"{lost} episodes lost their body on the way. `agentrl dead list CONFIG` shows what "
            "the broker holds as dead letters; the store knows only that a body did not come."
        )
    rows: list[Row] = [
        {"state": state, "reason": reason, "episodes": episodes, "attempts": attempts}
        for state, reason, episodes, attempts in view.given_up
    ]
    rows += [
        {"state": "repeated now", "reason": reason, "episodes": number, "attempts": None}
        for reason, number in view.retried.items()
    ]
    table(rows, "Nothing: every episode that ended has finished.")


def body_losses(view: AccountingLook) -> int:
    """Episodes that failed, or are repeated, because their body did not arrive or was damaged."""
    failed = sum(number for _, reason, number, _ in view.given_up if reason in BODIES)
    return failed + sum(number for reason, number in view.retried.items() if reason in BODIES)


def lease_rows(found: Sequence[Lease]) -> list[dict[str, Any]]:
    """A row a process: the dead first, then those that live, then those that ended."""
    order = {"lost": 0, "live": 1, "ended": 2}
    return [
        {
            "state": each.state,
            "role": each.role,
            "name": each.name,
            "where": each.where,
            "lease": told(each),
        }
        for each in sorted(found, key=lambda each: order[each.state])
    ]


def told(lease: Lease) -> str:
    """How long the lease still holds, or when it ran out."""
    if lease.left_s is None:
        return ""
    if lease.left_s > 0:
        return f"{duration(lease.left_s)} left"
    return f"ran out {duration(-lease.left_s)} ago"
