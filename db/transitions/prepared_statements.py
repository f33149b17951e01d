"""Statements that run for every episode, compiled once on tables instead of ORM classes.

An ORM update takes several times as long to compile at each execution. These statements do not
flush the session.
"""

from collections.abc import Iterable
from typing import Any, cast

from sqlalchemy import (
    Float,
    Integer,
    Select,
    Table,
    Update,
    bindparam,
    exists,
    literal_column,
    select,
    update,
)
from sqlalchemy.sql.dml import ReturningUpdate

from agentrl.core.types import EpisodeState, RunState
from agentrl.db.models.episodes import Episode, Group
from agentrl.db.models.runs import Run
from agentrl.db.store import now

_EPISODES, _GROUPS = cast(Table, Episode.__table__), cast(Table, Group.__table__)
_AT = _EPISODES.c
_OURS = (_AT.episode_id == bindparam("claimed"), _AT.fence == bindparam("of_fence"))

# queued → running; of `claimed`, `of_fence`, `by` (the worker) and `deadline_s`
CLAIM: ReturningUpdate[Any] = (
    update(_EPISODES)
    .where(
        *_OURS,
        _AT.state == EpisodeState.QUEUED,
        exists().where(Run.run_id == _AT.run_id, Run.state == RunState.RUNNING),
    )
    .values(
        state=EpisodeState.RUNNING,
        worker_id=bindparam("by"),
        attempts=_AT.attempts + 1,
        started_at=now(),
        due_at=now() + bindparam("deadline_s", type_=Float(53)),
    )
    .returning(
        _AT.group_id,
        _AT.member,
        _AT.task,
        _AT.item_id,
        _AT.attempts,
        _AT.started_at,
        now() - _AT.queued_at,
        # by hand: for SQLite SQLAlchemy leaves tables' names out here, and group_id = group_id
        literal_column(
            "(SELECT g.horizon FROM groups g WHERE g.group_id = episodes.group_id)", Integer
        ),
    )
)

# The lock of group `held`, and one of its members less that is open
HOLD: Select[Any] = (
    select(_GROUPS.c.group_id).where(_GROUPS.c.group_id == bindparam("held")).with_for_update()
)
ENDED: ReturningUpdate[Any] = (
    update(_GROUPS)
    .where(_GROUPS.c.group_id == bindparam("held"))
    .values(pending=_GROUPS.c.pending - 1)
    .returning(_GROUPS.c.pending)
)


def finish(columns: Iterable[str]) -> Update:
    """running → finished; of `claimed`, `of_fence`, `began`, `body_timeout_s`, `of_` each column.

    `began`: when the attempt was claimed; a database that lost commits may issue its fence again.
    """
    parameters = {name: bindparam(f"of_{name}", type_=_AT[name].type) for name in columns}
    return (
        update(_EPISODES)
        .where(
            *_OURS,
            _AT.state == EpisodeState.RUNNING,
            _AT.started_at == bindparam("began", type_=_AT.started_at.type),
        )
        .values(
            state=EpisodeState.FINISHED,
            reason=None,
            ended_at=now(),
            due_at=now() + bindparam("body_timeout_s", type_=Float(53)),
            **parameters,
        )
    )
