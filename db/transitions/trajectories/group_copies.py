"""Copies of finished groups in another run: the same episodes, with bodies and rewards of its own.

original group ─▶ group (ready) ─ episodes ─┬─ trajectories   the copy's bodies, with its ids
                                            └─ steps          as sampled: checkpoints, times
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, inspect, select
from sqlalchemy.orm import Session

from agentrl.core.errors import StoreError
from agentrl.core.types import RESCORING, TRAINABLE, EpisodeState, GroupState, RunState
from agentrl.db.models.base import Base
from agentrl.db.models.episodes import Episode, Group
from agentrl.db.models.runs import Run
from agentrl.db.store import read_clock
from agentrl.db.transitions.trajectories import bodies
from agentrl.db.transitions.trajectories.bodies import Rows
from agentrl.db.transitions.updates import ReadyMember


@dataclass(frozen=True, slots=True)
class GroupCopy:
    """A copy to insert into the run `run_id`. `source_id`: the group whose rows are copied.

    `batch`: see `Group`. `round`: of its position. `rewards`, `hashes`: of the copied bodies, by
    member. `bodies`, `steps`: their rows.
    """

    run_id: str
    source_id: str
    batch: int
    round: int
    rewards: Mapping[int, float]
    hashes: Mapping[int, str]
    bodies: Rows
    steps: Rows


def trainable_members(session: Session, group_id: str) -> Sequence[ReadyMember]:
    """Return the finished members of a group that may be trained, with their bodies' hashes."""
    query = (
        select(Episode)
        .where(
            Episode.group_id == group_id,
            Episode.state == EpisodeState.FINISHED,
            Episode.status.in_(TRAINABLE),
        )
        .order_by(Episode.member)
    )
    return [
        ReadyMember(row.episode_id, group_id, row.task, row.fence, row.body_sha256 or "")
        for row in session.scalars(query)
    ]


def copied_id(run_id: str, source: Group, round: int) -> str:  # noqa: A002 - the column's name
    """Return the id of a copy, made as the dispatcher makes ids."""
    suffix = f"r{round}" if round else ""
    return f"{run_id}-{source.task}-{source.position}{suffix}"


def add_copy(session: Session, copy: GroupCopy) -> None:
    """Insert a copy, ready to be trained. Times stay those of the original. Safe to repeat."""
    source = session.get_one(Group, copy.source_id)
    group_id = copied_id(copy.run_id, source, copy.round)
    if session.get(Group, group_id) is not None:
        return
    new = {
        "group_id": group_id,
        "run_id": copy.run_id,
        "round": copy.round,
        "state": GroupState.READY,
        "taken_epoch": None,
        "reason": None,
        "closed_at": None,
        "left_out_of": None,
        "origin_id": source.origin_id or source.group_id,
        "batch": copy.batch,
    }
    session.add(Group(**_columns(source) | new))
    session.flush()
    members = session.scalars(select(Episode).where(Episode.group_id == copy.source_id)).all()
    session.add_all(_copy_episode(row, copy, group_id) for row in members)
    session.flush()
    bodies.store_bodies(session, copy.bodies, copy.steps)


def _copy_episode(source: Episode, copy: GroupCopy, group_id: str) -> Episode:
    member = source.member
    new = {
        "episode_id": f"{group_id}-{member}",
        "run_id": copy.run_id,
        "group_id": group_id,
        "worker_id": None,
        "reward": copy.rewards.get(member, source.reward),
        "body_sha256": copy.hashes.get(member, source.body_sha256),
    }
    return Episode(**_columns(source) | new)


def copies(session: Session, run_id: str) -> dict[str, list[GroupState]]:
    """Return the states of all copies in a run, by original."""
    query = select(Group.origin_id, Group.state).where(
        Group.run_id == run_id, Group.origin_id.is_not(None)
    )
    found: dict[str, list[GroupState]] = {}
    for origin_id, state in session.execute(query):
        found.setdefault(origin_id or "", []).append(GroupState(state))
    return found


def count_outcomes(session: Session, run_id: str) -> dict[GroupState, Counter[int]]:
    """Return how many copies ended in each state, by batch; rolled-back copies are left out."""
    query = (
        select(Group.state, Group.batch, func.count())
        .where(Group.run_id == run_id, Group.state != GroupState.ROLLED_BACK)
        .group_by(Group.state, Group.batch)
    )
    found: defaultdict[GroupState, Counter[int]] = defaultdict(Counter)
    for state, batch, number in session.execute(query):
        found[GroupState(state)][batch or 0] += number
    return found


def has_played_groups(session: Session, run_id: str) -> bool:
    """Return whether the run has a group that is no copy."""
    query = select(Group.group_id).where(Group.run_id == run_id, Group.origin_id.is_(None))
    return session.scalar(query.limit(1)) is not None


def is_partial(run: Run) -> bool:
    """Return whether `agentrl rescore` still copies groups into the run, or was killed before."""
    return run.state == RunState.PAUSED and run.reason == RESCORING


def refuse_partial(run: Run) -> None:
    """Raise StoreError if the run has only some of its copies."""
    if is_partial(run):
        raise StoreError(
            f"run {run.name} has only some of its groups: `agentrl rescore` runs or was killed",
            hint="wait until it ends; if it was killed, delete the run with `agentrl run delete`",
        )


def require_partial(session: Session, run_id: str) -> Run:
    """Lock and return a run that still gets copies. Raises StoreError if it does not any more."""
    run = session.get(Run, run_id, with_for_update=True, populate_existing=True)
    if run is None or not is_partial(run):
        raise StoreError(f"run {run_id} was changed by another command while it was copied")
    return run


def complete_run(session: Session, run_id: str, reason: str) -> None:
    """Complete a run that has all its copies, which stay ready. Raises StoreError."""
    run = require_partial(session, run_id)
    run.state, run.reason, run.ended_at = RunState.COMPLETED, reason, read_clock(session)


def _columns(row: Base) -> dict[str, Any]:
    return {column.key: getattr(row, column.key) for column in inspect(type(row)).column_attrs}
