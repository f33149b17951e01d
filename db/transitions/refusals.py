"""Refused transitions: each transition that came too late, or should not have come, is a row.

    a compare-and-set that changed nothing ─▶ `refusals` ─▶ view `refused_transitions` (counts)

Rows are only inserted, so counting takes no lock that a transition could wait for. In a healthy run
they are late duplicates, abandoned attempts, and attempts whose recorded steps could not be
continued; accounting shows whether any did harm.
"""

from collections.abc import Sequence

from sqlalchemy import Integer, SelectBase, delete, insert, literal, null, select
from sqlalchemy.orm import Session

from agentrl.core.types import Transition
from agentrl.db.models.episodes import Episode, Group
from agentrl.db.models.runs import Refusal, Run
from agentrl.db.store import now

KEPT = 10_000  # rows of a run; the dispatcher removes older ones
COLUMNS = ("run_id", "transition", "subject", "fence", "found", "found_fence", "refused_at")


def of_episode(session: Session, transition: Transition, episode_id: str, fence: int) -> None:
    """Record a refused transition of an attempt; an unknown id has no run."""
    refusal = select(
        Episode.run_id,
        literal(transition.value),
        Episode.episode_id,
        literal(fence),
        Episode.state,
        Episode.fence,
        now(),
    ).where(Episode.episode_id == episode_id)
    _add(session, refusal)


def of_continuation(session: Session, episode_id: str, fence: int, why: str) -> None:
    """Record that an attempt could not continue the recorded steps of the ones before it."""
    refusal = select(
        Episode.run_id,
        literal(Transition.CONTINUE.value),
        Episode.episode_id,
        literal(fence),
        literal(why),
        null().cast(Integer),
        now(),
    ).where(Episode.episode_id == episode_id)
    _add(session, refusal)


def of_groups(session: Session, transition: Transition, group_ids: Sequence[str]) -> None:
    """Record groups that were not in the required state."""
    nothing = null().cast(Integer)
    rows = select(
        Group.run_id,
        literal(transition.value),
        Group.group_id,
        nothing,
        Group.state,
        nothing,
        now(),
    ).where(Group.group_id.in_(group_ids))
    _add(session, rows)


def of_run(session: Session, transition: Transition, run_id: str, found: str, fence: int) -> None:
    """Record a refused transition of the run or its trainer. `found`: the state; `fence`: the
    epoch.
    """
    known = select(
        Run.run_id,
        literal(transition.value),
        Run.run_id,
        literal(fence),
        literal(found),
        Run.trainer_epoch,
        now(),
    ).where(Run.run_id == run_id)
    _add(session, known)


def prune(session: Session, run_id: str, *, kept: int = KEPT) -> None:
    """Delete all refusals of a run except the latest `kept`."""
    oldest = session.scalar(
        select(Refusal.refusal_id)
        .where(Refusal.run_id == run_id)
        .order_by(Refusal.refusal_id.desc())
        .offset(kept)
        .limit(1)
    )
    if oldest is not None:
        session.execute(
            delete(Refusal)
            .where(Refusal.run_id == run_id, Refusal.refusal_id <= oldest)
            .execution_options(synchronize_session=False)
        )


def _add(session: Session, rows: SelectBase) -> None:
    session.execute(insert(Refusal).from_select(list(COLUMNS), rows))
