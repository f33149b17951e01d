"""Writes snapshots in the background, one at a time.

    learner ─▶ copy in memory ─▶ thread: directory, whole, in the run's folder here ─▶ its row

An update waits only for the copy. A snapshot that could not be saved is tried again at the next
update.
"""

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

from sqlalchemy.orm import Session

from agentrl.checkpoints.checkpoint_store import WeightsAway
from agentrl.core.errors import CheckpointError, StoreUnavailable
from agentrl.core.logging import get_logger
from agentrl.db.registry import checkpoints
from agentrl.db.store import Store
from agentrl.trainer.checkpoint_writer import Position, snapshot_directory
from agentrl.trainer.engines.learner import Learner
from agentrl.trainer.snapshots import snapshots
from agentrl.trainer.snapshots.snapshots import State

log = get_logger()


class SnapshotWriter:
    """Writes the snapshots of one trainer. For one thread.

    `newest`: version of the newest complete snapshot, or -1. `is_failed`: whether the last one
    could not be saved; None if none was tried since it was reset.
    """

    def __init__(
        self,
        home: Path,
        store: Store,
        make_room: Callable[[], bool],
        require_epoch: Callable[[], object],
        background: Executor | None = None,
    ) -> None:
        """`home`: folder of the run. `make_room`: called once, by the writing thread, if the disk
        is full; returns whether it freed space. `require_epoch`: raises TrainerReplaced if another
        trainer has started. `background`: runs the writes. None: a thread.
        """
        self._home = home
        self._store = store
        self._make_room = make_room
        self._require_epoch = require_epoch
        self._background = background or ThreadPoolExecutor(1, "snapshot")
        self._writing: tuple[Position, Future[Path | None]] | None = None
        self._unnamed: dict[str, Path] = {}  # by checkpoint: not in the database yet
        self.newest = -1
        self.is_failed: bool | None = None

    @property
    def is_writing(self) -> bool:
        """Return whether a snapshot was begun and not yet collected."""
        return self._writing is not None

    @property
    def unnamed(self) -> frozenset[str]:
        """Return the checkpoints whose snapshots are not in the database yet."""
        writing = {self._writing[0].checkpoint_id} if self._writing else set()
        return frozenset(self._unnamed.keys() | writing)

    def begin(self, learner: Learner, at: Position) -> None:
        """Copy the learner's state and start to write it. Only if not `is_writing`."""
        write = partial(self._write, learner.state(), at)
        self._writing = at, self._background.submit(write, self._make_room)
        self.collect(wait=False)

    def collect(self, *, wait: bool) -> None:
        """Collect the result of the snapshot that was begun, if it is done or `wait`.

        Raises CheckpointError if it may not be written at all, and TrainerReplaced: a trainer that
        starts removes what another is writing.
        """
        if self._writing is None or not (wait or self._writing[1].done()):
            return
        (at, future), self._writing = self._writing, None
        try:
            path = future.result()
        except CheckpointError:
            self._require_epoch()
            raise
        self.is_failed = path is None
        if path is not None:
            self.newest = at.version
            self._unnamed[at.checkpoint_id] = path

    def name(self) -> None:
        """Record complete snapshots in the database; the next start finds them anyway."""
        if not self._unnamed:
            return

        def name(session: Session) -> None:
            for checkpoint_id, path in self._unnamed.items():
                checkpoints.set_snapshot_path(session, checkpoint_id, str(path))

        try:
            self._store.transact(name)
        except StoreUnavailable as error:
            log.warning("Snapshot saved, but not yet in the database", error=str(error))
        else:
            self._unnamed.clear()

    def save(self, learner: Learner, at: Position) -> Path | None:
        """Write a snapshot and wait for it; return its directory, None if the disk is full."""
        self.collect(wait=True)
        return self._write(learner.state(), at)

    def _write(
        self, state: State, at: Position, make_room: Callable[[], bool] | None = None
    ) -> Path | None:
        """Return the directory of the snapshot; None: the disk is full or unavailable."""
        directory = snapshot_directory(self._home, at.checkpoint_id)
        try:
            snapshots.save(
                directory,
                state,
                checkpoint_id=at.checkpoint_id,
                version=at.version,
                trained_hash=at.trained_hash,
            )
        except WeightsAway as error:
            if make_room is not None and make_room():
                return self._write(state, at)
            log.error("Snapshot not saved", version=at.version, error=str(error))
            return None
        return directory
