"""Parts of queries: a dataclass's columns, the rows of an attempt, counts, shares of successes."""

from dataclasses import fields
from typing import Any

from sqlalchemy import ColumnElement, and_, case, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from agentrl.core.types import SOLVED
from agentrl.db.models.base import Base


def columns_of(kind: type[Any], model: type[Base], **others: Any) -> list[Any]:
    """Return a column of `model` for each field of a dataclass, in order.

    `others`: expressions of the fields that are no column of this name.
    """
    names = [field.name for field in fields(kind)]
    return [others[name] if name in others else getattr(model, name) for name in names]


def same_attempt(one: Any, other: Any) -> ColumnElement[bool]:
    """Return the condition that rows of two tables belong to the same attempt of an episode."""
    return and_(one.episode_id == other.episode_id, one.fence == other.fence)


def share_solved(score: Any) -> ColumnElement[Any]:
    """Return the share of rows whose score is at least SOLVED."""
    return func.avg(case((score >= SOLVED, 1.0), else_=0.0))


def count_by(
    session: Session,
    column: InstrumentedAttribute[Any] | ColumnElement[Any],
    *where: ColumnElement[bool],
) -> dict[Any, int]:
    """Return how many rows have each value of `column`."""
    query = select(column, func.count()).where(*where).group_by(column)
    return {value: number for value, number in session.execute(query)}
