"""Rows of updates, evaluations and alarms for trackers, each once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from agentrl.db.models.evaluations import Evaluation
from agentrl.db.models.updates import Alarm, Update
from agentrl.db.query_parts import live_alarms
from agentrl.db.registry.lineage import undone_checkpoints

MOST = 200  # rows of one look


@dataclass(frozen=True, slots=True)
class TrackerCursor:
    """The position of a tracker: `update` (epoch and version of the last one) and `alarm_id`.

    Updates are committed in the order of (trainer_epoch, version), whatever the clock does. If the
    database lost updates, those of the same epoch and version are exported after a restart only.
    `evaluations`: episodes and creation of each one exported; an evaluation that has grown, or was
    measured anew, is exported again.
    """

    update: tuple[int, int] = (0, 0)
    alarm_id: int = 0
    evaluations: Mapping[str, tuple[int, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrackerRow:
    """One row as numbers at a version, and the tracker's position after it."""

    version: int
    metrics: Mapping[str, float]
    cursor: TrackerCursor


def tracker_rows(
    session: Session, run_id: str, cursor: TrackerCursor, most: int = MOST
) -> list[TrackerRow]:
    """Return rows not exported yet: updates, then alarms, then evaluations.

    What was rolled back is left out.
    """
    rows: list[TrackerRow] = []
    place = tuple_(Update.trainer_epoch, Update.version)
    updates = select(Update).where(
        Update.run_id == run_id, Update.is_live, place > tuple_(*cursor.update)
    )
    for update in session.scalars(updates.order_by(*place).limit(most)):
        cursor = TrackerCursor(
            (update.trainer_epoch, update.version), cursor.alarm_id, cursor.evaluations
        )
        rows.append(TrackerRow(update.version, _numeric_metrics(update.metrics), cursor))
    alarms = live_alarms(run_id).where(Alarm.alarm_id > cursor.alarm_id)
    for alarm in session.scalars(alarms.order_by(Alarm.alarm_id).limit(most)):
        cursor = TrackerCursor(cursor.update, alarm.alarm_id, cursor.evaluations)
        name = f"alarm/{alarm.task or 'update'}/{alarm.name}"
        rows.append(TrackerRow(alarm.version, {name: float(alarm.ended_at is None)}, cursor))
    for row in _evaluations(session, run_id):
        state = row.episodes, row.created_at
        if cursor.evaluations.get(row.evaluation_id) == state:
            continue
        known = {**cursor.evaluations, row.evaluation_id: state}
        cursor = TrackerCursor(cursor.update, cursor.alarm_id, known)
        rows.append(TrackerRow(row.version or 0, _evaluation_metrics(row), cursor))
    return rows


def _evaluations(session: Session, run_id: str) -> Sequence[Evaluation]:
    """Return the complete evaluations of versions."""
    query = (
        select(Evaluation)
        .where(Evaluation.run_id == run_id, Evaluation.version.is_not(None), Evaluation.is_complete)
        .where(Evaluation.checkpoint_id.not_in(undone_checkpoints()))
    )
    return session.scalars(query.order_by(Evaluation.created_at, Evaluation.evaluation_id)).all()


def _evaluation_metrics(row: Evaluation) -> Mapping[str, float]:
    where = f"eval/{row.task}/{row.split}/T{row.temperature:g}"
    figures = {"success": row.success, "low": row.low, "high": row.high}
    return {f"{where}/{name}": value for name, value in figures.items()}


def _numeric_metrics(metrics: Mapping[str, object]) -> Mapping[str, float]:
    return {name: float(v) for name, v in metrics.items() if isinstance(v, int | float)}
