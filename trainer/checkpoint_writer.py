"""Writes checkpoints. Waits while a disk or an object store is full or unavailable.

learner ─▶ copy in memory ─▶ directory, whole ─▶ folder or URL   until it is there, or told to stop
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from agentrl.checkpoints import directories
from agentrl.checkpoints.checkpoint_store import CheckpointStore, WeightsAway
from agentrl.checkpoints.manifest import Probe, SaveReport
from agentrl.core.errors import CheckpointError
from agentrl.core.retry import Backoff, Retry
from agentrl.core.trained_hash import ROOT
from agentrl.trainer.engines.learner import Learner, WeightsWriter

BACKOFF = Backoff(longest_s=15.0)  # each try writes all weights again


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a trainer: the checkpoint of its weights.

    `trained_hash`: running hash over all trained trajectories (core/trained_hash.py).
    """

    version: int
    checkpoint_id: str
    trained_hash: str = ROOT


@dataclass(frozen=True, slots=True)
class CheckpointCopy:
    """A copy of a learner's weights in host memory, with their score of the probe text."""

    write: WeightsWriter
    probe: Probe

    @classmethod
    def of(cls, learner: Learner) -> "CheckpointCopy":
        return cls(learner.copy_weights(), learner.probe())

    def fill(self, directory: Path) -> SaveReport:
        return replace(self.write(directory), probe=self.probe)


class CheckpointWriter:
    """Writes the checkpoints of one trainer. For one thread at a time."""

    def __init__(self, checkpoint_files: CheckpointStore) -> None:
        self._checkpoint_files = checkpoint_files
        self._retry = Retry("checkpoints", WeightsAway, stop=checkpoint_files.stop, backoff=BACKOFF)

    def publish(self, copy: CheckpointCopy, then: Position, parent: str) -> str:
        """Write the checkpoint `then` and upload it; return its path for the row.

        Raises CheckpointError, and WeightsAway only when told to stop: then the checkpoint is
        complete on the local disk, unless that disk was unavailable.
        """
        directory = self._checkpoint_files.local(then.checkpoint_id)
        publish = partial(
            directories.publish,
            directory,
            copy.fill,
            checkpoint_id=then.checkpoint_id,
            version=then.version,
            parent=parent,
            trained_hash=then.trained_hash,
        )
        self._retry.call(publish)
        return self.upload(then.checkpoint_id)

    def upload(self, checkpoint_id: str) -> str:
        """Upload a complete local checkpoint; return its path for the row.

        Raises CheckpointError, and WeightsAway when told to stop; the local copy stays.
        """
        try:
            return self._retry.call(partial(self._checkpoint_files.put, checkpoint_id))
        except WeightsAway:
            raise
        except CheckpointError:
            directories.remove(self._checkpoint_files.local(checkpoint_id))
            raise

    def holds(self, checkpoint_id: str) -> bool:
        """Return whether a local checkpoint is complete."""
        try:
            directories.verify(self._checkpoint_files.local(checkpoint_id))
        except CheckpointError:
            return False
        return True


def snapshot_directory(home: Path, checkpoint_id: str) -> Path:
    """Return the directory of a checkpoint's snapshot in the run's folder."""
    return home / f"{checkpoint_id}.snapshot"
