"""Decides which checkpoints and snapshots are kept. The row is deleted first, then the directory.

Kept are the newest `keep`, version 0, every checkpoint that a track needs now or after a return to
the newest snapshot, the two newest snapshots with their checkpoints, and those that a server or an
open group still uses. A crash between row and directory leaves an orphaned directory, which the
next trainer deletes.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.orm import Session

from agentrl.checkpoints import checkpoint_store, directories
from agentrl.checkpoints.checkpoint_store import CheckpointStore
from agentrl.core.errors import CheckpointError
from agentrl.core.logging import get_logger
from agentrl.core.types import CheckpointState
from agentrl.db.models.runs import Run
from agentrl.db.models.updates import Checkpoint
from agentrl.db.registry import checkpoints as registry_checkpoints
from agentrl.db.registry.tracks import needed_checkpoints

SNAPSHOTS = 2  # where the newest cannot be read, a trainer begins from the one before

log = get_logger()


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """What a trainer keeps. `keep`: newest checkpoints. `tracks`: of all policy servers.

    `epoch`: of the trainer. `unnamed`: checkpoints whose snapshots are not in the database yet.
    """

    keep: int
    tracks: Sequence[str]
    epoch: int
    unnamed: frozenset[str] = frozenset()


def retain(session: Session, run_id: str, rules: RetentionRules) -> list[str]:
    """Mark unneeded checkpoints as deleted; return their directories, to delete after the commit.

    Does nothing if a newer trainer has started.
    """
    if session.get_one(Run, run_id, with_for_update=True).trainer_epoch != rules.epoch:
        return []
    live = registry_checkpoints.live_checkpoints(session, run_id)
    doomed = drop_snapshots(session, run_id, keep=SNAPSHOTS, epoch=rules.epoch)
    kept = [row for row in live if row.snapshot_path is not None]
    versions = [(row.version, row.checkpoint_id) for row in live]
    used = registry_checkpoints.checkpoints_in_use(session, run_id)
    used |= needed_checkpoints(rules.tracks, versions, kept[-1].version if kept else 0)
    used |= {row.checkpoint_id for row in (*live[:1], *live[-rules.keep :], *kept)}
    used |= rules.unnamed
    for row in registry_checkpoints.undeleted_checkpoints(session, run_id):
        if row.checkpoint_id not in used:
            doomed.append(row.path)
            row.state = CheckpointState.DELETED
    return doomed


def drop_snapshots(session: Session, run_id: str, *, keep: int, epoch: int) -> list[str]:
    """Remove all but the newest `keep` live snapshots from rows; return their directories.

    Does nothing if a newer trainer has started.
    """
    if session.get_one(Run, run_id, with_for_update=True).trainer_epoch != epoch:
        return []
    present = registry_checkpoints.undeleted_checkpoints(session, run_id)
    named = [row for row in present if row.snapshot_path is not None]
    live = [row for row in named if row.state == CheckpointState.LIVE]
    doomed = []
    for row in named:
        if row not in live[-keep:]:
            doomed.append(str(row.snapshot_path))
            row.snapshot_path = None
    return doomed


def find_orphans(
    rows: Sequence[Checkpoint], checkpoint_files: CheckpointStore, run_id: str
) -> list[str]:
    """Return directories of the run's storage without a row, left by a crash."""
    named = {Path(path).name for row in rows for path in (row.path, row.snapshot_path) if path}
    found = [
        *checkpoint_files.home.glob(f"{run_id}-v*"),
        *checkpoint_files.home.glob(f".{run_id}-v*"),
    ]
    left = [str(path) for path in found if path.is_dir() and path.name not in named]
    try:
        names = [name for name in checkpoint_files.names() if name.startswith(f"{run_id}-v")]
    except CheckpointError as error:
        log.warning("Orphaned checkpoints not listed", error=str(error))
        names = []
    return [*left, *(checkpoint_files.path(name) for name in names if name not in named)]


def remove_directories(paths: Sequence[str], stop: threading.Event | None = None) -> None:
    """Delete directories and URLs; those that cannot be deleted now become orphans.

    stop: when set, do not wait for the storage.
    """
    for path in paths:
        try:
            if checkpoint_store.is_url(path):
                checkpoint_store.remove(path, stop)
            else:
                directories.remove(Path(path))
        except (CheckpointError, OSError) as error:
            log.warning("Orphaned checkpoint not deleted", error=str(error))
