"""Finds where a trainer resumes: the newest live checkpoint with a valid snapshot."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrl.checkpoints.manifest import Manifest
from agentrl.core.errors import CheckpointError
from agentrl.core.logging import get_logger
from agentrl.core.trained_hash import ROOT
from agentrl.db.models.updates import Checkpoint
from agentrl.trainer.checkpoint_writer import snapshot_directory
from agentrl.trainer.snapshots import snapshots
from agentrl.trainer.snapshots.snapshots import State

log = get_logger()


@dataclass(frozen=True, slots=True)
class Restart:
    """Where a trainer resumes. `state`, `path`: of the snapshot; None at the first checkpoint.

    `trained_hash`: hash of the trajectories that its weights were trained on.
    """

    checkpoint: Checkpoint
    state: State | None = None
    path: Path | None = None
    trained_hash: str = ROOT


def find_restart(live: Sequence[Checkpoint], home: Path) -> Restart:
    """Find the newest of `live` (oldest first) with a complete snapshot that matches its row.

    A snapshot in `home` without a row counts, too: the database was unavailable when its trainer
    ended. Raises CheckpointError if rows name snapshots but none is valid, because starting at the
    first checkpoint would undo all updates.
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
            _require_lineage(path, manifest, checkpoint)
        except CheckpointError as found:
            log.error("Snapshot cannot be used", path=str(path), error=str(found))
            if checkpoint.snapshot_path is not None:
                error = error or found
            continue
        return Restart(checkpoint, state, path, manifest.trained_hash)
    if error is not None:
        raise CheckpointError(
            f"no snapshot of the run can be used; error of the newest: {error}",
            hint="restore its folder, or delete the snapshots to start again at version 0",
        )
    return Restart(live[0])


def _require_lineage(path: Path, manifest: Manifest, checkpoint: Checkpoint) -> None:
    """Raise CheckpointError if weights and row were not trained on the same trajectories."""
    if checkpoint.trained_hash not in (None, manifest.trained_hash):
        raise CheckpointError(
            f"{path} and version {checkpoint.version} in the database learned from different data",
            hint="restore database and snapshots from the same backup (docs/operations.md)",
        )
