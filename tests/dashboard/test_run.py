from pathlib import Path

import pytest
from history import begun, ended, trained
from streamlit.testing.v1 import AppTest

from core.types import GroupState
from dashboard.looks.run import look, point
from dashboard.pages.run import success_chart, update_rows
from db import alarms
from db.alarms import Reading
from db.readonly import open_history
from db.store import Store


def shown(store: Store, run_id: str) -> AppTest:
    """The page, run once over a read-only store."""

    def script(url: str, run_id: str) -> None:
        from dashboard.pages.run import page
        from db.readonly import open_history

        page(open_history(url), run_id)

    app = AppTest.from_function(script, args=(str(store.engine.url), run_id), default_timeout=20)
    app.run()
    assert not app.exception
    return app


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'store.db'}"


def test_a_running_run_shows_its_figures_and_agreeing_witnesses(url: str) -> None:
    store, run_id = begun(url)
    trained(store, run_id, 5)
    app = shown(store, run_id)
    assert app.title[0].value == "run"
    figures = {metric.label: metric.value for metric in app.metric}
    assert figures["Version"] == "5"
    assert figures["Updates"] == "5"
    assert figures["Episodes"] == "40"
    assert figures["Loss tokens"] == "400"
    assert "agree" in app.success[0].value
    policies, updates = (frame.value for frame in app.dataframe)
    assert list(policies["track"]) == ["current", "lagged(4)"]
    assert list(updates["version"]) == [5, 4, 3, 2, 1]
    store.close()


def test_a_run_that_has_just_begun_says_what_is_not_there_yet(url: str) -> None:
    store, run_id = begun(url)
    app = shown(store, run_id)
    said = [box.value for box in app.info]
    assert "No episode has finished yet." in said
    assert "No update yet." in said
    assert "No policy is live" in app.warning[0].value
    assert not app.error
    store.close()


def test_a_finished_run_expects_no_policy(url: str) -> None:
    store, run_id = begun(url)
    trained(store, run_id, 2)
    ended(store, run_id)
    app = shown(store, run_id)
    assert "The run is over; nothing is served." in [box.value for box in app.info]
    assert any(
        "completed" in text.value and "enough updates" in text.value for text in app.markdown
    )
    assert not app.warning
    store.close()


def test_disagreements_are_listed(url: str) -> None:
    store, run_id = begun(url)
    trained(store, run_id, 2)
    with store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE trajectories SET sha256 = 'other'")
    app = shown(store, run_id)
    assert "disagreements" in app.error[0].value
    assert set(app.dataframe[-1].value["kind"]) >= {"hash_differs"}
    store.close()


def test_what_is_raised_is_shown_before_everything_else(url: str) -> None:
    store, run_id = begun(url)
    trained(store, run_id, 2)
    told = [
        (Reading("dbbench", "max_ratio", 500.0, 100.0, raised=True), None),
        (Reading("", "skipped", 1.0, 0.0, raised=True), None),
    ]
    with store.write() as session:
        alarms.add(session, run_id, f"{run_id}-u2", 2, told)
    app = shown(store, run_id)
    assert app.warning[0].value.startswith("2 alarms are raised")
    table = app.dataframe[0].value
    assert list(table["alarm"]) == ["skipped", "max_ratio"]
    assert list(table["task"]) == ["all", "dbbench"]
    assert list(table["since version"]) == [2, 2]
    store.close()


def test_what_is_shown_is_what_sql_says(url: str) -> None:
    store, run_id = begun(url)
    trained(store, run_id, 4)
    view = look(open_history(url), run_id)
    assert view.groups == {GroupState.TRAINED: 8}
    assert view.mix == {"current": 32, "lagged": 32}
    assert sum(each.episodes for each in view.curve) == 32
    assert view.recent == {"alfworld": 0.625, "dbbench": 0.625}
    store.close()


def test_the_band_is_the_interval_of_the_slice() -> None:
    one = point(0, "task", 0.5, 10)
    assert one.low == pytest.approx(0.2366, abs=1e-4)
    assert one.high == pytest.approx(0.7634, abs=1e-4)
    values = success_chart([one])["data"]["values"]
    assert values[0]["success"] == 0.5


def test_metrics_that_no_update_has_make_no_column(url: str) -> None:
    store, run_id = begun(url)
    trained(store, run_id, 1)
    columns = set(update_rows(look(store, run_id).updates)[0])
    assert {"loss", "entropy", "grad norm"} <= columns
    assert "clip fraction" not in columns
    store.close()
