from run_history import begun

from agentrl.core.types import RunState
from agentrl.dashboard.pages.accounting import body_losses
from agentrl.dashboard.pages.processes import lease_rows
from agentrl.dashboard.viewmodels.accounting import AccountingLook
from agentrl.dashboard.viewmodels.run import read_head
from agentrl.db.queries.balance import Balance
from agentrl.db.registry.leases import Lease
from agentrl.db.transitions import runs


def test_a_failed_run_says_why(url: str) -> None:
    store, run_id = begun(url)
    with store.write() as session:
        runs.move_run(session, run_id, RunState.FAILED, "no memory")
    found = read_head(store, run_id)
    assert (found.name, found.state, found.reason) == ("run", RunState.FAILED, "no memory")
    assert found.over
    store.close()


def test_bodies_that_did_not_come_are_counted_of_failed_and_of_repeated_episodes() -> None:
    given_up = [("failed", "body_lost", 2, 6), ("failed", "timeout", 4, 9)]
    retried = {"body_damaged": 1, "publish_failed": 3, "lost": 5}
    view = AccountingLook([], Balance(0, 0, {}), {}, given_up, retried, [])
    assert body_losses(view) == 2 + 1 + 3


def test_processes_that_were_lost_come_first() -> None:
    rows = lease_rows(
        [
            Lease("dispatcher", "d", "", 5.0),
            Lease("worker", "w1", "here, pid 1", None),
            Lease("worker", "w2", "here, pid 2", -90.0),
        ]
    )
    assert [(row["name"], row["lease"]) for row in rows] == [
        ("w2", "expired 2 min ago"),
        ("d", "valid for 5 s"),
        ("w1", ""),
    ]
