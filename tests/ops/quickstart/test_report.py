"""The picture of the quickstart's report."""

from pathlib import Path

import pytest
from run_history import TASKS, begun, trained
from sqlalchemy import text

from agentrl.db.queries import curves
from agentrl.ops.evaluation.evaluate import Plan
from agentrl.ops.evaluation.summary import summarise
from agentrl.ops.quickstart.report import POINT_GROUPS, POINTS, Outcome, draw, task_curve


def test_the_curve_is_of_groups_whenever_their_episodes_ended(tmp_path: Path) -> None:
    """1, 2, 3 and 4 of 4 are solved; those that are end first, the others last."""
    pytest.importorskip("matplotlib")
    store, run_id = begun(f"sqlite:///{tmp_path / 'store.db'}")
    trained(store, run_id, 4)
    with store.write() as session:
        session.execute(
            text("UPDATE episodes SET ended_at = CASE WHEN score >= 1 THEN 1 ELSE 2 END")
        )
    with store.read() as session:
        curve = curves.success_by_version(session, run_id, POINTS, POINT_GROUPS)
    store.close()
    assert task_curve(curve, TASKS[0]) == ([1, 2, 3, 4], [1 / 4, 3 / 8, 6 / 12, 10 / 16])
    none = {task: {1.0: summarise(Plan(task, "test", 1.0, 0), [])} for task in TASKS}
    outcome = Outcome("tiny", none, none, 2.0, 1.0, 4, 32, [], {}, curve)
    assert draw(outcome, tmp_path / "curve.png").stat().st_size > 0
