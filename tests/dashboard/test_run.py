from typing import Any

import pytest
from run_history import TASKS, begun, ended, trained

from agentrl.core import config_loading
from agentrl.core.config.config import Config
from agentrl.core.config.sections.run import Run as RunSection
from agentrl.core.config.sections.tasks import Task
from agentrl.core.types import UpdateState
from agentrl.dashboard.curve_charts import success_chart
from agentrl.dashboard.pages.run import health, recent_rows, staleness, update_rows
from agentrl.dashboard.theme import colours
from agentrl.dashboard.viewmodels.run import read_curve, read_flow, read_head, read_now
from agentrl.db.models.runs import Run
from agentrl.db.transitions import lifecycle


def test_a_running_run_is_told_in_figures(runs: Any) -> None:
    view = read_now(runs.store, runs.going)
    assert (view.version, view.learned.updates) == (3, 3)
    assert (view.learned.episodes, view.learned.trained_tokens) == (24, 240)
    rows = recent_rows(view.recent)
    assert [row["task"] for row in rows] == ["alfworld", "dbbench"]
    assert [row["success"] for row in rows] == pytest.approx([2 / 3, 2 / 3])
    later = read_flow(runs.store, runs.going)
    assert [each.track for each in later.policies] == ["current", "lagged(4)"]
    assert [row["version"] for row in update_rows(later.updates)] == [3, 2, 1]


def test_a_run_that_is_over_has_nothing_left_and_expects_no_process(runs: Any) -> None:
    view = read_now(runs.store, runs.over)
    assert (view.head.over, view.head.reason) == (True, "enough updates")
    assert health(view) == "Processes: the run is over; 0 still run."
    assert view.rules == []
    assert read_flow(runs.store, runs.over).policies == []


def test_the_stop_rule_of_the_configuration_tells_how_far_the_run_is(url: str) -> None:
    config = Config(tasks={"dbbench": Task()}, run=RunSection(stop_updates=8))
    store, run_id = begun(url, config=config)
    trained(store, run_id, 2)
    (rule,) = read_now(store, run_id).rules
    assert rule.share == 0.25
    assert rule.left_s is not None
    ended(store, run_id)
    assert read_now(store, run_id).rules == []
    store.close()


def test_the_rule_of_success_wants_every_configured_task_as_the_trainer_does(url: str) -> None:
    tasks = {name: Task() for name in (*TASKS, "kg")}
    store, run_id = begun(url, config=Config(tasks=tasks, run=RunSection(stop_success=0.5)))
    assert read_now(store, run_id).rules == []
    trained(store, run_id, 2)
    (rule,) = read_now(store, run_id).rules
    assert (rule.reached, rule.share) == ("0% of 50%", 0.0)
    with store.write() as session:
        config = Config(tasks={"dbbench": Task()}, run=RunSection(stop_success=0.5))
        session.get_one(Run, run_id).config = config_loading.dumps(config)
    (rule,) = read_now(store, run_id).rules
    assert rule.reached == "75% of 50%"
    store.close()


def test_the_age_of_trained_steps_is_told_in_a_sentence(runs: Any) -> None:
    flow = read_flow(runs.store, runs.going)  # version 0 sampled every step; version 3 is the last
    assert staleness(flow) == (
        "In the last update they were on average 2.0 updates old for steps of *current* and 2.0 "
        "old for steps of the others."
    )
    assert staleness(read_flow(runs.store, runs.fresh)) == ""


def test_a_run_without_a_process_says_so(url: str) -> None:
    store, run_id = begun(url)
    assert read_head(store, run_id).shown_state == "not started"
    trained(store, run_id, 1)
    head = read_head(store, run_id)  # its policy server is live
    assert (head.shown_state, head.is_working) == ("running", True)
    with store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE policy_servers SET lease_until = 1.0")
    head = read_head(store, run_id)
    assert (head.shown_state, head.is_working) == ("no process runs", False)
    ended(store, run_id)
    assert read_head(store, run_id).shown_state == "completed"
    store.close()


def test_a_worker_that_was_lost_is_told_of(url: str) -> None:
    store, run_id = begun(url)
    trained(store, run_id, 1)
    with store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE workers SET ended_at = NULL, lease_until = 1.0")
        connection.exec_driver_sql("UPDATE runs SET recorder = 'r', recorder_until = 1.0")
    said = health(read_now(store, run_id))
    assert "worker: 1 lost" in said
    assert "policy server: 1 live" in said
    assert "dispatcher: none live" in said
    assert "recorder: 1 lost" in said
    assert "trainer: " not in said
    store.close()


def test_the_curve_has_a_point_a_version_and_a_colour_a_task(runs: Any) -> None:
    points = read_curve(runs.store, runs.going)
    chart = success_chart(points, colours(["alfworld", "dbbench"]))
    values = chart["data"]["values"]
    shown = [(row["version"], row["success"]) for row in values if row["task"] == "dbbench"]
    assert shown == [(1, 0.25), (2, 0.5), (3, pytest.approx(2 / 3))]
    scale = chart["layer"][1]["encoding"]["color"]["scale"]
    assert scale == {"domain": ["alfworld", "dbbench"], "range": ["#0072B2", "#D55E00"]}


def test_an_update_that_was_skipped_or_rolled_back_trained_no_token(runs: Any) -> None:
    with runs.store.read() as session:
        updates = lifecycle.latest_updates(session, runs.going, 3)
    states = (UpdateState.SKIPPED, UpdateState.COMMITTED, UpdateState.ROLLED_BACK)
    for update, state in zip(updates, states, strict=True):
        update.state = state
    assert [row["trained tokens"] for row in update_rows(updates)] == [0, 80, 0]


def test_metrics_that_no_update_has_make_no_column(runs: Any) -> None:
    with runs.store.read() as session:
        columns = set(update_rows(lifecycle.latest_updates(session, runs.going, 9))[0])
    assert {"Loss", "Entropy, nats per token", "Gradient norm"} <= columns
    assert "Clipped tokens" not in columns
