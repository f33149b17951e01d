"""The page *Processes*: who works for the run, and what they logged."""

from collections.abc import Sequence
from typing import Any

import streamlit as st

from agentrl.dashboard.estimates import duration
from agentrl.dashboard.viewmodels.logs import LINES, MAX_BYTES, log_files, log_rows, read_end
from agentrl.dashboard.viewmodels.run import LEASES, read_head
from agentrl.dashboard.widgets import live_part, page_title, table
from agentrl.db.registry import leases
from agentrl.db.registry.leases import Lease
from agentrl.db.store import Store

LOG_EVERY_S = 5.0


def page(store: Store, run_id: str) -> None:
    """Refresh processes and log lines while the run is active."""
    head = read_head(store, run_id)
    page_title(f"Processes of {head.name}", head)
    live_part(lambda: _leases(store, run_id), over=head.over)
    _logs(store, run_id, head.name, over=head.over)


def _leases(store: Store, run_id: str) -> None:
    with store.read() as session:
        found = leases.leases(session, run_id, LEASES)
    table(lease_rows(found), "No process has worked for this run yet.")
    st.caption(
        "A process extends its lease every few seconds; *lost* means that it stopped doing so "
        "without ending in order: it was killed, or cannot reach the database. At most "
        f"{LEASES} workers and {LEASES} policy servers, the newest first. The use of processors, "
        "memory and GPUs is on the page Training, under Machine."
    )


def _logs(store: Store, run_id: str, run: str, *, over: bool) -> None:
    st.subheader("Logs")
    files = {path.name: path for path in log_files(store, run_id)}
    if not files:
        st.info(
            "No log file of this run is on this machine. `agentrl up` writes them to `logs` under "
            "`run.home`; containers write to their own output (`docker compose logs`)."
        )
        return
    left, middle, right = st.columns([2, 3, 2], vertical_alignment="bottom")
    chosen = left.selectbox("File", list(files)) or next(iter(files))
    words = middle.text_input("Text in a line")
    severe = right.toggle("Warnings and errors only")

    def show() -> None:
        rows = log_rows(read_end(files[chosen]), run, severe=severe, words=words.strip())
        table(rows, "No line matches.")

    live_part(show, over=over, every_s=LOG_EVERY_S)
    st.caption(
        f"Newest first; at most {LINES:,} lines from the last {MAX_BYTES >> 20} MiB of "
        f"`{files[chosen]}`."
    )


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
        return f"valid for {duration(lease.left_s)}"
    return f"expired {duration(-lease.left_s)} ago"
