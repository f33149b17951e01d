"""The dispatcher's lease, and what its holder does about lost time.

Deadlines go on only while somebody can meet them: not while the database was away, nor by a jump of
its clock.
"""

from sqlalchemy import case, or_, select, update
from sqlalchemy.orm import Session

from agentrl.core.types import EpisodeState
from agentrl.db.models.episodes import Episode
from agentrl.db.models.processes import PolicyServer, Worker
from agentrl.db.models.runs import Run
from agentrl.db.store import now

STANDSTILL_S = 2.0  # longer than the database takes for a dispatcher's tick
ORDINARY_S = 0.5  # of each standstill counts as passed, so deadlines end even if all ticks are long
CATCH_UP_S = 5.0  # of lease that are enough for its holder to notice that the database is back
BEYOND = 4.0  # lease times; a lease that ends later was taken before the clock went back


def acquire(
    session: Session, run_id: str, owner: str, *, lease_s: float, busy_s: float = 0.0
) -> bool:
    """Take or extend the dispatcher's lease; False while another holds it.

    If no dispatcher held it for more than STANDSTILL_S, deadlines are extended by that time, less
    ORDINARY_S: the database was unavailable, its clock jumped, or no dispatcher ran. If the
    database's clock went back, deadlines are moved back with it, and a lease that ends impossibly
    late is ignored; otherwise dead processes would count as alive until the clock catches up.
    `busy_s`: time that the caller spent on other work, which extends no attempt. Time within a
    transaction is none of it: a database that stood still looks like one that was slow.
    """
    last = select(Run.dispatcher, Run.dispatcher_until, now()).where(Run.run_id == run_id)
    former, until, clock = session.execute(last).one_or_none() or ("", 0.0, 0.0)
    holder = session.scalar(
        update(Run)
        .where(
            Run.run_id == run_id,
            or_(
                Run.dispatcher == owner,
                Run.dispatcher_until < now(),
                Run.dispatcher_until > now() + BEYOND * lease_s,
            ),
        )
        .values(dispatcher=owner, dispatcher_until=now() + lease_s)
        .returning(Run.run_id)
    )
    if holder is None or not until:
        return holder is not None
    since = until - lease_s if former else until  # a lease that was released has no holder
    stood_s = clock - since
    if stood_s < -STANDSTILL_S:
        _move_back(session, run_id, since, -stood_s)
    since, by_s = since + ORDINARY_S, stood_s - ORDINARY_S
    if stood_s > STANDSTILL_S:
        _put_off_leases(session, run_id, since, by_s, most_s=max(lease_s, CATCH_UP_S))
    if stood_s > STANDSTILL_S + busy_s:
        _put_off_deadlines(session, run_id, since, by_s)
    return True


def release(session: Session, run_id: str, owner: str) -> None:
    """Release the dispatcher's lease, so that a successor need not wait."""
    session.execute(
        update(Run)
        .where(Run.run_id == run_id, Run.dispatcher == owner)
        .values(dispatcher="", dispatcher_until=now())
    )


def _move_back(session: Session, run_id: str, since: float, by_s: float) -> None:
    """Move back leases and deadlines that were ahead at `since`, when the clock went back.

    The recorder has to report its progress anew if the clock has not reached it: otherwise a body
    that is still in its queue counts as lost.
    """
    for table, deadline in (
        (Worker, Worker.lease_until),
        (PolicyServer, PolicyServer.lease_until),
        (Episode, Episode.due_at),
    ):
        session.execute(
            update(table)
            .where(table.run_id == run_id, deadline >= since)
            .values({deadline: deadline - by_s})
            .execution_options(synchronize_session=False)
        )
    session.execute(
        update(Run)
        .where(Run.run_id == run_id, Run.recorded_until > now())
        .values(recorded_until=Run.created_at - by_s)
        .execution_options(synchronize_session=False)
    )


def _put_off_leases(
    session: Session, run_id: str, since: float, by_s: float, *, most_s: float
) -> None:
    """Extend leases that were valid at `since` and now end within CATCH_UP_S, or have ended.

    They end at most `most_s` from now, since their holders may have died after `since`.
    """
    for table in (Worker, PolicyServer):
        later, latest = table.lease_until + by_s, now() + most_s
        session.execute(
            update(table)
            .where(
                table.run_id == run_id,
                table.ended_at.is_(None),
                table.lease_until >= since,
                table.lease_until < now() + CATCH_UP_S,
            )
            .values(lease_until=case((later < latest, later), else_=latest))
            .execution_options(synchronize_session=False)
        )


def _put_off_deadlines(session: Session, run_id: str, since: float, by_s: float) -> None:
    """Extend the deadlines that were valid at `since`: of attempts, and of missing bodies.

    An attempt that began, or ended, after `since` has lost only the time from then on.
    """
    for state, began in (
        (EpisodeState.RUNNING, Episode.started_at),
        (EpisodeState.FINISHED, Episode.ended_at),
    ):
        lost_s = since + by_s - case((began > since, began), else_=since)
        session.execute(
            update(Episode)
            .where(Episode.run_id == run_id, Episode.state == state, Episode.due_at >= since)
            .values(due_at=Episode.due_at + lost_s)
            .execution_options(synchronize_session=False)
        )
