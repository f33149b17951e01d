"""The page *Accounting*: whether anything was lost or trained twice, failures, leases."""

from collections.abc import Mapping

import streamlit as st

from agentrl.core.types import EpisodeState, Reason, Transition
from agentrl.dashboard.estimates import duration
from agentrl.dashboard.markup import Row
from agentrl.dashboard.viewmodels.accounting import (
    AccountingLook,
    Disagreements,
    read_accounting,
    read_all_disagreements,
)
from agentrl.dashboard.viewmodels.run import LATE_GROUPS, read_head
from agentrl.dashboard.widgets import bars, figures, page_title, table
from agentrl.db.store import Store

MAX_ROWS = 500  # disagreements in the table
REFUSED: Mapping[str, str] = {
    Transition.CLAIM: "a worker wanted to start an episode",
    Transition.FINISH: "a worker reported the result of an episode",
    Transition.RETRY: "a worker reported that an attempt failed",
    Transition.RELEASE: "a worker gave an episode back",
    Transition.LOSE_BODY: "a trajectory was reported lost",
    Transition.CONTINUE: "a worker wanted to continue an episode from its recorded steps",
    Transition.CLOSE: "the trainer wanted to close a group",
    Transition.MOVE_RUN: "the state of the run was to change",
    Transition.COMMIT: "a trainer wanted to commit an update",
    Transition.ROLL_BACK: "a trainer wanted to roll updates back",
}
BODIES = (Reason.BODY_LOST, Reason.BODY_DAMAGED, Reason.PUBLISH_FAILED)


def page(store: Store, run_id: str) -> None:
    """Check recent rows; check the whole run on request."""
    shown = read_head(store, run_id)
    page_title(f"Accounting of {shown.name}", shown)
    view = read_accounting(store, run_id)
    _proof(view.late)
    st.caption(f"Checks open groups and the last {LATE_GROUPS} closed groups.")
    if st.button("Check the whole run", help="Reads every row: 30 s per million episodes."):
        with st.spinner("Reading the whole run"):
            _proof(read_all_disagreements(store, run_id))
        st.caption("Checks the whole run with the views `accounting` and `unserved_steps`.")
    _balance(view)
    _given_up(view)
    st.subheader("Refused transitions")
    table(
        [
            {
                "what was refused": REFUSED.get(each.transition, each.transition),
                "because it was": each.found,
                "times": each.number,
                "latest": f"{duration(each.age_s)} ago",
            }
            for each in view.refused
        ],
        "None. Everything came in time.",
    )
    st.caption(
        "They changed nothing. In a healthy run these are late duplicates, replaced attempts, "
        "messages after the end of the run or group, and episodes that start anew because their "
        "recorded steps cannot be continued."
    )


def _proof(disagreements: Disagreements) -> None:
    if not disagreements:
        st.success("Nothing was lost and nothing was trained twice: all records agree.")
        return
    st.error(f"{len(disagreements)} disagreements between episodes, trajectories and updates.")
    rows = [{"kind": kind, "detail": detail} for kind, detail in disagreements[:MAX_ROWS]]
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
    st.subheader("Episodes that did not finish, and why")
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
