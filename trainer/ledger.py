"""The ledger: publishes a checkpoint, then commits the update with its groups and hashes.

    publish ─▶ copy of the weights ─▶ thread: files, transaction (trainer/update_publisher.py)
      loop: the next batch, its gradient
    settle  ─▶ the update is committed, or its error ─▶ (snapshot when due) ─▶ the loop may step

At most one update is in flight, and until it is settled the weights stay those of that update. So
what is saved for the next trainer is the update in flight or a committed one, never a later one.
The thread waits while a disk or an object store is full or unavailable, unless the trainer is
stopping. Snapshots are written in the background (trainer/snapshots/snapshot_writer.py); one that
could not be saved is tried again at the next update. A trainer whose epoch is outdated commits
nothing and ends.
"""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial

from msgspec.structs import replace
from sqlalchemy.orm import Session

from agentrl.broker.messages import Message
from agentrl.checkpoints.checkpoint_store import CheckpointStore, WeightsAway
from agentrl.core.errors import CheckpointError, StoreError, StoreUnavailable
from agentrl.core.logging import get_logger
from agentrl.core.trained_hash import running_hash
from agentrl.core.types import RunState, Transition
from agentrl.db.models.updates import Checkpoint
from agentrl.db.registry import checkpoints
from agentrl.db.store import Store
from agentrl.db.transitions import runs, updates
from agentrl.db.transitions.updates import RunEnded, UpdateRefused
from agentrl.trainer import retention
from agentrl.trainer.alarm_recorder import AlarmRecorder
from agentrl.trainer.batch import TakenGroups
from agentrl.trainer.checkpoint_writer import Position
from agentrl.trainer.engines.learner import Learner, Metrics, proceed
from agentrl.trainer.ledger_config import LedgerConfig
from agentrl.trainer.retention import RetentionRules
from agentrl.trainer.snapshots import pending_update
from agentrl.trainer.snapshots.pending_update import UpdateRecord
from agentrl.trainer.snapshots.recovery import find_restart
from agentrl.trainer.snapshots.snapshot_writer import SnapshotWriter
from agentrl.trainer.stop_rules import StopRules
from agentrl.trainer.update_publisher import Publication, UpdatePublisher, count_refusals

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
        publishing: Executor | None = None,
        machine: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        """`announce`: publishes an event without waiting for an unavailable broker. `background`:
        writes snapshots; `publishing`: publishes updates; None: a thread. `machine`: measures use
        of the machine, for each update.
        """
        self._config = config
        self._run_id = run_id
        self._machine = machine
        self._store = store
        self._checkpoint_files = checkpoint_files
        self._snapshots = SnapshotWriter(
            checkpoint_files.home,
            store,
            self._drop_older_snapshots,
            self._require_epoch,
            background,
        )
        self.epoch = 0  # of this trainer, from `resume` on
        self._alarms = AlarmRecorder(config.alarms, config.max_grad_norm, run_id)
        self._publisher = UpdatePublisher(
            run_id,
            store,
            announce,
            checkpoint_files,
            alarms=self._alarms,
            background=publishing,
        )
        self._in_flight: Publication | None = None
        self._waited_s = 0.0  # for commits, since the last update was published
        self._stop_rules = StopRules(config, run_id, store)

    def resume(self, learner: Learner) -> Position:
        """Start a new epoch from the newest snapshot; later updates are rolled back.

        Without a snapshot the run starts at its first checkpoint, which the learner has loaded.
        Raises CheckpointError if snapshots exist but none can be used, and RunEnded if the run is
        over, or if a stop rule ends it before it would be rolled back.
        """
        self.epoch = self._store.transact(lambda session: runs.begin_epoch(session, self._run_id))
        self._commit_kept()
        live = self._store.ask(self._live)
        restart = find_restart(live, self._checkpoint_files.home)
        checkpoint, newest = restart.checkpoint, live[-1].version
        if checkpoint.version < newest and (rule := self._stop_rules.find_met_rule(newest)):
            self._store.transact(partial(self._end, rule))
            raise RunEnded(f"the run has reached {rule} at version {newest}")
        if restart.state is not None:
            learner.load_state(restart.state)
            self._snapshots.newest = checkpoint.version

        def begin(session: Session) -> int:
            undone = updates.roll_back(session, self._run_id, checkpoint, epoch=self.epoch)
            if restart.path is not None:
                checkpoints.set_snapshot_path(session, checkpoint.checkpoint_id, str(restart.path))
            return undone

        with count_refusals(self._store, self._run_id, self.epoch, Transition.ROLL_BACK):
            undone = self._store.transact(begin)
        rows = self._store.ask(partial(checkpoints.undeleted_checkpoints, run_id=self._run_id))
        left = retention.find_orphans(rows, self._checkpoint_files, self._run_id)
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

    def publish(  # noqa: PLR0913 - everything that it commits
        self,
        learner: Learner,
        at: Position,
        groups: TakenGroups,
        metrics: Metrics,
        started_at: float,
        *,
        on_commit: Callable[[], object] = proceed,
    ) -> Position:
        """Start to publish and commit the update from `at`; return the position that it leads to.

        It waits for the former publication and for a copy of the weights. The learner's weights may
        not change until this update is settled. `on_commit`: called by the publishing thread after
        the commit. Raises what `settle` raises.
        """
        self.settle()
        then, record = self._describe(at, groups, metrics, started_at)
        self._in_flight = self._publisher.begin(learner, then, record, self.epoch, on_commit)
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
            metrics={**metrics.values, **self._machine(), **self._own_metrics()},
            skipped=metrics.skipped,
            started_at=started_at,
            left_out=[group.group_id for group in groups.left_out],
        )

    def _own_metrics(self) -> Mapping[str, float]:
        """Return the wait for the former commit, and whether the last snapshot failed, once."""
        self._snapshots.collect(wait=False)
        waited_s, self._waited_s = self._waited_s, 0.0
        failed, self._snapshots.is_failed = self._snapshots.is_failed, None
        snapshot = {} if failed is None else {"snapshot_failed": float(failed)}
        return {"commit_wait_s": waited_s, **snapshot}

    def settle(self, *, wait: bool = True) -> None:
        """Wait until the update in flight is committed.

        Then begin a snapshot if one is due, and the deletion of what nothing needs any more.

        `wait`: False: do nothing if it is not committed yet. An error means that it is not
        committed; every later call raises it again. UpdateRefused and CheckpointError are final.
        After WeightsAway or a StoreError the update is kept for the next trainer, if the local disk
        allows. Only a trainer that is stopping raises WeightsAway or StoreUnavailable.
        """
        publication = self._in_flight
        if publication is None or not (wait or publication.result.done()):
            return
        began = time.perf_counter()
        try:
            publication.result.result()
        except UpdateRefused:
            raise
        except WeightsAway:
            if self._publisher.writer.holds(publication.then.checkpoint_id):
                self._keep(publication, arrived=False)
            raise
        except StoreError:  # away, or for a person to correct, as after a change of the password
            self._keep(publication)
            raise
        self._waited_s += time.perf_counter() - began
        self._in_flight = None
        self._snapshots.collect(wait=False)  # one that has ended makes room for the next
        age = publication.then.version - max(self._snapshots.newest, 0)
        if age >= self._config.snapshot_every and not self._snapshots.is_writing:
            self._snapshots.begin(publication.learner, publication.then)
        self._snapshots.name()
        keep, tracks = self._config.keep_checkpoints, self._config.tracks
        self._publisher.retain(RetentionRules(keep, tracks, self.epoch, self._snapshots.unnamed))

    def _keep(self, publication: Publication, *, arrived: bool = True) -> None:
        """Save an update for the next trainer, once. `arrived`: see UpdateRecord."""
        if publication.is_kept:
            return
        publication.is_kept = True
        path = self._snapshots.save(publication.learner, publication.then)
        if path is None:
            return
        try:
            pending_update.save_update(replace(publication.record, arrived=arrived), path)
        except OSError as error:
            log.error("Pending update not saved", path=str(path), error=str(error))

    def _commit_kept(self) -> None:
        """Commit the pending update of the previous trainer; a refused update is lost."""
        live = self._store.ask(self._live)
        record = pending_update.find_update(
            self._checkpoint_files.home, self._run_id, live[-1].checkpoint_id
        )
        if record is not None:
            self._publisher.commit_pending(record, self.epoch)

    def snapshot(self, learner: Learner, at: Position) -> None:
        """Settle the last update and save a snapshot of it before the trainer stops.

        If the database is unavailable, no row names the snapshot; the next start finds it anyway.
        Raises what `settle` raises.
        """
        self.settle()
        self._publisher.finish()
        self._snapshots.collect(wait=True)
        if at.version != max(self._snapshots.newest, 0):
            self._snapshots.begin(learner, at)
            self._snapshots.collect(wait=True)
        self._snapshots.name()

    def end_if_due(self, at: Position) -> bool:
        """End the run if a stop rule is met, after the update in flight; otherwise check alarms.

        Raises TrainerReplaced if another trainer has taken over, and what `settle` raises.
        """
        self.settle(wait=False)
        self._snapshots.collect(wait=False)
        self._snapshots.name()
        rule = self._stop_rules.find_met_rule(at.version)
        if rule:
            self.settle()
            self._publisher.finish()
            self._store.transact(partial(self._end, rule))
        elif self._in_flight is None:  # else the commit looks at the groups
            self._alarms.record_group_alarms(self._store, at.version, self.epoch)
        return bool(rule)

    def _end(self, rule: str, session: Session) -> None:
        updates.lock_run(session, self._run_id, self.epoch)
        runs.move_run(session, self._run_id, RunState.COMPLETED, rule)

    def _require_epoch(self) -> None:
        """Raise TrainerReplaced if another trainer has started."""
        self._store.ask(partial(updates.run_state, run_id=self._run_id, epoch=self.epoch))

    def _drop_older_snapshots(self) -> bool:
        """Delete all snapshots except the newest; return whether there were any."""
        drop = partial(retention.drop_snapshots, run_id=self._run_id, keep=1, epoch=self.epoch)
        try:
            doomed = self._store.transact(drop)
        except StoreUnavailable:
            return False
        retention.remove_directories(doomed)
        return bool(doomed)
