"""Parts of queries: columns, rows of an attempt, live processes, alarms, counts, shares."""

from dataclasses import fields
from typing import Any

from sqlalchemy import (
    ColumnElement,
    ColumnExpressionArgument,
    Select,
    and_,
    case,
    func,
    select,
    true,
)
from sqlalchemy.orm import InstrumentedAttribute, Session

from agentrl.core.types import SOLVED
from agentrl.db.models.base import Base
from agentrl.db.models.processes import PolicyServer, Worker
from agentrl.db.models.updates import Alarm, Update
from agentrl.db.store import now


def columns_of(kind: type[Any], model: type[Base], **others: Any) -> list[Any]:
    """Return a column of `model` for each field of a dataclass, in order.

    `others`: expressions of the fields that are no column of this name.
    """
    names = [field.name for field in fields(kind)]
    return [others[name] if name in others else getattr(model, name) for name in names]


def same_attempt(one: Any, other: Any) -> ColumnElement[bool]:
    """Return the condition that rows of two tables belong to the same attempt of an episode."""
    return and_(one.episode_id == other.episode_id, one.fence == other.fence)


def is_live(process: type[Worker] | type[PolicyServer], run_id: str) -> ColumnElement[bool]:
    """Return the condition that a process of the run has not ended and holds its lease."""
    return and_(process.run_id == run_id, process.ended_at.is_(None), process.lease_until > now())


def live_alarms(run_id: str) -> Select[Alarm]:
    """Return a query for the run's alarm rows, without those of updates that were rolled back."""
    return (
        select(Alarm)
        .outerjoin(Update, Update.update_id == Alarm.update_id)
        .where(Alarm.run_id == run_id, func.coalesce(Update.is_live, true()))
    )


def share_solved(score: Any) -> ColumnElement[Any]:
    """Return the share of rows whose score is at least SOLVED."""
    return func.avg(case((score >= SOLVED, 1.0), else_=0.0))


def count_by(
    session: Session,
    column: InstrumentedAttribute[Any] | ColumnElement[Any],
    *where: ColumnExpressionArgument[bool],
) -> dict[Any, int]:
    """Return how many rows have each value of `column`."""
    query = select(column, func.count()).where(*where).group_by(column)
    return {value: number for value, number in session.execute(query)}
