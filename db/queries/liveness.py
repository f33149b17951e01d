"""Liveness and progress of a run's processes, for `agentrl chaos`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, case, false, func, or_, select
from sqlalchemy.orm import Session

from agentrl.core.types import EpisodeState, UpdateState
from agentrl.db.models.episodes import Episode, Group, Step, StoredTrajectory
from agentrl.db.models.processes import PolicyServer, Serving, Worker
from agentrl.db.models.runs import Run
from agentrl.db.models.updates import Update
from agentrl.db.query_parts import is_live, same_attempt
from agentrl.db.store import read_clock

ROLES = ("worker", "policy", "trainer", "dispatcher", "recorder", "envs")
Attempt = tuple[str, int]  # episode_id, fence
Claim = tuple[str, int, str]  # and the hash of the body that its row names


@dataclass(frozen=True, slots=True)
class Liveness:
    """The state of a run. `clock`: the database's, in seconds. `workers`: worker_id of live workers
    by pid.

    `epoch`: of the trainer that may commit. `committed_epoch`: of the last commit. `rolled_back`:
    updates. `replays`: failed or abandoned attempts. `servers`: (server_id, url) of the last
    registered server by name. `movement` changes with every change of an episode, a group, a body,
    an update or a serving row; heartbeats do not change it.
    """

    clock: float
    state: str
    version: int
    epoch: int
    committed_epoch: int
    dispatcher: str
    workers: Mapping[int, str]
    servers: Mapping[str, tuple[str, str]]
    movement: tuple[Any, ...]
    rolled_back: int = 0
    replays: int = 0


def read_liveness(session: Session, run_id: str) -> Liveness:
    """Return the state of an existing run."""
    run = session.get_one(Run, run_id, populate_existing=True)
    workers = select(Worker.pid, Worker.worker_id).where(is_live(Worker, run_id))
    servers = (
        select(PolicyServer.name, PolicyServer.server_id, PolicyServer.url)
        .where(PolicyServer.run_id == run_id, PolicyServer.url != "")
        .order_by(PolicyServer.started_at)
    )
    newest = (
        select(Update.trainer_epoch)
        .where(Update.run_id == run_id)
        .order_by(Update.committed_at.desc())
        .limit(1)
    )
    return Liveness(
        clock=read_clock(session),
        state=run.state,
        version=run.version,
        epoch=run.trainer_epoch,
        committed_epoch=session.scalar(newest) or 0,
        dispatcher=run.dispatcher,
        workers={pid: worker_id for pid, worker_id in session.execute(workers)},
        servers={name: (server_id, url) for name, server_id, url in session.execute(servers)},
        movement=_movement(session, run_id),
        rolled_back=session.scalar(_rolled_back(run_id)) or 0,
        replays=session.scalar(_replays(run_id)) or 0,
    )


def _rolled_back(run_id: str) -> Select[Any]:
    state = UpdateState.ROLLED_BACK
    return select(func.count()).where(Update.run_id == run_id, Update.state == state)


def _replays(run_id: str) -> Select[Any]:
    """Count repeated attempts, and last attempts of failed episodes."""
    failed = case((Episode.state == EpisodeState.FAILED, 1), else_=0)
    return select(func.sum(Episode.fence - 1 + failed)).where(Episode.run_id == run_id)


def claims_without_body(session: Session, run_id: str) -> set[Claim]:
    """Return finished episodes whose body is not stored."""
    rows = session.execute(_without_body(run_id, EpisodeState.FINISHED))
    return {(episode, fence, sha256 or "") for episode, fence, sha256 in rows}


def attempts_without_body(session: Session, run_id: str) -> set[Attempt]:
    """Return attempts that run, or have finished, and whose body is not stored."""
    rows = session.execute(_without_body(run_id, EpisodeState.RUNNING, EpisodeState.FINISHED))
    return {(episode, fence) for episode, fence, _ in rows}


def _without_body(run_id: str, *states: EpisodeState) -> Select[str, int, str | None]:
    return (
        select(Episode.episode_id, Episode.fence, Episode.body_sha256)
        .outerjoin(StoredTrajectory, same_attempt(StoredTrajectory, Episode))
        .where(
            Episode.run_id == run_id,
            Episode.state.in_(states),
            StoredTrajectory.episode_id.is_(None),
        )
    )


def body_sizes(session: Session, run_id: str) -> list[int]:
    """Return the size of every stored body in bytes."""
    query = select(func.length(StoredTrajectory.body)).where(StoredTrajectory.run_id == run_id)
    return [int(size) for size in session.scalars(query)]


def steps_between(session: Session, run_id: str, times: Sequence[tuple[float, float]]) -> set[str]:
    """Return steps that were requested in one of the periods, named as in the audit."""
    within = [Step.requested_at.between(first, last) for first, last in times]
    query = select(Step.episode_id, Step.number).where(Step.run_id == run_id, or_(false(), *within))
    return {f"{episode_id} step {number}" for episode_id, number in session.execute(query)}


def first_work(
    session: Session, run_id: str, role: str, since: float, who: str = ""
) -> float | None:
    """Return when the role first made progress after `since` (database clock); None: not yet.

    role: worker (an episode finished by `who`), policy (a step sampled by `who`), trainer (an
    update), dispatcher (an admitted group), recorder (a stored body), envs (an episode begun after
    `since` and finished), or any of them. `who`: worker_id or server_id; empty: any.
    """
    roles = ROLES if role == "any" else (role,)
    found = [session.scalar(_work(run_id, each, since, who)) for each in roles]
    return min((at for at in found if at is not None), default=None)


def _work(run_id: str, role: str, since: float, who: str) -> Select[Any]:
    finished = select(func.min(Episode.ended_at)).where(
        Episode.run_id == run_id, Episode.state == EpisodeState.FINISHED, Episode.ended_at > since
    )
    match role:
        case "worker":
            return finished.where(Episode.worker_id == who) if who else finished
        case "envs":
            return finished.where(Episode.started_at > since)
        case "policy":
            sampled = select(func.min(Step.requested_at + Step.policy_s)).where(
                Step.run_id == run_id, Step.requested_at > since
            )
            return sampled.where(Step.server_id == who) if who else sampled
        case "trainer":
            return select(func.min(Update.committed_at)).where(
                Update.run_id == run_id, Update.committed_at > since
            )
        case "dispatcher":
            return select(func.min(Group.admitted_at)).where(
                Group.run_id == run_id, Group.admitted_at > since
            )
        case "recorder":
            return select(func.min(StoredTrajectory.received_at)).where(
                StoredTrajectory.run_id == run_id, StoredTrajectory.received_at > since
            )
    raise ValueError(f"no role {role}")


def _movement(session: Session, run_id: str) -> tuple[Any, ...]:
    """Return counts that change only with progress."""
    queries = (
        select(func.count(), func.sum(Episode.fence), func.sum(Episode.attempts)).where(
            Episode.run_id == run_id
        ),
        select(Episode.state, func.count())
        .where(Episode.run_id == run_id)
        .group_by(Episode.state)
        .order_by(Episode.state),
        select(Group.state, func.count())
        .where(Group.run_id == run_id)
        .group_by(Group.state)
        .order_by(Group.state),
        select(func.count()).where(StoredTrajectory.run_id == run_id),
        select(func.count()).where(Update.run_id == run_id),
        select(func.count(), func.count(Serving.live_until)).where(Serving.run_id == run_id),
    )
    return tuple(tuple(map(tuple, session.execute(query).all())) for query in queries)
