"""Selects the columns that a dataclass names."""

from dataclasses import fields
from typing import Any

from agentrl.db.models import Base


def columns_of(kind: type[Any], model: type[Base], **others: Any) -> list[Any]:
    """Return a column of `model` for each field of a dataclass, in order.

    `others`: expressions of the fields that are no column of this name.
    """
    names = [field.name for field in fields(kind)]
    return [others[name] if name in others else getattr(model, name) for name in names]
