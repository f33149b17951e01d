"""Which episodes are due: to be sent, to be given up, or to lose their body.

The dispatcher asks at every tick; `episodes.py` has the transitions that follow.
"""

from sqlalchemy import exists, func, or_, select, update
from sqlalchemy.orm import Session

from agentrl.core.types import GROUP_OPEN, EpisodeState, Reason
from agentrl.db.models.episodes import Episode, Group, StoredTrajectory
from agentrl.db.models.processes import Worker
from agentrl.db.models.runs import Run
from agentrl.db.query_parts import same_attempt
from agentrl.db.store import now
from agentrl.db.transitions.episodes import NEVER_SENT, ClaimedEpisode


def due_to_send(
    session: Session, run_id: str, *, claim_timeout_s: float, again: bool = True, limit: int = 500
) -> list[tuple[str, int]]:
    """Return queued episodes to send now, as (episode_id, fence); due again after
    `claim_timeout_s`.

    Without `again`, only those never sent with their fence.
    """
    at = select(now()).scalar_subquery()  # asked once, so that the index is read up to it
    query = (
        select(Episode.episode_id, Episode.fence)
        .where(
            Episode.run_id == run_id,
            Episode.state == EpisodeState.QUEUED,
            Episode.due_at <= at if again else Episode.due_at == NEVER_SENT,
        )
        .order_by(Episode.due_at, Episode.queued_at)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    rows = [(row.episode_id, row.fence) for row in session.execute(query)]
    if rows:
        session.execute(
            update(Episode)
            .where(Episode.episode_id.in_([episode_id for episode_id, _ in rows]))
            .values(due_at=now() + claim_timeout_s)
        )
    return rows


def expired_attempts(
    session: Session, run_id: str, *, limit: int = 200
) -> list[tuple[ClaimedEpisode, Reason]]:
    """Return running attempts past their deadline (timeout) or with an expired worker (lost).

    The rows of such workers are written first, like a heartbeat: a database that takes no writes
    raises here, so its workers, which cannot renew their leases, are not taken for lost.
    """
    dead = or_(Worker.worker_id.is_(None), Worker.lease_until < now(), Worker.ended_at.is_not(None))
    query = (
        select(Episode, dead.label("lost"))
        .outerjoin(Worker, Worker.worker_id == Episode.worker_id)
        .where(
            Episode.run_id == run_id,
            Episode.state == EpisodeState.RUNNING,
            or_(Episode.due_at < now(), dead),
        )
        .order_by(Episode.group_id)
        .limit(limit)
    )
    found = session.execute(query).all()
    workers = sorted({episode.worker_id for episode, lost in found if lost and episode.worker_id})
    if workers:
        session.execute(
            update(Worker)
            .where(Worker.worker_id.in_(workers))
            .values(lease_until=Worker.lease_until)
            .execution_options(synchronize_session=False)
        )
        found = session.execute(query).all()
    return [
        (ClaimedEpisode.of(episode), Reason.LOST if lost else Reason.TIMEOUT)
        for episode, lost in found
    ]


def bodies_overdue(session: Session, run_id: str, *, limit: int = 200) -> list[ClaimedEpisode]:
    """Return finished members of open groups whose body is overdue and will not arrive.

    A recorder that is unavailable or behind may still bring it, so a body is lost only after the
    recorder has stored everything published until the episode's end. A recorder of an older version
    does not report its progress: then only the deadline decides. A group that the trainer holds
    needs no body.
    """
    stored = exists().where(
        same_attempt(StoredTrajectory, Episode),
        StoredTrajectory.sha256 == Episode.body_sha256,
    )
    query = (
        select(Episode)
        .join(Group, Group.group_id == Episode.group_id)
        .join(Run, Run.run_id == Episode.run_id)
        .where(
            Episode.run_id == run_id,
            Episode.state == EpisodeState.FINISHED,
            Episode.due_at < now(),
            or_(Run.recorded_until == 0.0, Episode.ended_at < Run.recorded_until),
            func.coalesce(Group.taken_epoch, -1) != Run.trainer_epoch,
            Group.run_id == run_id,  # of an index that open groups are found by
            Group.state.in_(GROUP_OPEN),
            ~stored,
        )
        .order_by(Episode.group_id)
        .limit(limit)
    )
    return [ClaimedEpisode.of(episode) for episode in session.scalars(query)]
