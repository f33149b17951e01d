"""The journal: sampled steps, stored before their action takes effect, until the body is stored.

    append_steps ─▶ rows of an attempt ─ its worker dies, or gives it back ─▶ former_steps
                          └─ the body is stored, or the attempt fails ─▶ deleted

Only the attempt that a row of `episodes` names may append, under its own fence. A statement of a
former attempt that was on its way when the episode moved on commits rows that no chain leads to.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from sqlalchemy import CursorResult, and_, delete, exists, or_, select, text
from sqlalchemy.orm import Session

from agentrl.core.types import GROUP_OPEN, EpisodeState
from agentrl.db.models.episodes import Episode, Group, JournaledStep, StoredTrajectory
from agentrl.db.query_parts import columns_of, same_attempt
from agentrl.db.transitions import refusals

AT_ONCE = 500  # ids of one statement


# One statement for all steps, with one parameter: each further one costs a worker processor time.
APPEND_ON_POSTGRES = text("""
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
# One statement for each step, which appends nothing where its attempt does not own the episode.
APPEND_ON_SQLITE = text("""
INSERT INTO journal (
  episode_id, fence, number, parent_fence, attempt, run_id, body, written_at)
SELECT :episode_id, :fence, :number, :parent_fence, :attempt, :run_id, :body,
       (julianday('now') - 2440587.5) * 86400.0
FROM episodes
WHERE episode_id = :episode_id AND fence = :fence AND started_at = :started_at
      AND state = 'running'
ON CONFLICT DO NOTHING
""").execution_options(preserve_rowcount=True)


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
    if not steps:
        return set()
    named = {(step.episode_id, step.fence, step.started_at) for step in steps}
    if session.get_bind().dialect.name == "postgresql":
        encoded = msgspec.json.encode(steps).decode()  # bodies in base64
        owned = {tuple(row) for row in session.execute(APPEND_ON_POSTGRES, {"steps": encoded})}
    else:
        rows = [{name: getattr(step, name) for name in NewStep.__slots__} for step in steps]
        appended = cast(CursorResult[Any], session.execute(APPEND_ON_SQLITE, rows)).rowcount
        owned = named if appended == len(steps) else _owned(session, named)
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


def forget_former(
    session: Session, episode_id: str, fence: int, started_at: float | None, *, why: str
) -> None:
    """Delete what attempts before this one stored, if it still owns the episode.

    `why` the attempt does not continue it becomes a row of `refusals`.
    """
    owns = exists().where(
        Episode.episode_id == episode_id,
        Episode.fence == fence,
        Episode.started_at == started_at,
        Episode.state == EpisodeState.RUNNING,
    )
    result = session.execute(
        delete(JournaledStep)
        .where(JournaledStep.episode_id == episode_id, JournaledStep.fence < fence, owns)
        .execution_options(synchronize_session=False)
    )
    if cast(CursorResult[Any], result).rowcount:
        refusals.of_continuation(session, episode_id, fence, why)


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
    stored = exists().where(same_attempt(StoredTrajectory, Episode))
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


def _owned(session: Session, attempts: Collection[tuple[str, int, Any]]) -> set[tuple[Any, ...]]:
    """Return the attempts that own these episodes now."""
    query = select(Episode.episode_id, Episode.fence, Episode.started_at).where(
        Episode.episode_id.in_({episode_id for episode_id, _, _ in attempts}),
        Episode.state == EpisodeState.RUNNING,
    )
    return {tuple(row) for row in session.execute(query)}
