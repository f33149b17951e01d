"""The ledger: publishes a checkpoint, then commits the update, its groups and hashes in one go.

    save weights ─▶ (snapshot when due) ─▶ one transaction ─▶ CheckpointPublished ─▶ retention
                                           (with alarms: trainer/watch.py)

A trainer whose epoch is no longer the run's commits nothing and ends.
"""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path

from sqlalchemy.orm import Session

from broker.api import Publisher
from broker.messages import CheckpointPublished, body_sha256
from broker.topology import EVENTS
from broker.weights import Shelf
from core.config import Config
from core.errors import BrokerError, CheckpointError
from core.logging import get_logger
from core.manifest import Probe
from core.types import CheckpointState, RunState, Transition, UpdateState
from db import progress, refusals, registry, runs, updates
from db.alarms import Reading
from db.models import Checkpoint
from db.store import Store, now
from db.updates import NewUpdate, TrainedMember, UpdateRefused
from trainer import checkpoints, retention, snapshots
from trainer.batch import TrainableGroup
from trainer.learner import Learner, Metrics
from trainer.watch import Watch, tell

SUCCESS_UPDATES = 10  # `stop_success` looks at so many updates, or as many groups without spread

log = get_logger()


@dataclass(frozen=True, slots=True)
class Position:
    """Where a trainer stands: the checkpoint its weights are."""

    version: int
    checkpoint_id: str


class Ledger:
    """Writes one run's updates; used by one thread."""

    def __init__(
        self, config: Config, run_id: str, store: Store, publisher: Publisher, shelf: Shelf
    ) -> None:
        """`shelf`: where this run's checkpoints are kept; snapshots stay in its folder here."""
        self._config = config
        self._run_id = run_id
        self._store = store
        self._publisher = publisher
        self._shelf = shelf
        self.epoch = 0  # of this trainer, from `resume` on
        self._snapshot = -1  # version of the newest snapshot
        self._watch = Watch(config, run_id)

    def resume(self, learner: Learner) -> Position:
        """Begin a new epoch from the newest snapshot; later updates leave the live lineage.

        Where there is no snapshot the run begins at its first checkpoint, which the learner holds.
        """
        self.epoch = self._store.transact(lambda session: runs.begin_epoch(session, self._run_id))
        checkpoint = self._store.ask(self._resumable)
        if checkpoint.snapshot_path is not None:
            learner.load_state(snapshots.load(Path(checkpoint.snapshot_path)))
            self._snapshot = checkpoint.version
        with self._counted(Transition.ROLL_BACK):
            undone = self._store.transact(
                lambda s: updates.roll_back(s, self._run_id, checkpoint, epoch=self.epoch)
            )
        present = partial(registry.present_checkpoints, run_id=self._run_id)
        left = retention.orphans(self._store.ask(present), self._shelf, self._run_id)
        retention.remove(left, self._shelf.stop)
        log.info("trainer begins", version=checkpoint.version, epoch=self.epoch, undone=undone)
        return Position(checkpoint.version, checkpoint.checkpoint_id)

    def _resumable(self, session: Session) -> Checkpoint:
        """The checkpoint of the newest snapshot, or else the run's first."""
        checkpoint = registry.latest_snapshot(session, self._run_id)
        if checkpoint is None:
            checkpoint = next(iter(registry.live_checkpoints(session, self._run_id)), None)
        if checkpoint is None:
            raise CheckpointError(f"run {self._run_id} has no first checkpoint")
        session.expunge(checkpoint)
        return checkpoint

    def started(self) -> float:
        """The start of an update, on the database's clock."""
        return self._store.clock()

    def commit(
        self,
        learner: Learner,
        at: Position,
        trained: Sequence[TrainableGroup],
        metrics: Metrics,
        started_at: float,
    ) -> Position:
        """Publish and record the update from `at`; returns where the trainer stands then.

        Raises UpdateRefused: nothing was committed, and the weights are those of no checkpoint.
        """
        version = at.version + 1
        checkpoint_id = f"{self._run_id}-v{version:06d}-{uuid.uuid4().hex[:6]}"
        path = self._publish(learner, checkpoint_id, at)
        due = version - max(self._snapshot, 0) >= self._config.trainer.snapshot_every
        snapshot = self._save_snapshot(learner, checkpoint_id, version) if due else None

        def write(session: Session) -> list[Reading]:
            checkpoint = Checkpoint(
                checkpoint_id=checkpoint_id,
                run_id=self._run_id,
                version=version,
                parent_id=at.checkpoint_id,
                path=path,
                snapshot_path=snapshot,
                state=CheckpointState.LIVE,
                created_at=now(),
            )
            return self._watch.commit(
                session, self._new_update(checkpoint, trained, metrics, started_at)
            )

        try:
            with self._counted(Transition.COMMIT):
                told = self._store.transact(write)
        except UpdateRefused:
            retention.remove([path, snapshot or path], self._shelf.stop)
            raise
        tell(told, version, metrics.skipped)
        self._announce(version, checkpoint_id)
        self._retain()
        return Position(version, checkpoint_id)

    @contextmanager
    def _counted(self, transition: Transition) -> Iterator[None]:
        """What is refused inside leaves a row, in a transaction of its own."""
        try:
            yield
        except UpdateRefused as error:
            found = type(error).__name__
            self._store.transact(
                lambda s: refusals.of_run(s, transition, self._run_id, found, self.epoch)
            )
            raise

    def _publish(self, learner: Learner, checkpoint_id: str, at: Position) -> str:
        """The checkpoint after `at` on its shelf: what its row names. Raises CheckpointError."""

        def fill(target: Path) -> Probe:
            learner.save(target)
            return learner.probe()

        directory = self._shelf.local(checkpoint_id)
        checkpoints.publish(
            directory,
            fill,
            checkpoint_id=checkpoint_id,
            version=at.version + 1,
            parent=at.checkpoint_id,
        )
        try:
            return self._shelf.put(checkpoint_id)
        except CheckpointError:
            checkpoints.remove(directory)
            raise

    def _retain(self) -> None:
        """Remove the files that nothing needs any more."""
        tracks = [track for server in self._config.policy_servers() for track in server.tracks]
        keep = self._config.trainer.keep_checkpoints
        doomed = self._store.transact(
            lambda session: retention.retain(
                session, self._run_id, keep=keep, tracks=tracks, epoch=self.epoch
            )
        )
        retention.remove(doomed, self._shelf.stop)

    def _announce(self, version: int, checkpoint_id: str) -> None:
        """Wake whoever waits for a checkpoint; the row stands, so a lost event only delays."""
        event = CheckpointPublished(
            run_id=self._run_id, version=version, checkpoint_id=checkpoint_id
        )
        try:
            self._publisher.publish(EVENTS, self._run_id, event)
        except BrokerError as error:
            log.warning("checkpoint not announced", version=version, error=str(error))

    def snapshot(self, learner: Learner, at: Position) -> None:
        """Make the last update resumable before the trainer stops."""
        if at.version == max(self._snapshot, 0):
            return
        path = self._save_snapshot(learner, at.checkpoint_id, at.version)
        self._store.transact(
            lambda session: registry.name_snapshot(session, at.checkpoint_id, path)
        )

    def end_if_due(self, at: Position) -> bool:
        """End the run where a stop rule of its configuration is met; look at alarms till then.

        Raises TrainerReplaced: what another has learned since may meet none.
        """
        rule = self._rule_met(at)
        if rule:
            self._store.transact(partial(self._end, rule))
        else:
            self._watch.look(self._store, at.version, self.epoch)
        return bool(rule)

    def _end(self, rule: str, session: Session) -> None:
        updates.lock_run(session, self._run_id, self.epoch)
        runs.move_run(session, self._run_id, RunState.COMPLETED, rule)

    def _rule_met(self, at: Position) -> str:
        run = self._config.run
        if run.stop_updates is not None and at.version >= run.stop_updates:
            return f"{run.stop_updates} updates"
        if run.stop_hours is not None:
            hours = self._store.ask(lambda session: progress.hours(session, self._run_id))
            if hours >= run.stop_hours:
                return f"{run.stop_hours} hours"
        if run.stop_success is not None and self._solved(at, run.stop_success):
            return f"success {run.stop_success}"
        return ""

    def _solved(self, at: Position, share: float) -> bool:
        """Whether every task has that success, over enough groups to tell."""
        fewest = self._config.trainer.min_groups or self._config.dispatch.groups_per_update

        def look(session: Session) -> tuple[int, dict[str, float]]:
            closed = progress.recent_groups(session, self._run_id, SUCCESS_UPDATES)
            return closed, progress.recent_success(session, self._run_id, SUCCESS_UPDATES)

        closed, success = self._store.ask(look)
        if at.version < SUCCESS_UPDATES and closed < SUCCESS_UPDATES * fewest:
            return False
        return all(success.get(task, -1.0) >= share for task in self._config.tasks)

    def _save_snapshot(self, learner: Learner, checkpoint_id: str, version: int) -> str:
        directory = self._shelf.home / f"{checkpoint_id}.snapshot"
        snapshots.save(
            directory, learner.state(), checkpoint_id=checkpoint_id, version=version, parent=None
        )
        self._snapshot = version
        return str(directory)

    def _new_update(
        self,
        checkpoint: Checkpoint,
        trained: Sequence[TrainableGroup],
        metrics: Metrics,
        started_at: float,
    ) -> NewUpdate:
        return NewUpdate(
            update_id=f"{checkpoint.checkpoint_id}.update",
            run_id=self._run_id,
            epoch=self.epoch,
            state=UpdateState.SKIPPED if metrics.skipped else UpdateState.COMMITTED,
            reason=metrics.skipped,
            checkpoint=checkpoint,
            members=[
                TrainedMember(
                    episode_id=member.episode_id,
                    group_id=group.group_id,
                    fence=member.fence,
                    sha256=body_sha256(member),
                    loss_tokens=int(member.mask().sum()),
                    advantage=advantage,
                )
                for group in trained
                for member, advantage in zip_longest(group.members, group.advantages)
            ],
            metrics=dict(metrics.values),
            started_at=started_at,
        )
