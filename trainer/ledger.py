"""The ledger: publishes a checkpoint, then commits the update with its groups and hashes.

    save weights ─▶ one transaction ─▶ CheckpointPublished ─▶ retention ─▶ (snapshot when due)
                    (with alarms: trainer/alarm_recorder.py)

It waits while a disk or an object store is full or unavailable, until the trainer is told to stop.
Snapshots are written in the background (trainer/snapshots/snapshot_writer.py); one that could not
be saved is tried again at the next update. A trainer whose epoch is outdated commits nothing and
ends.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial

from msgspec.structs import replace
from sqlalchemy.orm import Session

from agentrl.broker.messages import CheckpointPublished, Message
from agentrl.checkpoints.checkpoint_store import CheckpointStore, WeightsAway
from agentrl.core.errors import BrokerError, CheckpointError, StoreError, StoreUnavailable
from agentrl.core.logging import get_logger
from agentrl.core.trained_hash import running_hash
from agentrl.core.types import RunState, Transition
from agentrl.db.models.updates import Checkpoint
from agentrl.db.registry import checkpoints
from agentrl.db.store import Store
from agentrl.db.transitions import refusals, runs, updates
from agentrl.db.transitions.alarms import AlarmReading
from agentrl.db.transitions.updates import UpdateRefused
from agentrl.trainer import retention
from agentrl.trainer.alarm_recorder import AlarmRecorder, log_alarms
from agentrl.trainer.batch import TakenGroups
from agentrl.trainer.checkpoint_writer import CheckpointWriter, Position
from agentrl.trainer.engines.learner import Learner, Metrics
from agentrl.trainer.ledger_config import LedgerConfig
from agentrl.trainer.retention import RetentionRules
from agentrl.trainer.snapshots import pending_update
from agentrl.trainer.snapshots.pending_update import UpdateRecord
from agentrl.trainer.snapshots.recovery import find_restart
from agentrl.trainer.snapshots.snapshot_writer import SnapshotWriter
from agentrl.trainer.stop_rules import StopRules

log = get_logger()


class Ledger:
    """Writes the updates of one run. For one thread."""

    def __init__(  # noqa: PLR0913 - everything it writes to
        self,
        config: LedgerConfig,
        run_id: str,
        store: Store,
        announce: Callable[[Message], object],
        checkpoint_files: CheckpointStore,
        *,
        background: Executor | None = None,
        machine: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        """`announce`: publishes an event without waiting for an unavailable broker. `background`:
        writes snapshots; None: a thread. `machine`: measures use of the machine, for each update.
        """
        self._config = config
        self._run_id = run_id
        self._machine = machine
        self._store = store
        self._announce_event = announce
        self._checkpoint_files = checkpoint_files
        self._writer = CheckpointWriter(checkpoint_files)
        self._snapshots = SnapshotWriter(
            checkpoint_files.home, store, self._drop_older_snapshots, background
        )
        self.epoch = 0  # of this trainer, from `resume` on
        self._alarms = AlarmRecorder(config.alarms, config.max_grad_norm, run_id)
        self._stop_rules = StopRules(config, run_id, store)

    def resume(self, learner: Learner) -> Position:
        """Start a new epoch from the newest snapshot; later updates are rolled back.

        Without a snapshot the run starts at its first checkpoint, which the learner has loaded.
        Raises CheckpointError if snapshots exist but none can be used.
        """
        self.epoch = self._store.transact(lambda session: runs.begin_epoch(session, self._run_id))
        self._commit_kept()
        restart = find_restart(self._store.ask(self._live), self._checkpoint_files.home)
        checkpoint = restart.checkpoint
        if restart.state is not None:
            learner.load_state(restart.state)
            self._snapshots.newest = checkpoint.version

        def begin(session: Session) -> int:
            undone = updates.roll_back(session, self._run_id, checkpoint, epoch=self.epoch)
            if restart.path is not None:
                checkpoints.set_snapshot_path(session, checkpoint.checkpoint_id, str(restart.path))
            return undone

        with self._count_refusals(Transition.ROLL_BACK):
            undone = self._store.transact(begin)
        present = partial(checkpoints.undeleted_checkpoints, run_id=self._run_id)
        left = retention.find_orphans(
            self._store.ask(present), self._checkpoint_files, self._run_id
        )
        retention.remove_directories(left, self._checkpoint_files.stop)
        log.info("Trainer started", version=checkpoint.version, epoch=self.epoch, undone=undone)
        return Position(checkpoint.version, checkpoint.checkpoint_id, restart.trained_hash)

    def _live(self, session: Session) -> Sequence[Checkpoint]:
        """Return the live lineage, oldest first. Raises CheckpointError if it is empty."""
        live = checkpoints.live_checkpoints(session, self._run_id)
        if not live:
            raise CheckpointError(f"run {self._run_id} has no first checkpoint")
        session.expunge_all()
        return live

    def started(self) -> float:
        """Return the start time of an update, on the database's clock."""
        return self._store.clock()

    def commit(
        self,
        learner: Learner,
        at: Position,
        groups: TakenGroups,
        metrics: Metrics,
        started_at: float,
    ) -> Position:
        """Publish and commit the update from `at`; return the new position.

        Raises UpdateRefused: nothing was committed, and the weights match no checkpoint. The same
        holds for StoreUnavailable and WeightsAway (only when the trainer is told to stop) and any
        other StoreError; the update is then kept for the next trainer, if the local disk allows.
        """
        then, record = self._describe(at, groups, metrics, started_at)
        try:
            path = self._writer.publish(learner, then, at.checkpoint_id)
        except WeightsAway:
            if self._writer.holds(then.checkpoint_id):
                self._keep(learner, then, replace(record, arrived=False))
            raise
        self._snapshots.collect(wait=False)
        if self._snapshots.is_failed is not None:
            figures = {**record.metrics, "snapshot_failed": float(self._snapshots.is_failed)}
            record, self._snapshots.is_failed = replace(record, metrics=figures), None
        try:
            with self._count_refusals(Transition.COMMIT):
                readings = self._store.transact(partial(self._write, record))
        except UpdateRefused:
            retention.remove_directories([path], self._checkpoint_files.stop)
            raise
        except StoreError:  # away, or for a person to correct, as after a change of the password
            self._keep(learner, then, record)
            raise
        log_alarms(readings, then.version, metrics.skipped)
        self._announce(then)
        age = then.version - max(self._snapshots.newest, 0)
        if age >= self._config.snapshot_every and not self._snapshots.is_writing:
            self._snapshots.begin(learner, then)
        self._snapshots.name()
        self._retain()
        return then

    def _describe(
        self, at: Position, groups: TakenGroups, metrics: Metrics, started_at: float
    ) -> tuple[Position, UpdateRecord]:
        """Return the position after the update from `at`, and what is to be committed."""
        version = at.version + 1
        members = pending_update.members(groups.trained, metrics.teacher_scores)
        then = Position(
            version,
            f"{self._run_id}-v{version:06d}-{uuid.uuid4().hex[:6]}",
            running_hash(at.trained_hash, [member.sha256 for member in members]),
        )
        return then, UpdateRecord(
            checkpoint_id=then.checkpoint_id,
            parent_id=at.checkpoint_id,
            version=version,
            path=self._checkpoint_files.path(then.checkpoint_id),
            snapshot_path=None,
            trained_hash=then.trained_hash,
            members=members,
            metrics={**metrics.values, **self._machine()},
            skipped=metrics.skipped,
            started_at=started_at,
            left_out=[group.group_id for group in groups.left_out],
        )

    def _write(self, record: UpdateRecord, session: Session) -> list[AlarmReading]:
        """Run the update's transaction; return the readings to log."""
        return self._alarms.commit(session, record.rows(self._run_id, self.epoch))

    def _keep(self, learner: Learner, then: Position, record: UpdateRecord) -> None:
        """Save an update for the next trainer."""
        path = self._snapshots.save(learner, then)
        if path is None:
            return
        try:
            pending_update.save_update(record, path)
        except OSError as error:
            log.error("Pending update not saved", path=str(path), error=str(error))

    def _commit_kept(self) -> None:
        """Commit the pending update of the previous trainer; a refused update is lost."""
        live = self._store.ask(self._live)
        record = pending_update.find_update(
            self._checkpoint_files.home, self._run_id, live[-1].checkpoint_id
        )
        if record is None:
            return
        if not record.arrived:
            if not self._writer.holds(record.checkpoint_id):
                log.error("Pending update lost its weights", version=record.version)
                return
            self._writer.upload(record.checkpoint_id)
        try:
            log_alarms(self._store.transact(partial(self._write, record)), record.version)
        except UpdateRefused as error:
            log.warning("Pending update refused", reason=str(error))
        else:
            log.info("Pending update committed", version=record.version)

    @contextmanager
    def _count_refusals(self, transition: Transition) -> Iterator[None]:
        """Record a refusal inside this context, in a separate transaction."""
        try:
            yield
        except UpdateRefused as error:
            name = type(error).__name__
            self._store.transact(
                lambda s: refusals.of_run(s, transition, self._run_id, name, self.epoch)
            )
            raise

    def _retain(self) -> None:
        """Delete files that are no longer needed; failures are retried later."""
        rules = RetentionRules(
            self._config.keep_checkpoints, self._config.tracks, self.epoch, self._snapshots.unnamed
        )
        try:
            doomed = self._store.transact(
                lambda session: retention.retain(session, self._run_id, rules)
            )
        except StoreUnavailable as error:
            log.warning("Old checkpoints not deleted", error=str(error))
            return
        retention.remove_directories(doomed, self._checkpoint_files.stop)

    def _announce(self, then: Position) -> None:
        """Announce the checkpoint. The row is committed, so a lost event only delays."""
        event = CheckpointPublished(
            run_id=self._run_id, version=then.version, checkpoint_id=then.checkpoint_id
        )
        try:
            self._announce_event(event)
        except BrokerError as error:
            log.warning("Checkpoint not announced", version=then.version, error=str(error))

    def snapshot(self, learner: Learner, at: Position) -> None:
        """Save a snapshot of the last update before the trainer stops.

        If the database is unavailable, no row names the snapshot; the next start finds it anyway.
        """
        self._snapshots.collect(wait=True)
        if at.version != max(self._snapshots.newest, 0):
            self._snapshots.begin(learner, at)
            self._snapshots.collect(wait=True)
        self._snapshots.name()

    def end_if_due(self, at: Position) -> bool:
        """End the run if a stop rule is met; otherwise check alarms.

        Raises TrainerReplaced if another trainer has taken over.
        """
        self._snapshots.collect(wait=False)
        self._snapshots.name()
        rule = self._stop_rules.find_met_rule(at.version)
        if rule:
            self._store.transact(partial(self._end, rule))
        else:
            self._alarms.record_group_alarms(self._store, at.version, self.epoch)
        return bool(rule)

    def _end(self, rule: str, session: Session) -> None:
        updates.lock_run(session, self._run_id, self.epoch)
        runs.move_run(session, self._run_id, RunState.COMPLETED, rule)

    def _drop_older_snapshots(self) -> bool:
        """Delete all snapshots except the newest; return whether there were any."""
        drop = partial(retention.drop_snapshots, run_id=self._run_id, keep=1, epoch=self.epoch)
        try:
            doomed = self._store.transact(drop)
        except StoreUnavailable:
            return False
        retention.remove_directories(doomed)
        return bool(doomed)
