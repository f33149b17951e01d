"""The balance of a run: admitted groups and episodes by state, failures, refused transitions."""

from dataclasses import dataclass

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from agentrl.core.types import EpisodeState
from agentrl.db.models.episodes import Episode, Group
from agentrl.db.query_parts import count_by
from agentrl.db.store import read_clock

GIVEN_UP = (EpisodeState.FAILED, EpisodeState.CANCELLED)


@dataclass(frozen=True, slots=True)
class Balance:
    """`members`: the sizes of all groups together; there are as many episodes, by state."""

    groups: int
    members: int
    episodes: dict[str, int]


@dataclass(frozen=True, slots=True)
class RefusedCount:
    """Transitions that came too late. `age_s`: seconds since the latest."""

    transition: str
    found: str
    number: int
    age_s: float


def balance(session: Session, run_id: str) -> Balance:
    """Return the balance of the whole run, using its indexes."""
    sizes = select(func.count(), func.coalesce(func.sum(Group.size), 0))
    groups, members = session.execute(sizes.where(Group.run_id == run_id)).one()
    states = count_by(session, Episode.state, Episode.run_id == run_id)
    return Balance(groups, int(members), states)


def failed_counts(session: Session, run_id: str) -> list[tuple[str, str, int, int]]:
    """Return (state, reason, episodes, attempts) of failed or cancelled episodes, most first."""
    query = (
        select(
            Episode.state,
            func.coalesce(Episode.reason, ""),
            func.count(),
            func.sum(Episode.attempts),
        )
        .where(Episode.run_id == run_id, Episode.state.in_(GIVEN_UP))
        .group_by(Episode.state, Episode.reason)
        .order_by(func.count().desc(), Episode.state, Episode.reason)
    )
    return [(str(s), str(r), number, int(n)) for s, r, number, n in session.execute(query)]


def retry_counts(session: Session, run_id: str) -> dict[str, int]:
    """Count repeated attempts by the reason of the former one."""
    return count_by(
        session,
        Episode.reason,
        Episode.run_id == run_id,
        Episode.state.in_([EpisodeState.QUEUED, EpisodeState.RUNNING]),
        Episode.reason.is_not(None),
    )


def refused_counts(session: Session, run_id: str) -> list[RefusedCount]:
    """Return the view `refused_transitions` of a run."""
    rows = session.execute(
        text(
            "SELECT transition, found, number, latest FROM refused_transitions "
            "WHERE run_id = :run_id ORDER BY number DESC, transition, found"
        ),
        {"run_id": run_id},
    ).all()
    clock = read_clock(session)
    return [RefusedCount(row[0], row[1], row[2], max(0.0, clock - row[3])) for row in rows]
