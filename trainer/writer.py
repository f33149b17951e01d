"""Writes checkpoints and snapshots. A disk or an object store that is full or away is waited for.

learner ─▶ directory, whole ─▶ shelf (a folder or a URL)   until it is there, or told to stop
learner ─▶ snapshot in the run's folder here               once: the next update tries again
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agentrl.checkpoints import directories
from agentrl.checkpoints.checkpoint_store import Shelf, WeightsAway
from agentrl.checkpoints.manifest import Probe
from agentrl.core.errors import CheckpointError
from agentrl.core.logging import get_logger
from agentrl.core.retry import Backoff, Retry
from agentrl.core.trained_hash import ROOT
from agentrl.trainer import snapshots
from agentrl.trainer.engines.learner import Learner

BACKOFF = Backoff(longest_s=15.0)  # each try writes all weights again

log = get_logger()


@dataclass(frozen=True, slots=True)
class Position:
    """Where a trainer stands: the checkpoint its weights are.

    `trained_hash`: the running hash over all bodies that they learned from (core/trained_hash.py).
    """

    version: int
    checkpoint_id: str
    trained_hash: str = ROOT


class CheckpointWriter:
    """Writes what one trainer learned; used by one thread."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._retry = Retry("checkpoints", _is_away, stop=shelf.stop, backoff=BACKOFF)

    def publish(self, learner: Learner, then: Position, parent: str) -> str:
        """The checkpoint `then` on its shelf: what its row names.

        Raises CheckpointError; WeightsAway only once it is told to stop: then the checkpoint is
        whole here, unless it was the disk here that was away.
        """

        def fill(target: Path) -> Probe:
            learner.save(target)
            return learner.probe()

        directory = self._shelf.local(then.checkpoint_id)
        publish = partial(
            directories.publish,
            directory,
            fill,
            checkpoint_id=then.checkpoint_id,
            version=then.version,
            parent=parent,
            trained_hash=then.trained_hash,
        )
        self._retry.call(publish)
        return self.upload(then.checkpoint_id)

    def upload(self, checkpoint_id: str) -> str:
        """Bring a checkpoint that is whole here to its shelf: what its row names.

        Raises CheckpointError; WeightsAway, once it is told to stop, which leaves it whole here.
        """
        try:
            return self._retry.call(partial(self._shelf.put, checkpoint_id))
        except WeightsAway:
            raise
        except CheckpointError:
            directories.remove(self._shelf.local(checkpoint_id))
            raise

    def holds(self, checkpoint_id: str) -> bool:
        """Whether a checkpoint is whole here."""
        try:
            directories.verify(self._shelf.local(checkpoint_id))
        except CheckpointError:
            return False
        return True

    def snapshot(self, learner: Learner, at: Position) -> str | None:
        """The directory of a new snapshot; None where the disk is full or away."""
        directory = snapshot_directory(self._shelf.home, at.checkpoint_id)
        try:
            snapshots.save(
                directory,
                learner.state(),
                checkpoint_id=at.checkpoint_id,
                version=at.version,
                parent=None,
                trained_hash=at.trained_hash,
            )
        except WeightsAway as error:
            log.error("Snapshot could not be saved", version=at.version, error=str(error))
            return None
        return str(directory)


def snapshot_directory(home: Path, checkpoint_id: str) -> Path:
    """Where the snapshot of a checkpoint lies in the run's folder of checkpoints."""
    return home / f"{checkpoint_id}.snapshot"


def _is_away(error: BaseException) -> bool:
    return isinstance(error, WeightsAway)
