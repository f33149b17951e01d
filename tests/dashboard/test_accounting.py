from typing import Any

import pytest
from history import begun, ended, trained

from core.types import RunState
from dashboard.pages.accounting import lease_rows
from db import runs
from db.groups import NewGroup, admit
from db.leases import Lease
from db.models import Run
from db.store import Store

pytestmark = pytest.mark.slow  # pages are drawn


def admitted(store: Store, run_id: str) -> None:
    """One more group, that nobody plays."""
    with store.write() as session:
        run = session.get_one(Run, run_id)
        admit(session, run, [NewGroup("more", "dbbench", 99, 0, "item-99", 4)])


def test_a_sound_run_agrees_late_and_wholly(url: str, show: Any) -> None:
    store, run_id = begun(url)
    trained(store, run_id, 3)
    app = show("accounting", store, run_id)
    assert len(app.success) == 1
    figures = {metric.label: metric.value for metric in app.metric}
    assert figures == {"Groups": "6", "Members": "24", "Episodes": "24", "Finished": "24"}
    app.button[0].click().run()
    assert [box.value for box in app.success] == [app.success[0].value] * 2
    assert not app.error
    store.close()


def test_disagreements_are_listed(url: str, show: Any, tables: Any) -> None:
    store, run_id = begun(url)
    trained(store, run_id, 2)
    with store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE trajectories SET sha256 = 'other'")
    app = show("accounting", store, run_id)
    assert app.error[0].value.startswith("16 disagreements")
    assert set(tables(app)[0]["kind"]) == {"hash_differs"}
    store.close()


def test_a_member_without_its_episode_breaks_the_balance(url: str, show: Any) -> None:
    store, run_id = begun(url)
    admitted(store, run_id)
    with store.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM episodes WHERE member = 3")
    said = [box.value for box in show("accounting", store, run_id).error]
    assert "4 members, 3 episodes: each member has one" in said
    store.close()


def test_a_run_that_has_just_begun_has_nothing_to_answer_for(url: str, show: Any) -> None:
    store, run_id = begun(url)
    app = show("accounting", store, run_id)
    said = [box.value for box in app.info]
    assert "There are no groups yet." in said
    assert "No process has held a lease yet." in said
    assert "Nothing: every episode that ended has finished." in said
    assert "None: nothing came too late." in said
    assert app.success
    assert not app.error
    store.close()


def test_a_failed_run_shows_what_was_cancelled_and_why(url: str, show: Any, tables: Any) -> None:
    store, run_id = begun(url)
    trained(store, run_id, 1)
    admitted(store, run_id)
    with store.write() as session:
        runs.move_run(session, run_id, RunState.FAILED, "no memory")
    app = show("accounting", store, run_id)
    assert "failed" in app.markdown[0].value
    assert "no memory" in app.markdown[0].value
    given_up = next(table for table in tables(app) if "attempts" in table)
    assert given_up["reason"] == ["run_ended"]
    assert given_up["episodes"] == ["4"]
    store.close()


def test_a_finished_run_lists_ended_processes(url: str, show: Any, tables: Any) -> None:
    store, run_id = begun(url)
    trained(store, run_id, 1)
    ended(store, run_id)
    app = show("accounting", store, run_id)
    held = next(table for table in tables(app) if "lease" in table)
    assert set(held["state"]) == {"ended"}
    store.close()


def test_bodies_that_did_not_come_point_to_the_dead_letters(url: str, show: Any) -> None:
    store, run_id = begun(url)
    admitted(store, run_id)
    with store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE episodes SET reason = 'body_lost' WHERE member = 1")
    app = show("accounting", store, run_id)
    assert app.warning[0].value.startswith("1 episodes lost their body")
    assert "agentrl dead list" in app.warning[0].value
    store.close()


def test_processes_that_were_lost_come_first() -> None:
    rows = lease_rows(
        [
            Lease("dispatcher", "d", "", 5.0),
            Lease("worker", "w1", "here, pid 1", None),
            Lease("worker", "w2", "here, pid 2", -90.0),
        ]
    )
    assert [(row["name"], row["lease"]) for row in rows] == [
        ("w2", "ran out 2 min ago"),
        ("d", "5 s left"),
        ("w1", ""),
    ]
