"""Publishes and commits one update in a thread, while the trainer computes the next one.

    copy of the weights ─▶ directory or URL ─▶ one transaction ─▶ CheckpointPublished ─▶ retention
    (host memory)          (durable, whole)    (with alarms: trainer/alarm_recorder.py)

The thread uses neither learner nor inbox. What it raises is raised to the trainer's loop by
trainer/ledger.py, which starts the next publication only after this one.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from msgspec.structs import replace
from sqlalchemy.orm import Session

from agentrl.broker.messages import CheckpointPublished, Message
from agentrl.checkpoints.checkpoint_store import CheckpointStore, WeightsAway, is_url
from agentrl.core.errors import BrokerError, CheckpointError, StoreError
from agentrl.core.logging import get_logger
from agentrl.core.processes.threads import DaemonExecutor
from agentrl.core.types import Transition
from agentrl.db.store import Store
from agentrl.db.transitions import refusals, updates
from agentrl.db.transitions.alarms import AlarmReading
from agentrl.db.transitions.updates import UpdateRefused
from agentrl.trainer import retention
from agentrl.trainer.alarm_recorder import AlarmRecorder, log_alarms
from agentrl.trainer.checkpoint_writer import CheckpointCopy, CheckpointWriter, Position
from agentrl.trainer.engines.learner import Learner
from agentrl.trainer.retention import RetentionRules
from agentrl.trainer.snapshots.pending_update import UpdateRecord

log = get_logger()


@dataclass(slots=True)
class Publication:
    """An update that is being published. `learner`: its weights are those of `then`.

    `result`: None once the update is committed and announced, or why it is not. `is_kept`: whether
    an update that failed was saved for the next trainer, or could not be.
    """

    learner: Learner
    then: Position
    record: UpdateRecord
    result: Future[None]
    is_kept: bool = False


class UpdatePublisher:
    """Publishes the updates of one run, one at a time."""

    def __init__(  # noqa: PLR0913 - everything it writes to
        self,
        run_id: str,
        store: Store,
        announce: Callable[[Message], object],
        checkpoint_files: CheckpointStore,
        *,
        alarms: AlarmRecorder,
        background: Executor | None = None,
    ) -> None:
        """`announce`: publishes an event without waiting for an unavailable broker. `background`:
        runs the publications. None: a thread.
        """
        self._run_id = run_id
        self._store = store
        self._announce_event = announce
        self._checkpoint_files = checkpoint_files
        self._alarms = alarms
        self._background = background or DaemonExecutor("publisher")
        self._retention: Future[None] | None = None
        self.writer = CheckpointWriter(checkpoint_files)

    def begin(
        self,
        learner: Learner,
        then: Position,
        record: UpdateRecord,
        epoch: int,
        on_commit: Callable[[], object],
    ) -> Publication:
        """Copy the learner's weights and start to publish them. `on_commit`: see Ledger.publish."""
        self.finish()
        copy = CheckpointCopy.of(learner)
        result = self._background.submit(self._publish, copy, then, record, epoch, on_commit)
        return Publication(learner, then, record, result)

    def retain(self, rules: RetentionRules) -> None:
        """Start to delete what nothing needs any more, after a publication."""
        self._retention = self._background.submit(self._retain, rules)

    def finish(self) -> None:
        """Wait until that is deleted."""
        if self._retention is not None:
            self._retention.result()
            self._retention = None

    def commit(self, record: UpdateRecord, epoch: int) -> None:
        """Commit an update whose checkpoint is complete; log its alarms.

        Raises UpdateRefused, StoreUnavailable when told to stop, and other StoreErrors.
        """

        def write(session: Session) -> list[AlarmReading]:
            return self._alarms.commit(session, record.rows(self._run_id, epoch))

        log_alarms(self._store.transact(write), record.version, record.skipped)

    def commit_pending(self, record: UpdateRecord, epoch: int) -> None:
        """Commit the pending update of the previous trainer; a refused update is lost."""
        path = self._place_weights(record)
        if path is None:
            log.error("Pending update lost its weights", version=record.version)
            return
        try:
            self.commit(replace(record, path=path), epoch)
        except UpdateRefused as error:
            log.warning("Pending update refused", reason=str(error))
        else:
            log.info("Pending update committed", version=record.version)

    def _place_weights(self, record: UpdateRecord) -> str | None:
        """Return the path of a pending update's checkpoint, after its upload; None: it is lost.

        The storage of checkpoints may have changed since it was recorded, or the folder's place.
        """
        checkpoint_id = record.checkpoint_id
        if not record.arrived:
            is_complete = self.writer.holds(checkpoint_id)
            return self.writer.upload(checkpoint_id) if is_complete else None
        if is_url(record.path) or Path(record.path).is_dir():
            return record.path
        moved = self._checkpoint_files.home / checkpoint_id
        return str(moved) if moved.is_dir() else None

    def _publish(
        self,
        copy: CheckpointCopy,
        then: Position,
        record: UpdateRecord,
        epoch: int,
        on_commit: Callable[[], object],
    ) -> None:
        """Publish, commit and announce.

        Raises what CheckpointWriter.publish and `commit` raise, and TrainerReplaced.
        """
        try:
            path = self.writer.publish(copy, then, record.parent_id)
        except WeightsAway:
            raise
        except CheckpointError:  # a trainer that starts removes what another is writing
            self._store.ask(partial(updates.run_state, run_id=self._run_id, epoch=epoch))
            raise
        try:
            with count_refusals(self._store, self._run_id, epoch, Transition.COMMIT):
                self.commit(record, epoch)
        except UpdateRefused:
            retention.remove_directories([path], self._checkpoint_files.stop)
            raise
        log.info("Update committed", version=then.version, skipped=record.skipped)
        self._announce(then)
        on_commit()

    def _announce(self, then: Position) -> None:
        """Announce the checkpoint. The row is committed, so a lost event only delays."""
        event = CheckpointPublished(
            run_id=self._run_id, version=then.version, checkpoint_id=then.checkpoint_id
        )
        try:
            self._announce_event(event)
        except BrokerError as error:
            log.warning("Checkpoint not announced", version=then.version, error=str(error))

    def _retain(self, rules: RetentionRules) -> None:
        """Delete files that are no longer needed; failures are retried later."""
        retain = partial(retention.retain, run_id=self._run_id, rules=rules)
        try:
            doomed = self._store.transact(retain)
        except StoreError as error:  # the update is committed all the same
            log.warning("Old checkpoints not deleted", error=str(error))
            return
        retention.remove_directories(doomed, self._checkpoint_files.stop)


@contextmanager
def count_refusals(store: Store, run_id: str, epoch: int, transition: Transition) -> Iterator[None]:
    """Record a refusal inside this context, in a separate transaction."""
    try:
        yield
    except UpdateRefused as error:
        name = type(error).__name__
        store.transact(lambda s: refusals.of_run(s, transition, run_id, name, epoch))
        raise
