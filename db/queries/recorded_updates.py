"""The groups of an update: those it trained on, and those it closed without training."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import and_, case, func, or_, select
from sqlalchemy.orm import Session

from agentrl.core.errors import StoreError
from agentrl.core.types import TRAINABLE, EpisodeState, GroupState, Reason, UpdateState
from agentrl.db.models import Checkpoint, Episode, Group, Run, Update, UpdateGroup

CLOSED = (GroupState.FILTERED, GroupState.STALE)


@dataclass(frozen=True, slots=True)
class SeenMember:
    """A member of a group that the trainer inspected, with its body. `learned`: in the update."""

    group_id: str
    task: str
    episode_id: str
    fence: int
    sha256: str
    learned: bool


def find_update(session: Session, run: Run, name: str) -> Update:
    """Find an update by id, or by its version on the live lineage. Raises StoreError."""
    query = select(Update).where(Update.run_id == run.run_id)
    if name.isdecimal():
        live = Update.state != UpdateState.ROLLED_BACK
        query = query.where(Update.version == int(name), live)
    else:
        query = query.where(Update.update_id == name)
    found = session.scalars(query).one_or_none()
    if found is None:
        raise StoreError(
            f"run {run.name} has no update {name}", hint=f"choose a version from 1 to {run.version}"
        )
    return found


def parent_of(session: Session, update: Update) -> Checkpoint | None:
    """Return the checkpoint from which the update started."""
    made = session.get_one(Checkpoint, update.checkpoint_id)
    return session.get(Checkpoint, made.parent_id) if made.parent_id else None


def seen_members(session: Session, update: Update) -> Sequence[SeenMember]:
    """Return the members group by group, in the trainer's order.

    They include groups closed without training: those with no spread or stale, while its batch was
    chosen, which is after the start of the previous update (its commit may come later), and those
    left out of the batch, with its commit.
    """
    before = (
        select(func.max(Update.started_at))
        .where(Update.run_id == update.run_id, Update.started_at < update.started_at)
        .scalar_subquery()
    )
    left_out = Group.reason.is_not_distinct_from(Reason.LOW_SPREAD)
    learned = (UpdateGroup.episode_id == Episode.episode_id) & (
        UpdateGroup.update_id == update.update_id
    )
    closed = and_(
        Group.state.in_(CLOSED),
        case(
            (left_out, Group.closed_at == update.committed_at),
            else_=Group.closed_at.between(func.coalesce(before, 0.0), update.started_at),
        ),
        Episode.state == EpisodeState.FINISHED,
        Episode.status.in_(TRAINABLE),
    )
    query = (
        select(
            Group.group_id,
            Group.task,
            Episode.episode_id,
            func.coalesce(UpdateGroup.fence, Episode.fence),
            func.coalesce(UpdateGroup.sha256, Episode.body_sha256, ""),
            UpdateGroup.update_id.is_not(None),
        )
        .select_from(Group)
        .join(Episode, Episode.group_id == Group.group_id)
        .outerjoin(UpdateGroup, learned)
        .where(Group.run_id == update.run_id, or_(UpdateGroup.update_id.is_not(None), closed))
        .order_by(Group.ready_at, Group.group_id, Episode.member)
    )
    return [SeenMember(*row) for row in session.execute(query)]
