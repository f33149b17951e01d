"""The base class of the tables, and the types of their columns."""

from typing import Any, ClassVar

from sqlalchemy import JSON, BigInteger, Float, Integer, String
from sqlalchemy.orm import DeclarativeBase

from agentrl.core.types import (
    ID_LENGTH,
    CheckpointState,
    EpisodeState,
    GroupState,
    Reason,
    RunState,
    Status,
    Transition,
    UpdateState,
)

Big = BigInteger().with_variant(Integer, "sqlite")


class Base(DeclarativeBase):
    """Enums are kept as their text, so that SQL reads well and old rows outlive new members."""

    type_annotation_map: ClassVar[dict[Any, Any]] = {
        str: String(ID_LENGTH),
        float: Float(53),
        dict[str, Any]: JSON,
        RunState: String(20),
        GroupState: String(20),
        EpisodeState: String(20),
        CheckpointState: String(20),
        UpdateState: String(20),
        Reason: String(40),
        Status: String(20),
        Transition: String(20),
    }
