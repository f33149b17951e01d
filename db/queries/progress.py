"""Progress of a run, for live views and reports.

Three definitions, the same in every view. Success: the share of finished episodes with a score of
at least SOLVED; recent success: in groups closed since the last RECENT_UPDATES updates began, but
not in cancelled ones, of which only short episodes may be finished. Sampled tokens: what policies
wrote in finished episodes. Trained tokens: those of them that live updates learned from.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ScalarSelect, case, func, select, text
from sqlalchemy.orm import Session

from agentrl.core.types import CURRENT, SOLVED, EpisodeState, GroupState, UpdateState
from agentrl.db.audit.accounting import late_statement
from agentrl.db.audit.trained_hashes import find_different_hashes
from agentrl.db.models.episodes import Episode, Group, Step
from agentrl.db.models.runs import Run
from agentrl.db.models.updates import Update, UpdateGroup
from agentrl.db.query_parts import count_by, same_attempt, share_solved
from agentrl.db.store import read_clock

RECENT_UPDATES = 10  # of recent success, wherever it is shown
PROOFS = ("accounting", "unserved_steps")
IS_SUCCESS = case((Episode.score >= SOLVED, 1), else_=0)


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals of a run. `seconds`: since its creation, or until its end."""

    state: str
    version: int
    updates: int
    episodes: int
    sampled_tokens: int
    trained_tokens: int
    seconds: float


def totals(session: Session, run_id: str) -> Totals:
    """Return the totals of an existing run."""
    run = session.get_one(Run, run_id, populate_existing=True)
    finished, tokens = session.execute(
        select(func.count(), func.coalesce(func.sum(Episode.loss_tokens), 0)).where(
            Episode.run_id == run_id, Episode.state == EpisodeState.FINISHED
        )
    ).one()
    learned = learned_totals(session, run_id)
    return Totals(
        state=run.state,
        version=run.version,
        updates=learned.updates,
        episodes=finished,
        sampled_tokens=int(tokens or 0),
        trained_tokens=learned.trained_tokens,
        seconds=ran_s(session, run),
    )


@dataclass(frozen=True, slots=True)
class LearnedTotals:
    """Totals of the trained data of the live lineage."""

    updates: int
    episodes: int
    trained_tokens: int


def learned_totals(session: Session, run_id: str) -> LearnedTotals:
    """Return the totals of the whole run. A skipped update counts, but has trained nothing."""
    trained = Update.state == UpdateState.COMMITTED
    query = select(
        func.count(),
        func.coalesce(func.sum(case((trained, Update.episodes), else_=0)), 0),
        func.coalesce(func.sum(case((trained, Update.loss_tokens), else_=0)), 0),
    ).where(Update.run_id == run_id, Update.is_live)
    updates, episodes, tokens = session.execute(query).one()
    return LearnedTotals(updates, int(episodes), int(tokens))


def ran_s(session: Session, run: Run) -> float:
    """Return the seconds since the run's creation, or until its end."""
    return (run.ended_at or read_clock(session)) - run.created_at


def hours(session: Session, run_id: str) -> float:
    """Return the hours since the run's creation."""
    created_at = session.scalars(select(Run.created_at).where(Run.run_id == run_id)).one()
    return (read_clock(session) - created_at) / 3600


def recent_success(
    session: Session, run_id: str, updates: int = RECENT_UPDATES
) -> dict[str, float]:
    """Return the success by task in groups closed since the last `updates` updates began.

    Cancelled ones do not count.
    """
    query = (
        select(Group.task, share_solved(Episode.score))
        .join(Episode, Episode.group_id == Group.group_id)
        .where(
            Group.run_id == run_id,
            Group.closed_at >= updates_began(session, run_id, updates),
            Group.state != GroupState.CANCELLED,
            Episode.state == EpisodeState.FINISHED,
        )
        .group_by(Group.task)
    )
    return {task: float(success) for task, success in session.execute(query)}


def percent_by_task(success: Mapping[str, float]) -> str:
    """Return a text such as `alfworld 32.4% · dbbench 50.0%`; empty without a task."""
    return " · ".join(f"{task} {share:.1%}" for task, share in sorted(success.items()))


def recent_groups(session: Session, run_id: str, updates: int) -> int:
    """Count groups that were trained or had no spread since the last `updates` updates began."""
    query = select(func.count()).where(
        Group.run_id == run_id,
        Group.closed_at >= updates_began(session, run_id, updates),
        Group.state.in_([GroupState.TRAINED, GroupState.FILTERED]),
    )
    return session.scalar(query) or 0


def updates_began(session: Session, run_id: str, updates: int = RECENT_UPDATES) -> float:
    """Return when the last `updates` updates began; 0 before the first.

    It is a separate query, so the planner knows how few groups closed since then.
    """
    query = select(func.min(Update.started_at)).where(
        Update.run_id == run_id,
        Update.version > _version(run_id) - updates,
        Update.is_live,
    )
    return session.scalar(query) or 0.0


def policy_mix(session: Session, run_id: str, groups: int | None = None) -> dict[str, int]:
    """Count steps by track; lagged tracks share one name.

    `groups`: only of the groups that closed last; None: of the whole run.
    """
    track = case((Step.track.like("lagged%"), "lagged"), else_=Step.track)
    query = select(track, func.count()).where(Step.run_id == run_id).group_by(track)
    if groups is not None:
        late = (
            select(Group.group_id)
            .where(Group.run_id == run_id, Group.closed_at.is_not(None))
            .order_by(Group.closed_at.desc())
            .limit(groups)
            .subquery()
        )
        query = query.join(Episode, Episode.episode_id == Step.episode_id).join(
            late, late.c.group_id == Episode.group_id
        )
    return {str(name): steps for name, steps in session.execute(query)}


def groups_by_state(session: Session, run_id: str) -> dict[str, int]:
    """Count groups by state."""
    return count_by(session, Group.state, Group.run_id == run_id)


def _version(run_id: str) -> ScalarSelect[int]:
    return select(Run.version).where(Run.run_id == run_id).scalar_subquery()


def staleness(session: Session, run_id: str, *, of_all: bool = False) -> dict[str, float]:
    """Return the mean staleness of the latest batch in updates, fresh and lagged.

    `of_all`: of every batch.
    """
    lagged = case((Step.track == CURRENT, "fresh"), else_="lagged")
    query = (
        select(lagged, func.avg(Update.version - 1 - Step.version))
        .select_from(Update)
        .join(UpdateGroup, UpdateGroup.update_id == Update.update_id)
        .join(Step, same_attempt(Step, UpdateGroup))
        .where(Update.run_id == run_id)
        .where(Update.is_live, Step.version >= 0)
        .group_by(lagged)
    )
    if not of_all:
        query = query.where(Update.version == _version(run_id))
    return {name: float(mean) for name, mean in session.execute(query)}


def disagreements(
    session: Session, run_id: str, groups: int | None = None
) -> list[tuple[str, str]]:
    """Return (kind, detail) of the accounting view, and of steps without a serving row.

    `groups`: only open work and the groups that closed last. None: the whole run, with a
    recomputation of every checkpoint's running hash.
    """
    values: dict[str, Any] = {"run_id": run_id}
    if groups is None:
        whole_run = "SELECT * FROM {} WHERE run_id = :run_id"
        named = [text(whole_run.format(view)) for view in PROOFS]
    else:
        named = [late_statement(view, session.connection()) for view in PROOFS]
        values["since"] = _closed_last(session, run_id, groups)
    disagree, unserved = (session.execute(each, values).all() for each in named)
    rows = [(row.kind, row.detail) for row in disagree]
    rows += [("unserved_step", f"{row.episode_id} step {row.number}") for row in unserved]
    if groups is None:
        rows += [("trained_hash_differs", each) for each in find_different_hashes(session, run_id)]
    return rows


def _closed_last(session: Session, run_id: str, groups: int) -> float:
    """Return when the group before the last ones closed; 0: there is none."""
    query = (
        select(Group.closed_at)
        .where(Group.run_id == run_id, Group.closed_at.is_not(None))
        .order_by(Group.closed_at.desc())
        .offset(groups)
        .limit(1)
    )
    return session.scalar(query) or 0.0
