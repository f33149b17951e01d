"""A pending update: it survives a trainer that was stopped before it could commit it.

If the database or the object store was unavailable until the trainer was told to stop:

    commit, told to stop ─▶ snapshot directory + update.json ─▶ the next trainer commits it first

If the local disk cannot take a snapshot, the update is lost; its groups are still ready, and the
next trainer trains on them again.

The transaction decides as usual: if groups, bodies or lineage have changed, it refuses the update,
and the next trainer resumes from the last committed one.
"""

from collections.abc import Mapping, Sequence
from itertools import chain, repeat, zip_longest
from pathlib import Path

import msgspec

from agentrl.checkpoints.manifest import verify
from agentrl.core.errors import CheckpointError
from agentrl.core.logging import get_logger
from agentrl.core.types import CheckpointState, UpdateState
from agentrl.db.models.updates import Checkpoint
from agentrl.db.store import now
from agentrl.db.transitions.updates import NewUpdate, TeacherScore, TrainedMember
from agentrl.trainer.batch import TrainableGroup

FILE = "update.json"  # in a snapshot's directory

log = get_logger()


class UpdateRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The data of an update's commit. `path`, `snapshot_path`: of its checkpoint and snapshot.

    `snapshot_path`: of a pending update the folder in which it was found. `arrived`: whether the
    checkpoint is at `path`; else it is in the local cache.
    """

    checkpoint_id: str
    parent_id: str
    version: int
    path: str
    snapshot_path: str | None
    trained_hash: str
    members: list[TrainedMember]
    metrics: Mapping[str, float]
    skipped: str
    started_at: float
    arrived: bool = True
    left_out: list[str] = []

    def rows(self, run_id: str, epoch: int) -> NewUpdate:
        """Create the rows of the transaction, new ones for each try: they belong to one session."""
        return NewUpdate(
            update_id=f"{self.checkpoint_id}.update",
            run_id=run_id,
            epoch=epoch,
            state=UpdateState.SKIPPED if self.skipped else UpdateState.COMMITTED,
            reason=self.skipped,
            checkpoint=Checkpoint(
                checkpoint_id=self.checkpoint_id,
                run_id=run_id,
                version=self.version,
                parent_id=self.parent_id,
                path=self.path,
                snapshot_path=self.snapshot_path,
                state=CheckpointState.LIVE,
                created_at=now(),
                trained_hash=self.trained_hash,
            ),
            members=self.members,
            metrics=dict(self.metrics),
            started_at=self.started_at,
            left_out=self.left_out,
        )


def members(
    trained: Sequence[TrainableGroup], scores: Sequence[TeacherScore | None] = ()
) -> list[TrainedMember]:
    """Return the members that an update trained on, for the database.

    `scores`: of teachers, per member of all groups; empty without teachers.
    """
    by_member = chain(scores, repeat(None))
    return [
        TrainedMember(
            episode_id=member.episode_id,
            group_id=group.group_id,
            fence=member.fence,
            sha256=member.sha256,
            loss_tokens=int(member.mask().sum()),
            advantage=advantage,
            teacher=next(by_member),
        )
        for group in trained
        for member, advantage in zip_longest(group.members, group.advantages)
    ]


def save_update(record: UpdateRecord, snapshot: Path) -> None:
    """Save the update for the next trainer. Raises OSError."""
    partial = snapshot / f".{FILE}.partial"
    partial.write_bytes(msgspec.json.encode(record))
    partial.rename(snapshot / FILE)


def find_update(home: Path, run_id: str, parent_id: str) -> UpdateRecord | None:
    """Find the pending update after checkpoint `parent_id` with a complete snapshot; None: none."""
    for path in sorted(home.glob(f"{run_id}-v*.snapshot/{FILE}")):
        try:
            record = msgspec.json.decode(path.read_bytes(), type=UpdateRecord)
            if record.parent_id != parent_id:
                continue
            verify(path.parent)
        except (OSError, msgspec.MsgspecError, CheckpointError) as error:
            log.error("Pending update cannot be used", path=str(path), error=str(error))
            continue
        return msgspec.structs.replace(record, snapshot_path=str(path.parent))
    return None
