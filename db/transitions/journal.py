"""The journal: sampled steps, stored before their action takes effect, until the body is stored.

    append_steps ─▶ rows of an attempt ─ its worker dies, or gives it back ─▶ former_steps
                          └─ the body is stored, or the attempt fails ─▶ deleted

Only the attempt that a row of `episodes` names may append, under its own fence. A statement of a
former attempt that was on its way when the episode moved on commits rows that no chain leads to.
"""

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from sqlalchemy import Table, and_, bindparam, delete, exists, or_, select, text
from sqlalchemy.dialects import sqlite
from sqlalchemy.orm import Session

from agentrl.core.types import GROUP_OPEN, EpisodeState
from agentrl.db.columns import columns_of
from agentrl.db.models import Episode, Group, JournaledStep, StoredTrajectory
from agentrl.db.store import now

AT_ONCE = 500  # ids of one statement

_JOURNAL, _EPISODES = cast(Table, JournaledStep.__table__), cast(Table, Episode.__table__)
RUNNING_ATTEMPTS = select(_EPISODES.c.episode_id, _EPISODES.c.fence, _EPISODES.c.started_at).where(
    _EPISODES.c.episode_id.in_(bindparam("ids", expanding=True)),
    _EPISODES.c.state == EpisodeState.RUNNING,
)
_ROW: dict[str, Any] = {column.name: bindparam(column.name) for column in _JOURNAL.c}
INSERT = sqlite.insert(_JOURNAL).values(_ROW | {"written_at": now()}).on_conflict_do_nothing()
# On Postgres one statement with one parameter: each further one costs a worker processor time.
APPEND = text("""
WITH owned AS (
  SELECT s.* FROM json_to_recordset(CAST(:steps AS json)) AS s (
    episode_id text, fence integer, number integer, parent_fence integer, attempt integer,
    run_id text, body text, started_at double precision)
  JOIN episodes e USING (episode_id, fence, started_at)
  WHERE e.state = 'running'),
appended AS (
  INSERT INTO journal (
    episode_id, fence, number, parent_fence, attempt, run_id, body, written_at)
  SELECT episode_id, fence, number, parent_fence, attempt, run_id, decode(body, 'base64'),
         extract(epoch from clock_timestamp())
  FROM owned ON CONFLICT DO NOTHING)
SELECT episode_id, fence, started_at FROM owned
""")


@dataclass(frozen=True, slots=True)
class NewStep:
    """A step to append. `started_at`: of its attempt, as in the row of its episode.

    `parent_fence`: of the attempt that stored the previous step; None: it is the first.
    """

    episode_id: str
    fence: int
    number: int
    parent_fence: int | None
    attempt: int
    run_id: str
    body: bytes
    started_at: float | None


@dataclass(frozen=True, slots=True)
class FormerStep:
    """A stored step of a former attempt."""

    fence: int
    number: int
    parent_fence: int | None
    attempt: int
    body: bytes


def append_steps(session: Session, steps: Sequence[NewStep]) -> set[tuple[str, int]]:
    """Append steps of attempts that own their episodes; safe to repeat.

    Returns the (episode_id, fence) of attempts that do not; nothing of them is stored.
    """
    named = {(step.episode_id, step.fence, step.started_at) for step in steps}
    if session.get_bind().dialect.name == "postgresql":
        encoded = msgspec.json.encode(steps).decode()  # bodies in base64
        owned = {tuple(row) for row in session.execute(APPEND, {"steps": encoded})}
    else:
        owned = _append_owned(session, steps)
    return {(episode_id, fence) for episode_id, fence, _ in named - owned}


def former_steps(session: Session, episode_id: str, fence: int) -> list[FormerStep] | None:
    """Return the steps that the attempt before `fence` stored or continued, in order.

    Empty: there are none. None: the chain has a gap.
    """
    query = (
        select(*columns_of(FormerStep, JournaledStep))
        .where(JournaledStep.episode_id == episode_id, JournaledStep.fence < fence)
        .order_by(JournaledStep.fence, JournaledStep.number)
    )
    return chain([FormerStep(*row) for row in session.execute(query)])


def chain(rows: Sequence[FormerStep]) -> list[FormerStep] | None:
    """Return the steps that lead to the newest one of the newest attempt; None: one is missing.

    `rows`: sorted by fence, then number.
    """
    if not rows:
        return []
    by_key = {(row.fence, row.number): row for row in rows}
    found = [rows[-1]]
    while found[-1].parent_fence is not None:
        parent = by_key.get((found[-1].parent_fence, found[-1].number - 1))
        if parent is None or parent.fence > found[-1].fence:
            return None
        found.append(parent)
    found.reverse()
    return found if found[0].number == 0 else None


def forget_former(session: Session, episode_id: str, fence: int, started_at: float | None) -> None:
    """Delete what attempts before this one stored, if it still owns the episode."""
    owns = exists().where(
        Episode.episode_id == episode_id,
        Episode.fence == fence,
        Episode.started_at == started_at,
        Episode.state == EpisodeState.RUNNING,
    )
    session.execute(
        delete(JournaledStep)
        .where(JournaledStep.episode_id == episode_id, JournaledStep.fence < fence, owns)
        .execution_options(synchronize_session=False)
    )


def forget_episodes(session: Session, episode_ids: Collection[str]) -> None:
    """Delete all steps of episodes."""
    ids = sorted(episode_ids)
    for start in range(0, len(ids), AT_ONCE):
        session.execute(
            delete(JournaledStep)
            .where(JournaledStep.episode_id.in_(ids[start : start + AT_ONCE]))
            .execution_options(synchronize_session=False)
        )


def forget_run(session: Session, run_id: str) -> None:
    """Delete all steps of a run that is over."""
    session.execute(
        delete(JournaledStep)
        .where(JournaledStep.run_id == run_id)
        .execution_options(synchronize_session=False)
    )


def prune(session: Session, run_id: str) -> int:
    """Delete steps of episodes that no attempt can continue; return how many.

    These are the ended ones, without those whose body may have to be played again.
    """
    stored = exists().where(
        StoredTrajectory.episode_id == Episode.episode_id,
        StoredTrajectory.fence == Episode.fence,
    )
    unstored = and_(Episode.state == EpisodeState.FINISHED, Group.state.in_(GROUP_OPEN), ~stored)
    needed = (
        exists()
        .where(
            Episode.episode_id == JournaledStep.episode_id,
            Group.group_id == Episode.group_id,
            or_(Episode.state.in_([EpisodeState.QUEUED, EpisodeState.RUNNING]), unstored),
        )
        .correlate(JournaledStep)
    )
    result = session.execute(
        delete(JournaledStep)
        .where(JournaledStep.run_id == run_id, ~needed)
        .execution_options(synchronize_session=False)
    )
    return cast(Any, result).rowcount or 0


def _append_owned(session: Session, steps: Sequence[NewStep]) -> set[tuple[Any, ...]]:
    """Append the steps of attempts that own their episodes, and return these attempts."""
    ids = sorted({step.episode_id for step in steps})
    owned = {tuple(row) for row in session.execute(RUNNING_ATTEMPTS, {"ids": ids})}
    rows = [
        {name: value for name, value in dataclasses.asdict(step).items() if name != "started_at"}
        for step in steps
        if (step.episode_id, step.fence, step.started_at) in owned
    ]
    if rows:
        session.execute(INSERT, rows)
    return owned
