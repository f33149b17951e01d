from typing import Any

import pytest
from history import begun, ended, trained

from core.config import Config, Task
from core.config import Run as RunSection
from core.types import RunState
from dashboard.curve_charts import success_chart
from dashboard.looks.run import curve, now
from dashboard.pages.run import update_rows
from dashboard.theme import colours
from db import alarms, lifecycle, runs
from db.alarms import Reading
from db.readonly import open_history

pytestmark = pytest.mark.slow  # pages are drawn


def figures(app: Any) -> dict[str, str]:
    return {metric.label: metric.value for metric in app.metric}


def having(tables: list[dict[str, list[str]]], column: str) -> dict[str, list[str]]:
    """The first table with a column of that name."""
    return next(table for table in tables if column in table)


def test_a_running_run_shows_its_figures(url: str, show: Any, tables: Any) -> None:
    store, run_id = begun(url)
    trained(store, run_id, 5)
    app = show("run", store, run_id)
    assert app.title[0].value == "run"
    found = figures(app)
    assert found["Version"] == found["Updates"] == "5"
    assert found["Episodes learned"] == "40"
    assert found["Tokens learned"] == "400"
    shown = tables(app)
    assert having(shown, "track")["track"] == ["current", "lagged(4)"]
    assert having(shown, "loss tokens")["version"] == ["5", "4", "3", "2", "1"]
    recent = having(shown, "reward, 95 %")
    assert recent["task"] == ["alfworld", "dbbench"]
    assert recent["success"] == ["60.0%", "60.0%"]
    store.close()


def test_a_run_that_has_just_begun_says_what_is_not_there_yet(url: str, show: Any) -> None:
    store, run_id = begun(url)
    app = show("run", store, run_id)
    said = [box.value for box in app.info]
    assert "No group has closed yet." in said
    assert said.count("No update yet.") == 2
    assert "No policy is live: episodes wait for one." in said
    assert not app.error
    store.close()


def test_a_finished_run_expects_no_process_and_has_nothing_left(url: str, show: Any) -> None:
    store, run_id = begun(url)
    trained(store, run_id, 2)
    ended(store, run_id)
    app = show("run", store, run_id)
    assert "The run is over; nothing is served." in [box.value for box in app.info]
    said = [text.value for text in app.markdown]
    assert any("completed" in text and "enough updates" in text for text in said)
    assert any("the run is over; 0 still hold a lease" in text for text in said)
    assert figures(app)["Left"] == "–"
    assert not app.warning
    store.close()


def test_a_failed_run_says_why(url: str, show: Any) -> None:
    store, run_id = begun(url)
    with store.write() as session:
        runs.move_run(session, run_id, RunState.FAILED, "the trainer found no memory")
    app = show("run", store, run_id)
    state = app.markdown[0].value
    assert "failed" in state
    assert "no memory" in state
    store.close()


def test_what_is_raised_is_shown_before_the_tables(url: str, show: Any, tables: Any) -> None:
    store, run_id = begun(url)
    trained(store, run_id, 2)
    told = [
        (Reading("dbbench", "max_ratio", 500.0, 100.0, raised=True), None),
        (Reading("", "skipped", 1.0, 0.0, raised=True), None),
    ]
    with store.write() as session:
        alarms.add(session, run_id, f"{run_id}-u2", 2, told)
    app = show("run", store, run_id)
    assert app.warning[0].value.startswith("2 alarms are raised")
    table = tables(app)[0]
    assert table["alarm"] == ["skipped", "max_ratio"]
    assert table["task"] == ["all", "dbbench"]
    ended(store, run_id)
    over = show("run", store, run_id)
    assert over.warning[0].value.startswith("2 alarms stood when the run ended")
    store.close()


def test_the_stop_rule_of_the_configuration_tells_how_far_the_run_is(url: str, show: Any) -> None:
    config = Config(tasks={"dbbench": Task()}, run=RunSection(stop_updates=8))
    store, run_id = begun(url, config=config)
    trained(store, run_id, 2)
    (rule,) = now(open_history(url), run_id).rules
    assert rule.share == 0.25
    assert rule.left_s is not None
    assert figures(show("run", store, run_id))["Left"] != "–"
    ended(store, run_id)
    assert now(open_history(url), run_id).rules == []
    store.close()


def test_a_worker_that_was_lost_is_told_of(url: str, show: Any) -> None:
    store, run_id = begun(url)
    trained(store, run_id, 1)
    with store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE workers SET ended_at = NULL, lease_until = 1.0")
    said = " ".join(text.value for text in show("run", store, run_id).markdown)
    assert "worker: 1 lost" in said
    assert "policy server: 1 live" in said
    assert "dispatcher: none live" in said
    store.close()


def test_the_curve_has_a_point_a_version_and_a_colour_a_task(url: str) -> None:
    store, run_id = begun(url)
    trained(store, run_id, 4)
    points = curve(open_history(url), run_id)
    chart = success_chart(points, colours(["alfworld", "dbbench"]))
    values = chart["data"]["values"]
    shown = [(row["version"], row["success"]) for row in values if row["task"] == "dbbench"]
    assert shown == [(1, 0.25), (2, 0.375), (3, 0.5), (4, 0.625)]
    scale = chart["layer"][1]["encoding"]["color"]["scale"]
    assert scale == {"domain": ["alfworld", "dbbench"], "range": ["#0072B2", "#D55E00"]}
    store.close()


def test_metrics_that_no_update_has_make_no_column(url: str) -> None:
    store, run_id = begun(url)
    trained(store, run_id, 1)
    with store.read() as session:
        columns = set(update_rows(lifecycle.latest_updates(session, run_id, 9))[0])
    assert {"loss", "entropy", "grad norm"} <= columns
    assert "clip fraction" not in columns
    store.close()
