"""What is committed of an update, and how it outlives a trainer that cannot commit it.

The database, or the object store of its checkpoints, was away until the trainer was told to stop:

    commit, told to stop ─▶ snapshot directory + update.json ─▶ the next trainer commits it first

A disk here that takes no checkpoint takes no snapshot either: then the update is lost, its groups
are ready still, and the next trainer learns from them again.

The transaction decides as ever: where groups, bodies or lineage are not what they were, it refuses
the update, and the next trainer begins from the last one that was committed.
"""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

import msgspec

from agentrl.checkpoints.manifest import verify
from agentrl.core.errors import CheckpointError
from agentrl.core.logging import get_logger
from agentrl.core.types import CheckpointState, UpdateState
from agentrl.db.models import Checkpoint
from agentrl.db.store import now
from agentrl.db.transitions.updates import NewUpdate, TrainedMember
from agentrl.trainer.batch import TrainableGroup

FILE = "update.json"  # in a snapshot's directory

log = get_logger()


class UpdateRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is committed of an update. `path`, `snapshot_path`: of its checkpoint and snapshot.

    `arrived`: whether the checkpoint is where `path` says; else it is in the folder of copies here.
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

    def rows(self, run_id: str, epoch: int) -> NewUpdate:
        """What one transaction writes; made anew for each, for its rows belong to a session."""
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
        )


def members(trained: Sequence[TrainableGroup]) -> list[TrainedMember]:
    """What an update learned from, as the database keeps it."""
    return [
        TrainedMember(
            episode_id=member.episode_id,
            group_id=group.group_id,
            fence=member.fence,
            sha256=member.sha256,
            loss_tokens=int(member.mask().sum()),
            advantage=advantage,
        )
        for group in trained
        for member, advantage in zip_longest(group.members, group.advantages)
    ]


def keep(record: UpdateRecord, snapshot: Path) -> None:
    """For the next trainer. Raises OSError."""
    kept = msgspec.structs.replace(record, snapshot_path=str(snapshot))
    partial = snapshot / f".{FILE}.partial"
    partial.write_bytes(msgspec.json.encode(kept))
    partial.rename(snapshot / FILE)


def find(home: Path, run_id: str, parent_id: str) -> UpdateRecord | None:
    """The update that was to follow the checkpoint `parent_id`, its snapshot whole; or None."""
    for path in sorted(home.glob(f"{run_id}-v*.snapshot/{FILE}")):
        try:
            record = msgspec.json.decode(path.read_bytes(), type=UpdateRecord)
            if record.parent_id != parent_id:
                continue
            verify(path.parent)
        except (OSError, msgspec.MsgspecError, CheckpointError) as error:
            log.error("An update that was kept cannot be used", path=str(path), error=str(error))
            continue
        return record
    return None
