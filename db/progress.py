"""How a run goes: the questions that live views and reports ask."""

from dataclasses import dataclass

from sqlalchemy import ColumnElement, ScalarSelect, case, func, select, text
from sqlalchemy.orm import Session

from core.types import CURRENT, SOLVED, EpisodeState, GroupState, UpdateState
from db.models import Episode, Group, Run, Step, Update, UpdateGroup
from db.store import now

SUCCESS = func.avg(case((Episode.score >= SOLVED, 1.0), else_=0.0))


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts of a run. `seconds`: since it was made, or from then to its end."""

    state: str
    version: int
    updates: int
    episodes: int
    loss_tokens: int
    seconds: float


def totals(session: Session, run_id: str) -> Totals:
    """Counts of a run that exists."""
    run = session.get_one(Run, run_id, populate_existing=True)
    finished, tokens = session.execute(
        select(func.count(), func.coalesce(func.sum(Episode.loss_tokens), 0)).where(
            Episode.run_id == run_id, Episode.state == EpisodeState.FINISHED
        )
    ).one()
    committed = session.scalar(
        select(func.count()).where(Update.run_id == run_id, Update.state != UpdateState.ROLLED_BACK)
    )
    end = run.ended_at or session.scalar(select(now())) or run.created_at
    return Totals(
        run.state, run.version, committed or 0, finished, int(tokens or 0), end - run.created_at
    )


def hours(session: Session, run_id: str) -> float:
    """Hours since the run was made."""
    return totals(session, run_id).seconds / 3600


def recent_success(session: Session, run_id: str, updates: int) -> dict[str, float]:
    """Success by task over the groups closed since the last `updates` updates began."""
    query = (
        select(Group.task, SUCCESS)
        .join(Episode, Episode.group_id == Group.group_id)
        .where(
            Group.run_id == run_id,
            Group.closed_at >= _began(run_id, updates),
            Episode.state == EpisodeState.FINISHED,
        )
        .group_by(Group.task)
    )
    return {task: float(success) for task, success in session.execute(query)}


def recent_groups(session: Session, run_id: str, updates: int) -> int:
    """How many groups were trained or had no spread since the last `updates` updates began."""
    query = select(func.count()).where(
        Group.run_id == run_id,
        Group.closed_at >= _began(run_id, updates),
        Group.state.in_([GroupState.TRAINED, GroupState.FILTERED]),
    )
    return session.scalar(query) or 0


def _began(run_id: str, updates: int) -> ColumnElement[float]:
    """When the last `updates` updates began; 0 before the first."""
    since = (
        select(func.min(Update.started_at))
        .where(
            Update.run_id == run_id,
            Update.version > _version(run_id) - updates,
            Update.state != UpdateState.ROLLED_BACK,
        )
        .scalar_subquery()
    )
    return func.coalesce(since, 0.0)


def success_over_time(
    session: Session, run_id: str, bins: int
) -> list[tuple[int, str, float, int]]:
    """(bin, task, success, episodes) of all finished episodes, by when they ended; bins 0…n-1."""
    query = (
        select(Episode.ended_at, Episode.task, Episode.score)
        .where(Episode.run_id == run_id, Episode.state == EpisodeState.FINISHED)
        .order_by(Episode.ended_at)
    )
    ended = [
        (e or 0.0, task, (score or 0.0) >= SOLVED) for e, task, score in session.execute(query)
    ]
    if not ended:
        return []
    first, width = ended[0][0], max((ended[-1][0] - ended[0][0]) / bins, 1e-6)
    cells: dict[tuple[int, str], list[bool]] = {}
    for ended_at, task, won in ended:
        cells.setdefault((min(int((ended_at - first) / width), bins - 1), task), []).append(won)
    return [(b, task, sum(won) / len(won), len(won)) for (b, task), won in sorted(cells.items())]


def policy_mix(session: Session, run_id: str) -> dict[str, int]:
    """Steps sampled by each track; the lagged ones under one name."""
    track = case((Step.track.like("lagged%"), "lagged"), else_=Step.track)
    query = select(track, func.count()).where(Step.run_id == run_id).group_by(track)
    return {str(name): steps for name, steps in session.execute(query)}


def groups_by_state(session: Session, run_id: str) -> dict[str, int]:
    """How many groups are in each state."""
    query = select(Group.state, func.count()).where(Group.run_id == run_id).group_by(Group.state)
    return {str(state): count for state, count in session.execute(query)}


def _version(run_id: str) -> ScalarSelect[int]:
    return select(Run.version).where(Run.run_id == run_id).scalar_subquery()


def staleness(session: Session, run_id: str) -> dict[str, float]:
    """Mean updates between sampling and learning of the latest batch's steps, fresh and lagged."""
    lagged = case((Step.track == CURRENT, "fresh"), else_="lagged")
    query = (
        select(lagged, func.avg(Update.version - 1 - Step.version))
        .select_from(Update)
        .join(UpdateGroup, UpdateGroup.update_id == Update.update_id)
        .join(
            Step,
            (Step.episode_id == UpdateGroup.episode_id) & (Step.fence == UpdateGroup.fence),
        )
        .where(Update.run_id == run_id, Update.version == _version(run_id))
        .where(Update.state != UpdateState.ROLLED_BACK, Step.version >= 0)
        .group_by(lagged)
    )
    return {name: float(mean) for name, mean in session.execute(query)}


def disagreements(session: Session, run_id: str) -> list[tuple[str, str]]:
    """(kind, detail) of every row of the accounting view, and steps no live policy explains."""
    rows = session.execute(
        text("SELECT kind, detail FROM accounting WHERE run_id = :run_id"), {"run_id": run_id}
    )
    found = [(str(kind), str(detail)) for kind, detail in rows]
    unserved = session.execute(
        text("SELECT episode_id, number FROM unserved_steps WHERE run_id = :run_id"),
        {"run_id": run_id},
    )
    return found + [("unserved_step", f"{episode} step {number}") for episode, number in unserved]
