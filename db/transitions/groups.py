"""Transitions of groups: admitted, settled by their last member, closed by the trainer.

open ─(last member terminal)─▶ ready | failed;   ready ─▶ trained | filtered | stale
open | ready ─(end of run)─▶ cancelled
trained | filtered (low_spread) ─(roll-back of their update)─▶ rolled_back
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import String, case, cast, func, insert, literal, select, update
from sqlalchemy.orm import Session
from sqlalchemy.sql.dml import ReturningInsert

from agentrl.core.types import GROUP_OPEN, EpisodeState, GroupState, Reason, Status, Transition
from agentrl.db.models.episodes import Episode, Group
from agentrl.db.models.runs import Run
from agentrl.db.models.updates import Update
from agentrl.db.query_parts import count_by
from agentrl.db.store import now, read_clock
from agentrl.db.transitions import prepared_statements, refusals
from agentrl.db.transitions.trajectories import journal


@dataclass(frozen=True, slots=True)
class NewGroup:
    """A group to admit: the item at `position` of the task's stream, rolled back `round` times.

    `horizon`: turn limit of its episodes; None: the task's own.
    """

    group_id: str
    task: str
    position: int
    round: int
    item_id: str
    size: int
    horizon: int | None = None


def admit_groups(
    session: Session, run: Run, groups: Sequence[NewGroup], *, claim_timeout_s: float = 0.0
) -> list[tuple[str, int]]:
    """Insert open groups with queued members; return the members to send as (episode_id, fence).

    They are due to be sent again after `claim_timeout_s`.
    """
    if not groups:
        return []
    opened = {
        "run_id": run.run_id,
        "state": GroupState.OPEN,
        "admitted_version": run.version,
        "admitted_at": read_clock(session),
    }
    rows = [opened | dataclasses.asdict(group) | {"pending": group.size} for group in groups]
    session.execute(insert(Group), rows)
    queued = _insert_queued([group.group_id for group in groups], claim_timeout_s)
    return [(row.episode_id, row.fence) for row in session.execute(queued)]


def _insert_queued(group_ids: Sequence[str], claim_timeout_s: float) -> ReturningInsert[str, int]:
    """Insert a queued episode for each member of the groups, with one SQL statement."""
    member = select(literal(0).label("member")).cte(recursive=True)
    most = select(func.max(Group.size)).where(Group.group_id.in_(group_ids)).scalar_subquery()
    member = member.union_all(select(member.c.member + 1).where(member.c.member + 1 < most))
    made = {
        Episode.episode_id: Group.group_id + "-" + cast(member.c.member, String),
        Episode.run_id: Group.run_id,
        Episode.group_id: Group.group_id,
        Episode.member: member.c.member,
        Episode.task: Group.task,
        Episode.item_id: Group.item_id,
        Episode.state: literal(EpisodeState.QUEUED),
        Episode.due_at: Group.admitted_at + claim_timeout_s,
        Episode.queued_at: Group.admitted_at,
    }
    members = select(*made.values()).join(member, member.c.member < Group.size)
    return (
        insert(Episode)
        .from_select(list(made), members.where(Group.group_id.in_(group_ids)))
        .returning(Episode.episode_id, Episode.fence)
    )


def lock_group(session: Session, group_id: str) -> Group | None:
    return session.get(Group, group_id, with_for_update=True, populate_existing=True)


def lock_group_row(session: Session, group_id: str) -> None:
    """Like `lock_group`, without loading the row."""
    session.execute(prepared_statements.HOLD, {"held": group_id})


def settle_group(session: Session, group_id: str) -> None:
    """Count one open member less; the last one closes the (locked) group."""
    pending = session.scalar(prepared_statements.ENDED, {"held": group_id})
    if pending != 0:
        return
    survivors = session.scalar(
        select(func.count()).where(
            Episode.group_id == group_id, Episode.state == EpisodeState.FINISHED
        )
    )
    if (survivors or 0) >= 2:
        values: dict[str, Any] = {"state": GroupState.READY, "ready_at": now()}
    else:
        values = {
            "state": GroupState.FAILED,
            "reason": Reason.TOO_FEW_SURVIVORS,
            "closed_at": now(),
        }
    session.execute(
        update(Group)
        .where(Group.group_id == group_id, Group.state == GroupState.OPEN)
        .values(**values)
        .execution_options(synchronize_session=False)
    )


def take_groups(session: Session, group_ids: Sequence[str], epoch: int) -> bool:
    """Mark groups whose bodies the trainer holds; False if one is not ready."""
    taken = session.scalars(
        update(Group)
        .where(Group.group_id.in_(group_ids), Group.state == GroupState.READY)
        .values(taken_epoch=epoch)
        .returning(Group.group_id)
        .execution_options(synchronize_session=False)
    )
    return len(taken.all()) == len(group_ids)


def is_taken(session: Session, group: Group) -> bool:
    """Return whether the run's trainer holds the group."""
    epoch = session.scalar(select(Run.trainer_epoch).where(Run.run_id == group.run_id))
    return group.taken_epoch is not None and group.taken_epoch == epoch


def close_groups(
    session: Session,
    group_ids: Sequence[str],
    state: GroupState,
    reason: Reason | None,
    left_out_of: str | None = None,
) -> int:
    """ready → trained, filtered or stale. Returns how many moved.

    `left_out_of`: the update that left them out, which closes them at the time of its commit.
    """
    committed_at = select(Update.committed_at).where(Update.update_id == left_out_of)
    closed_at = now() if left_out_of is None else committed_at.scalar_subquery()
    moved = session.scalars(
        update(Group)
        .where(Group.group_id.in_(group_ids), Group.state == GroupState.READY)
        .values(state=state, reason=reason, closed_at=closed_at, left_out_of=left_out_of)
        .returning(Group.group_id)
    ).all()
    refused = sorted(set(group_ids) - set(moved))
    if refused:
        refusals.of_groups(session, Transition.CLOSE, refused)
    return len(moved)


def cancel_open(session: Session, run_id: str) -> int:
    """Cancel every open group and every open member, because the run is over."""
    groups = session.scalars(
        select(Group.group_id)
        .where(Group.run_id == run_id, Group.state.in_(GROUP_OPEN))
        .order_by(Group.group_id)
        .with_for_update()
    ).all()
    session.execute(
        update(Episode)
        .where(
            Episode.run_id == run_id,
            Episode.state.in_([EpisodeState.QUEUED, EpisodeState.RUNNING]),
        )
        .values(
            state=EpisodeState.CANCELLED,
            status=Status.CANCELLED,
            reason=Reason.RUN_ENDED,
            ended_at=now(),
        )
    )
    session.execute(
        update(Group)
        .where(Group.run_id == run_id, Group.state.in_(GROUP_OPEN))
        .values(state=GroupState.CANCELLED, reason=Reason.RUN_ENDED, pending=0, closed_at=now())
    )
    journal.forget_run(session, run_id)
    return len(groups)


def count_failed(session: Session, run_id: str, *, within_s: float) -> int:
    """Return how many groups have failed in the last `within_s` seconds."""
    since = select(now() - within_s).scalar_subquery()  # asked once, so that an index is used
    failed = func.count(case((Group.state == GroupState.FAILED, 1)))
    query = select(failed).where(Group.run_id == run_id, Group.closed_at > since)
    return session.scalar(query) or 0


def open_groups(session: Session, run_id: str) -> dict[GroupState, int]:
    """Count the groups that occupy an admission slot, by state."""
    counts = count_by(session, Group.state, Group.run_id == run_id, Group.state.in_(GROUP_OPEN))
    return {GroupState(state): number for state, number in counts.items()}
