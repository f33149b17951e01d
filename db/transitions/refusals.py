"""What was refused: transitions that came too late, or never should have come, each a row.

    a compare-and-set that changed nothing ─▶ `refusals` ─▶ view `refused_transitions` (counts)

Rows are only added, so that counting takes no lock that a transition could wait for. In a sound run
they are late duplicates and attempts that were given up; accounting tells whether any did harm.
"""

from collections.abc import Sequence

from sqlalchemy import Integer, SelectBase, delete, insert, literal, null, select
from sqlalchemy.orm import Session

from agentrl.core.types import Transition
from agentrl.db.models import Episode, Group, Refusal, Run
from agentrl.db.store import now

KEPT = 10_000  # rows of a run; the dispatcher removes older ones
COLUMNS = ("run_id", "transition", "subject", "fence", "found", "found_fence", "refused_at")


def of_episode(session: Session, transition: Transition, episode_id: str, fence: int) -> None:
    """An attempt's move that its row did not allow; an id that no row has belongs to no run."""
    found = select(
        Episode.run_id,
        literal(transition.value),
        Episode.episode_id,
        literal(fence),
        Episode.state,
        Episode.fence,
        now(),
    ).where(Episode.episode_id == episode_id)
    _add(session, found)


def of_groups(session: Session, transition: Transition, group_ids: Sequence[str]) -> None:
    """Groups that were not in the state that the transition begins from."""
    nothing = null().cast(Integer)
    found = select(
        Group.run_id,
        literal(transition.value),
        Group.group_id,
        nothing,
        Group.state,
        nothing,
        now(),
    ).where(Group.group_id.in_(group_ids))
    _add(session, found)


def of_run(session: Session, transition: Transition, run_id: str, found: str, fence: int) -> None:
    """A move of the run or its trainer. `found`: what stood in its way; `fence`: its epoch."""
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
    """Remove all of a run but the latest `kept`."""
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


def _add(session: Session, found: SelectBase) -> None:
    session.execute(insert(Refusal).from_select(list(COLUMNS), found))
