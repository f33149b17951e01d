"""The groups of an update: those it trained on, and those it closed without training."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import and_, func, or_, select
from sqlalchemy.orm import Session

from agentrl.core.errors import StoreError
from agentrl.core.types import GROUP_UNTRAINED, TRAINABLE, EpisodeState
from agentrl.db.models.episodes import Episode, Group
from agentrl.db.models.runs import Run
from agentrl.db.models.updates import Checkpoint, Update, UpdateGroup


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
    if not name.isdecimal():
        query = query.where(Update.update_id == name)
    else:  # a larger version may be no number of the database
        version = min(int(name), run.version + 1)
        query = query.where(Update.version == version, Update.is_live)
    found = session.scalars(query).one_or_none()
    if found is None:
        known = f"choose a version from 1 to {run.version}"
        raise StoreError(
            f"run {run.name} has no update {name}",
            hint=known if run.version else "the run has no update yet",
        )
    return found


def parent_of(session: Session, update: Update) -> Checkpoint | None:
    """Return the checkpoint from which the update started."""
    made = session.get_one(Checkpoint, update.checkpoint_id)
    return session.get(Checkpoint, made.parent_id) if made.parent_id else None


def seen_members(session: Session, update: Update) -> Sequence[SeenMember]:
    """Return the members group by group, in the trainer's order.

    They include groups that were closed (no spread, stale) while the update's batch was chosen:
    after the start of the previous update, whose commit may come later. They also include groups
    that the update left out, also after it was rolled back.
    """
    before = (
        select(func.max(Update.started_at))
        .where(Update.run_id == update.run_id, Update.started_at < update.started_at)
        .scalar_subquery()
    )
    learned = (UpdateGroup.episode_id == Episode.episode_id) & (
        UpdateGroup.update_id == update.update_id
    )
    closed = and_(
        or_(
            Group.left_out_of == update.update_id,
            Group.state.in_(GROUP_UNTRAINED)
            & Group.left_out_of.is_(None)
            & (Group.closed_at > func.coalesce(before, 0.0))
            & (Group.closed_at <= update.started_at),
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
