"""Rows of evaluations."""

from typing import Any

from agentrl.db.models.evaluations import Evaluation


def evaluation_row(evaluation_id: str, **values: Any) -> Evaluation:
    """Return a row of a greedy evaluation on dbbench, without an interval."""
    row: dict[str, Any] = {
        "checkpoint_id": "somebody",
        "task": "dbbench",
        "split": "test",
        "temperature": 0.0,
        "items": 4,
        "success": 0.0,
        "low": 0.0,
        "high": 1.0,
        "metrics": {},
    }
    return Evaluation(evaluation_id=evaluation_id, **(row | values))
