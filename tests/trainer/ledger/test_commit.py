"""What an update writes, and what remains of one that crashes, is refused or finds a full disk."""

import threading
from pathlib import Path
from typing import Any

import pytest
from ledgers import (
    METRICS,
    CountingLearner,
    LedgerFactory,
    commit,
    ready_groups,
    saved_counts,
    step,
)
from run_transitions import World
from sqlalchemy import event

from agentrl.broker.api import Consumer
from agentrl.broker.messages import CheckpointPublished
from agentrl.checkpoints import manifest
from agentrl.checkpoints.checkpoint_store import CheckpointStore, WeightsAway
from agentrl.checkpoints.manifest import Probe, SaveReport
from agentrl.core.config.config import Config
from agentrl.core.config.sections.tasks import Task
from agentrl.core.errors import BrokerError
from agentrl.core.trained_hash import ROOT, running_hash
from agentrl.core.types import GroupState
from agentrl.db.transitions.updates import RunEnded, TrainerReplaced, UpdateRefused
from agentrl.trainer.batch import TakenGroups
from agentrl.trainer.engines.learner import Metrics, WeightsWriter


def test_an_update_is_published_committed_and_announced(
    world: World, ledgers: LedgerFactory, events: Consumer, tmp_path: Path
) -> None:
    ledger, learner = ledgers.open(), CountingLearner()
    at = ledger.resume(learner)
    assert at.version == 0
    at = step(world, ledger, learner, at, 0)
    assert world.run().version == at.version == 1
    assert saved_counts(world) == {1: 1}
    written = manifest.verify(tmp_path / "checkpoints" / at.checkpoint_id)
    assert written.probe == Probe([7, 1], [-0.5])
    learned = [sha256 for (sha256,) in world.ask("SELECT sha256 FROM update_groups")]
    assert written.trained_hash == at.trained_hash == running_hash(ROOT, learned)
    rows = world.ask("SELECT trained_hash FROM checkpoints WHERE version = 1")
    assert rows == [(at.trained_hash,)]
    (delivery,) = events.receive(9, 2.0)
    assert delivery.message == CheckpointPublished(
        run_id=world.run_id, version=1, checkpoint_id=at.checkpoint_id
    )
    assert world.accounting() == []


def test_an_update_is_committed_although_its_announcement_is_lost(
    world: World, tmp_path: Path
) -> None:
    class AwayPublisher:
        def publish(self, *_message: object, **_options: object) -> None:
            raise BrokerError("the broker is away")

        def close(self) -> None: ...

    ledger, learner = LedgerFactory(world, AwayPublisher(), tmp_path).open(), CountingLearner()
    assert step(world, ledger, learner, ledger.resume(learner), 0).version == 1
    assert world.run().version == 1


def test_after_a_crash_between_publish_and_commit_the_next_trainer_commits_the_same_group(
    world: World, ledgers: LedgerFactory
) -> None:
    ledger, learner = ledgers.open(), CountingLearner()
    at = ledger.resume(learner)
    groups = ready_groups(world, 0)

    @event.listens_for(world.store.engine, "before_cursor_execute")
    def crash(_c: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        if statement.startswith("INSERT INTO update_groups"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        commit(ledger, learner, at, TakenGroups(groups), Metrics({}))
    event.remove(world.store.engine, "before_cursor_execute", crash)
    assert world.ask("SELECT COUNT(*) FROM updates") == [(0,)]
    assert world.ask("SELECT MAX(version) FROM checkpoints") == [(0,)]
    assert world.group(groups[0].group_id).state == GroupState.READY

    again, fresh = ledgers.open(), CountingLearner()
    fresh.count = 1
    at = commit(again, fresh, again.resume(CountingLearner()), TakenGroups(groups), Metrics({}))
    assert at.version == 1
    assert world.accounting() == []


@pytest.mark.parametrize(
    ("meanwhile", "error"),
    [
        ("UPDATE runs SET trainer_epoch = trainer_epoch + 1", TrainerReplaced),
        ("UPDATE runs SET state = 'stopped'", RunEnded),
        ("UPDATE groups SET state = 'open'", UpdateRefused),
        ("UPDATE episodes SET fence = 2 WHERE member = 0", UpdateRefused),
    ],
)
def test_a_refused_update_leaves_neither_rows_nor_files(
    world: World, ledgers: LedgerFactory, tmp_path: Path, meanwhile: str, error: type[Exception]
) -> None:
    ledger, learner = ledgers.open(), CountingLearner()
    at = ledger.resume(learner)
    groups = ready_groups(world, 0)
    world.sql(meanwhile)
    with pytest.raises(error):
        commit(ledger, learner, at, TakenGroups(groups), Metrics({}))
    assert world.ask("SELECT COUNT(*) FROM updates") == [(0,)]
    assert world.run().version == 0
    assert list((tmp_path / "checkpoints").iterdir()) == []
    assert world.ask("SELECT transition, subject, fence, found FROM refusals") == [
        ("commit", world.run_id, 1, error.__name__)
    ]


class ReplacedLearner(CountingLearner):
    """Another trainer starts while this one's checkpoint is written, and removes what it finds."""

    def __init__(self, ledgers: LedgerFactory) -> None:
        super().__init__()
        self._ledgers = ledgers

    def copy_weights(self) -> WeightsWriter:
        write = super().copy_weights()

        def write_late(directory: Path) -> SaveReport:
            self._ledgers.open().resume(CountingLearner())
            return write(directory)

        return write_late


def test_a_trainer_replaced_while_it_writes_a_checkpoint_says_so(
    world: World, ledgers: LedgerFactory
) -> None:
    """The supervisor does not restart it then, and no person looks for a broken disk."""
    ledger, learner = ledgers.open(), ReplacedLearner(ledgers)
    at = ledger.resume(learner)
    with pytest.raises(TrainerReplaced):
        step(world, ledger, learner, at, 0)


def test_a_trainer_replaced_while_it_writes_a_snapshot_says_so(
    world: World, ledgers: LedgerFactory
) -> None:
    def start_another() -> bool:
        ledgers.open().resume(CountingLearner())
        return False

    ledger, learner = ledgers.open(), CountingLearner(is_full=start_another)
    at = step(world, ledger, learner, ledger.resume(learner), 0)
    with pytest.raises(TrainerReplaced):
        ledger.snapshot(learner, at)


def test_every_call_after_a_refused_update_raises_its_error_and_no_snapshot_is_written(
    world: World, ledgers: LedgerFactory, tmp_path: Path
) -> None:
    ledger, learner = ledgers.open(), CountingLearner()
    at = step(world, ledger, learner, ledger.resume(learner), 0)
    (group,) = ready_groups(world, 7)
    learner.count += 1
    world.sql("UPDATE episodes SET fence = 2 WHERE group_id = :g", g=group.group_id)
    then = ledger.publish(learner, at, TakenGroups([group]), METRICS, 1.0)
    for ask in (
        ledger.settle,
        lambda: ledger.snapshot(learner, then),
        lambda: ledger.publish(learner, then, TakenGroups([group]), METRICS, 1.0),
    ):
        with pytest.raises(UpdateRefused):
            ask()
    assert world.run().version == 1
    assert [*(tmp_path / "checkpoints").glob("*.snapshot")] == []


def test_a_checkpoint_waits_until_the_disk_has_room(world: World, ledgers: LedgerFactory) -> None:
    ledger, learner = ledgers.open(), CountingLearner(refusals=3)
    at = step(world, ledger, learner, ledger.resume(learner), 0)
    assert (at.version, learner.refusals) == (1, 0)
    assert saved_counts(world) == {1: 1}


def test_a_trainer_that_waits_for_room_on_the_disk_ends_at_the_stop_event(
    world: World, ledgers: LedgerFactory, tmp_path: Path
) -> None:
    stop = threading.Event()
    checkpoints = CheckpointStore(tmp_path / "checkpoints", stop=stop)
    config = Config(tasks={"dbbench": Task()})
    ledger = ledgers.open(config, checkpoints=checkpoints, in_threads=True)
    learner = CountingLearner(refusals=10**9)
    at = ledger.resume(learner)
    stop.set()
    with pytest.raises(WeightsAway, match="No space left on device"):
        step(world, ledger, learner, at, 0)
    assert world.run().version == 0
    assert [*checkpoints.home.iterdir()] == []
