"""Transitions of groups: admitted, settled by their last member, closed by the trainer.

open ─(last member terminal)─▶ ready | failed;   ready ─▶ trained | filtered | stale
open | ready ─(end of run)─▶ cancelled;          trained ─(fork)─▶ rolled_back
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, insert, select, update
from sqlalchemy.orm import Session

from core.types import GROUP_OPEN, EpisodeState, GroupState, Reason, Status, Transition
from db import prepared, refusals
from db.models import Episode, Group, Run
from db.store import now


@dataclass(frozen=True, slots=True)
class NewGroup:
    """A group to admit: the item at `position` of the task's stream, `round` times rolled back.

    `horizon`: most turns of its episodes; the task's own limit where None.
    """

    group_id: str
    task: str
    position: int
    round: int
    item_id: str
    size: int
    horizon: int | None = None


def admit(session: Session, run: Run, groups: Sequence[NewGroup]) -> None:
    """Open groups with all their members queued and due to be sent."""
    if not groups:
        return
    at = session.scalar(select(now()))
    common = {"run_id": run.run_id}
    group_rows = [
        {
            **common,
            **dataclasses.asdict(group),
            "pending": group.size,
            "state": GroupState.OPEN,
            "admitted_version": run.version,
            "admitted_at": at,
        }
        for group in groups
    ]
    episode_rows = [
        {
            **common,
            "episode_id": f"{group.group_id}-{member}",
            "group_id": group.group_id,
            "member": member,
            "task": group.task,
            "item_id": group.item_id,
            "state": EpisodeState.QUEUED,
            "due_at": 0.0,
            "queued_at": at,
        }
        for group in groups
        for member in range(group.size)
    ]
    session.execute(insert(Group), group_rows)
    session.execute(insert(Episode), episode_rows)


def lock_group(session: Session, group_id: str) -> Group | None:
    return session.get(Group, group_id, with_for_update=True, populate_existing=True)


def hold_group(session: Session, group_id: str) -> None:
    """As `lock_group`, for whom the row itself does not matter."""
    session.execute(prepared.HOLD, {"held": group_id})


def member_ended(session: Session, group_id: str) -> None:
    """One member less is open; the last one settles the (locked) group."""
    pending = session.scalar(prepared.ENDED, {"held": group_id})
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


def close_groups(
    session: Session, group_ids: Sequence[str], state: GroupState, reason: Reason | None
) -> int:
    """ready → trained, filtered or stale. Returns how many moved."""
    moved = session.scalars(
        update(Group)
        .where(Group.group_id.in_(group_ids), Group.state == GroupState.READY)
        .values(state=state, reason=reason, closed_at=now())
        .returning(Group.group_id)
    ).all()
    refused = sorted(set(group_ids) - set(moved))
    if refused:
        refusals.of_groups(session, Transition.CLOSE, refused)
    return len(moved)


def cancel_open(session: Session, run_id: str) -> int:
    """The run is over: every open group and every open member becomes cancelled."""
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
    return len(groups)


def open_groups(session: Session, run_id: str) -> dict[GroupState, int]:
    """How many groups hold an admission slot, by state."""
    query = (
        select(Group.state, func.count())
        .where(Group.run_id == run_id, Group.state.in_(GROUP_OPEN))
        .group_by(Group.state)
    )
    return {GroupState(state): count for state, count in session.execute(query)}
