"""The running hash of each checkpoint, recomputed from the bodies that updates name."""

from collections.abc import Iterator
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session, aliased

from agentrl.core.trained_hash import ROOT, running_hash
from agentrl.db.models.updates import Checkpoint, Update, UpdateGroup

AT_ONCE = 100  # updates whose members are fetched together


def find_different_hashes(session: Session, run_id: str) -> Iterator[str]:
    """Yield the problem of each live checkpoint whose hash does not match its bodies.

    Updates with pruned members, and checkpoints older than the column, are skipped.
    """
    parent = aliased(Checkpoint)
    query = (
        select(
            Update.update_id,
            Update.version,
            Update.episodes,
            Checkpoint.trained_hash,
            parent.trained_hash.label("before"),
        )
        .join(Checkpoint, Checkpoint.checkpoint_id == Update.checkpoint_id)
        .join(parent, parent.checkpoint_id == Checkpoint.parent_id)
        .where(
            Update.run_id == run_id,
            Update.is_live,
            Checkpoint.trained_hash.is_not(None),
        )
        .order_by(Update.version)
    )
    updates = session.execute(query).all()
    for start in range(0, len(updates), AT_ONCE):
        yield from _find_different(session, updates[start : start + AT_ONCE])


def _find_different(session: Session, updates: Any) -> Iterator[str]:
    """Of a few updates: rows of update_id, version, episodes, trained_hash, before."""
    query = (
        select(UpdateGroup.update_id, func.aggregate_strings(UpdateGroup.sha256, ","))
        .where(UpdateGroup.update_id.in_([row.update_id for row in updates]))
        .group_by(UpdateGroup.update_id)
    )
    bodies = {update_id: joined.split(",") for update_id, joined in session.execute(query)}
    for row in updates:
        members = bodies.get(row.update_id, [])
        found = running_hash(row.before or ROOT, members)
        if members and len(members) == row.episodes and found != row.trained_hash:
            yield (
                f"update {row.update_id} to version {row.version}: its bodies make "
                f"{found[:12]}…, its checkpoint says {row.trained_hash[:12]}…"
            )
