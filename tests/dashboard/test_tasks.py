from typing import Any

import pytest
from history import begun, ended, trained

from core.types import GroupState, RunState
from dashboard.looks.tasks import closed, look_at
from dashboard.pages.tasks import histogram, pass_rows, spread_rows, statuses
from db import runs
from db.attempts import Ended
from db.readonly import open_history

pytestmark = pytest.mark.slow  # pages are drawn


def test_a_task_shows_its_endings_and_the_items_nobody_solved(
    url: str, show: Any, tables: Any
) -> None:
    store, run_id = begun(url)
    trained(store, run_id, 4)
    with store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE episodes SET score = 0 WHERE item_id = 'item-2'")
    app = show("tasks", store, run_id)
    items = tables(app)[-1]
    ends = next(table for table in tables(app) if "share" in table)
    assert ends["task"] == ["alfworld", "dbbench"]
    assert ends["groups"] == ["4", "4"]
    assert items["item_id"] == ["item-2"]
    assert any("1 of the 4 items" in caption.value for caption in app.caption)
    app.toggle[0].set_value(True).run()
    assert any("that every group of the task played" in each.value for each in app.caption)
    assert not app.exception
    store.close()


def test_a_task_is_chosen_and_stands_in_the_address(url: str, show: Any) -> None:
    store, run_id = begun(url)
    trained(store, run_id, 1)
    app = show("tasks", store, run_id)
    app.selectbox[0].select("dbbench").run()
    assert not app.exception
    assert "dbbench" in app.query_params["task"]
    store.close()


def test_a_run_that_has_just_begun_has_no_tasks_yet(url: str, show: Any) -> None:
    store, run_id = begun(url)
    assert [box.value for box in show("tasks", store, run_id).info] == ["No group is admitted yet."]
    store.close()


@pytest.mark.parametrize("state", [RunState.COMPLETED, RunState.FAILED])
def test_a_run_that_is_over_keeps_its_tasks(url: str, show: Any, state: RunState) -> None:
    store, run_id = begun(url)
    trained(store, run_id, 1)
    with store.write() as session:
        runs.move_run(session, run_id, state, "it is over")
    app = show("tasks", store, run_id)
    assert state in app.markdown[0].value
    assert app.subheader[0].value == "What became of groups"
    store.close()


def test_pass_at_k_grows_with_k_up_to_the_group(url: str) -> None:
    store, run_id = begun(url)
    trained(store, run_id, 4)  # 1, 2, 3 and 4 of 4 solved
    ended(store, run_id)
    rows = pass_rows(look_at(open_history(url), run_id, "dbbench"), "dbbench")
    assert [row["k"] for row in rows] == [1, 2, 4]
    assert [round(row["pass@k"], 4) for row in rows] == [0.625, round((0.5 + 5 / 6 + 2) / 4, 4), 1]
    store.close()


def test_groups_without_spread_are_a_share_of_those_that_closed(url: str) -> None:
    store, run_id = begun(url)
    trained(store, run_id, 1)
    (span, task, states), *_ = closed(open_history(url), run_id)
    assert states == {GroupState.TRAINED: 1}
    mixed = {GroupState.TRAINED: 3, GroupState.FILTERED: 1}
    (row,) = spread_rows([(span, task, mixed)])
    assert row["without spread"] == 0.25
    store.close()


def test_endings_count_by_status_and_else_by_reason() -> None:
    ends = [
        Ended("finished", "completed", "", 2, 5),
        Ended("finished", "completed", "", 3, 1),
        Ended("cancelled", "", "run_ended", None, 2),
    ]
    assert statuses(ends) == {"completed": 6, "cancelled run_ended": 2}
    assert histogram(ends) == {2: 5, 3: 1}
