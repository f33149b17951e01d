"""Figures of updates and the history of alarms, as the dashboard's curves show them."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from run_history import begun, trained

from agentrl.db.queries.update_figures import update_figures
from agentrl.db.store import Store
from agentrl.db.transitions.alarms import AlarmPeriod, AlarmReading, add_alarms, alarm_history
from agentrl.db.transitions.alarms import raised_alarms as raised

UPDATES = 6


@pytest.fixture
def run(tmp_path: Path) -> Iterator[tuple[Store, str]]:
    """Six updates: version v is committed 10 v seconds after the run's start, 2 s after its batch;
    version 3 was skipped.
    """
    store, run_id = begun(f"sqlite:///{tmp_path / 'store.db'}")
    with closing(store):
        trained(store, run_id, UPDATES)
        with store.engine.begin() as connection:
            for statement in (
                "UPDATE runs SET created_at = 1000",
                "UPDATE updates SET committed_at = 1000 + 10 * version, "
                "started_at = 998 + 10 * version",
                "UPDATE updates SET state = 'skipped' WHERE version = 3",
            ):
                connection.exec_driver_sql(statement)
        yield store, run_id


def test_each_update_has_its_times_counts_and_metrics(run: tuple[Store, str]) -> None:
    store, run_id = run
    with store.read() as session:
        found = update_figures(session, run_id, 400)
    assert [each.version for each in found] == [1, 2, 3, 4, 5, 6]
    second = found[1]
    assert (second.at_s, second.since_s, second.seconds) == (20.0, 10.0, 2.0)
    assert (second.groups, second.episodes, second.trained_tokens) == (2, 8, 80)
    assert second.metrics == {"loss": 0.05, "entropy": 1.5, "grad_norm": 0.3}
    third = found[2]
    assert (third.state, third.groups, third.episodes, third.trained_tokens) == ("skipped", 0, 0, 0)


def test_a_long_run_has_updates_evenly_apart_each_since_the_one_before_it(
    run: tuple[Store, str],
) -> None:
    store, run_id = run
    with store.read() as session:
        found = update_figures(session, run_id, 3)
    assert [(each.version, each.since_s) for each in found] == [(2, 10.0), (4, 10.0), (6, 10.0)]


def test_updates_that_were_rolled_back_are_left_out(run: tuple[Store, str]) -> None:
    store, run_id = run
    with store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE updates SET state = 'rolled_back' WHERE version = 5")
    with store.read() as session:
        found = update_figures(session, run_id, 400)
    assert [(each.version, each.since_s) for each in found][-2:] == [(4, 10.0), (6, 20.0)]


def test_the_history_has_an_alarm_from_where_it_was_raised_to_where_it_ended(
    run: tuple[Store, str],
) -> None:
    store, run_id = run

    def tell(version: int, value: float, *, up: bool) -> None:
        reading = AlarmReading("kg", "entropy", value, 0.1, raised=up)
        with store.write() as session:
            before = None if up else raised(session, run_id)[0]
            add_alarms(session, run_id, f"{run_id}-u{version}", version, [(reading, before)])

    tell(1, 0.05, up=True)
    tell(2, 0.5, up=False)
    with store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alarms SET raised_at = 100.0")
        connection.exec_driver_sql("UPDATE alarms SET ended_at = 160.0 WHERE version = 2")
    tell(4, 0.01, up=True)
    first = AlarmPeriod("kg", "entropy", 0.05, 0.1, 1, ended_version=2, seconds=60.0)
    second = AlarmPeriod("kg", "entropy", 0.01, 0.1, 4)
    with store.read() as session:
        assert alarm_history(session, run_id, 9) == [first, second]
        assert alarm_history(session, run_id, 1) == [second]
    with store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE updates SET state = 'rolled_back' WHERE version = 4")
    with store.read() as session:
        assert alarm_history(session, run_id, 9) == [first]
