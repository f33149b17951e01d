from typing import Any

import pytest

from agentrl.core.types import GroupState
from agentrl.dashboard.pages.tasks import (
    end_rows,
    histogram,
    nothing_unsolved,
    pass_rows,
    spread_rows,
    statuses,
)
from agentrl.dashboard.viewmodels.tasks import closed_groups, read_task, read_tasks
from agentrl.db.queries.task_outcomes import EndCount, ItemSummary


@pytest.mark.parametrize(
    ("summary", "said"),
    [
        (ItemSummary(0, 0, []), "No episode of these groups has finished yet."),
        (ItemSummary(3, 0, []), "None. Each played item was solved."),
    ],
)
def test_no_unsolved_item_means_solved_only_where_one_was_played(
    summary: ItemSummary, said: str
) -> None:
    assert nothing_unsolved(summary) == said


def test_all_groups_of_a_task_are_a_share_by_how_they_ended(runs: Any) -> None:
    view = read_tasks(runs.store, runs.going)
    assert view.tasks == ["alfworld", "dbbench"]
    rows = end_rows(view.ends)
    assert [(row["task"], row["groups"], row["share"]) for row in rows] == [
        ("alfworld", 3, 1.0),
        ("dbbench", 3, 1.0),
    ]
    ends = [("kg", "trained", "", 3), ("kg", "stale", "too_stale", 1), ("os", "trained", "", 2)]
    assert [row["share"] for row in end_rows(ends)] == [0.75, 0.25, 1.0]


def test_pass_at_k_grows_with_k_up_to_the_group(runs: Any) -> None:
    view = read_task(runs.store, runs.going, "dbbench")  # 1, 3 and 4 of 4 solved
    rows = pass_rows(view, "dbbench")
    assert [row["k"] for row in rows] == [1, 2, 4]
    assert [row["pass@k"] for row in rows] == pytest.approx([2 / 3, (0.5 + 1 + 1) / 3, 1])


def test_groups_without_a_learning_signal_are_a_share_of_those_that_closed(runs: Any) -> None:
    (span, task, states), *_ = closed_groups(runs.store, runs.going)
    assert states == {GroupState.TRAINED: 1}
    mixed = {GroupState.TRAINED: 3, GroupState.FILTERED: 1}
    (row,) = spread_rows([(span, task, mixed)])
    assert row["filtered"] == 0.25


def test_endings_count_by_status_and_else_by_reason() -> None:
    ends = [
        EndCount("finished", "completed", "", 2, 5),
        EndCount("finished", "completed", "", 3, 1),
        EndCount("cancelled", "", "run_ended", None, 2),
    ]
    assert statuses(ends) == {"completed": 6, "cancelled run_ended": 2}
    assert histogram(ends) == {2: 5, 3: 1}
