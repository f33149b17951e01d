"""The running hash of each checkpoint, recomputed from the bodies that updates name."""

from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter

from sqlalchemy import select
from sqlalchemy.orm import Session, aliased

from core.trained_hash import ROOT, running_hash
from core.types import UpdateState
from db.models import Checkpoint, Update, UpdateGroup

ROWS = 10_000  # fetched at a time


def differing(session: Session, run_id: str) -> Iterator[str]:
    """Yield what is wrong with each live checkpoint whose hash is not that of its bodies.

    An update whose members were pruned is left out, and a checkpoint from before the column.
    """
    parent = aliased(Checkpoint)
    query = (
        select(
            Update.update_id,
            Update.version,
            Update.episodes,
            Checkpoint.trained_hash,
            parent.trained_hash.label("before"),
            UpdateGroup.sha256,
        )
        .join(Checkpoint, Checkpoint.checkpoint_id == Update.checkpoint_id)
        .join(parent, parent.checkpoint_id == Checkpoint.parent_id)
        .join(UpdateGroup, UpdateGroup.update_id == Update.update_id)
        .where(
            Update.run_id == run_id,
            Update.state != UpdateState.ROLLED_BACK,
            Checkpoint.trained_hash.is_not(None),
        )
        .order_by(Update.version, Update.update_id)
        .execution_options(yield_per=ROWS)
    )
    for update_id, rows in groupby(session.execute(query), key=attrgetter("update_id")):
        members = list(rows)
        first = members[0]
        found = running_hash(first.before or ROOT, (row.sha256 for row in members))
        if len(members) == first.episodes and found != first.trained_hash:
            yield (
                f"update {update_id} to version {first.version}: its bodies make {found[:12]}…, "
                f"its checkpoint says {first.trained_hash[:12]}…"
            )
