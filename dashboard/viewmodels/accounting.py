"""What the page *Accounting* shows: plain values, no Streamlit."""

from collections.abc import Mapping
from dataclasses import dataclass

from agentrl.dashboard.viewmodels.run import LATE_GROUPS
from agentrl.db.queries import balance, progress
from agentrl.db.queries.balance import Balance, RefusedCount
from agentrl.db.store import Store

Disagreements = list[tuple[str, str]]  # (kind, detail)


@dataclass(frozen=True, slots=True)
class AccountingLook:
    """The accounting of a run. `late`: only of open and of recent groups.

    `given_up`: (state, reason, episodes, attempts). `retried`: attempts by reason.
    """

    late: Disagreements
    balance: Balance
    groups: Mapping[str, int]
    given_up: list[tuple[str, str, int, int]]
    retried: Mapping[str, int]
    refused: list[RefusedCount]


def read_accounting(store: Store, run_id: str) -> AccountingLook:
    """Read the current accounting."""
    with store.read() as session:
        return AccountingLook(
            late=progress.disagreements(session, run_id, LATE_GROUPS),
            balance=balance.balance(session, run_id),
            groups=progress.groups_by_state(session, run_id),
            given_up=balance.failed_counts(session, run_id),
            retried=balance.retry_counts(session, run_id),
            refused=balance.refused_counts(session, run_id),
        )


def read_all_disagreements(store: Store, run_id: str) -> Disagreements:
    """Run the checks of the whole run, which read all its rows."""
    with store.read() as session:
        return progress.disagreements(session, run_id)
