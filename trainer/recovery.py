"""Where a trainer begins: the newest checkpoint of the live lineage that has a sound snapshot."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrl.checkpoints.manifest import Manifest
from agentrl.core.errors import CheckpointError
from agentrl.core.logging import get_logger
from agentrl.core.trained_hash import ROOT
from agentrl.db.models import Checkpoint
from agentrl.trainer import snapshots
from agentrl.trainer.snapshots import State
from agentrl.trainer.writer import snapshot_directory

log = get_logger()


@dataclass(frozen=True, slots=True)
class Restart:
    """`state`, `path`: of the snapshot; None at the run's first checkpoint, which has none.

    `trained_hash`: of the bodies that its weights have learned from.
    """

    checkpoint: Checkpoint
    state: State | None = None
    path: Path | None = None
    trained_hash: str = ROOT


def find_restart(live: Sequence[Checkpoint], home: Path) -> Restart:
    """The newest of `live`, oldest first, whose snapshot is whole and learned what its row says.

    A snapshot in `home` whose row does not name it counts too: the database was away when its
    trainer ended. Raises CheckpointError where rows name snapshots and none of them is sound: to
    begin at the first checkpoint would undo all updates.
    """
    error: CheckpointError | None = None
    for checkpoint in reversed(live):
        path = snapshot_directory(home, checkpoint.checkpoint_id)
        if checkpoint.snapshot_path is not None:
            path = Path(checkpoint.snapshot_path)
        elif not path.is_dir():
            continue
        try:
            state, manifest = snapshots.load(path)
            _refuse_other_line(path, manifest, checkpoint)
        except CheckpointError as found:
            log.error("Snapshot cannot be used", path=str(path), error=str(found))
            if checkpoint.snapshot_path is not None:
                error = error or found
            continue
        return Restart(checkpoint, state, path, manifest.trained_hash)
    if error is not None:
        raise CheckpointError(
            f"no snapshot of the run can be used; the newest: {error}",
            hint="bring its folder back, or delete the named snapshots to begin at version 0",
        )
    return Restart(live[0])


def _refuse_other_line(path: Path, manifest: Manifest, checkpoint: Checkpoint) -> None:
    """Raises CheckpointError where weights and row have not learned from the same bodies."""
    if checkpoint.trained_hash not in (None, manifest.trained_hash):
        raise CheckpointError(
            f"{path}: learned from other bodies than version {checkpoint.version} of the database"
        )
