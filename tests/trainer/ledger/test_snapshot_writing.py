"""When a ledger writes a snapshot, and what it does when the disk has no room for one."""

import threading

from ledgers import SNAPSHOT_EVERY, CountingLearner, LedgerFactory, step
from run_transitions import World
from running import eventually

from agentrl.core.config.config import Config
from agentrl.core.config.sections.tasks import Task
from agentrl.core.config.sections.training import Trainer

SNAPSHOTS = "SELECT version FROM checkpoints WHERE snapshot_path IS NOT NULL ORDER BY version"


def _alarms(world: World) -> list[str]:
    return [name for (name,) in world.ask("SELECT name FROM raised_alarms ORDER BY name")]


def test_a_full_disk_raises_an_alarm_and_the_next_update_tries_the_snapshot_again(
    world: World, ledgers: LedgerFactory
) -> None:
    has_room = threading.Event()
    ledger, learner = ledgers.open(), CountingLearner(is_full=lambda: not has_room.is_set())
    at = ledger.resume(learner)
    for position in range(SNAPSHOT_EVERY + 1):
        at = step(world, ledger, learner, at, position)
    assert (at.version, _alarms(world)) == (SNAPSHOT_EVERY + 1, ["snapshot_failed"])
    assert world.ask(SNAPSHOTS) == []
    has_room.set()
    at = step(world, ledger, learner, at, SNAPSHOT_EVERY + 1)
    assert world.ask(SNAPSHOTS) == [(at.version,)]
    step(world, ledger, learner, at, SNAPSHOT_EVERY + 2)
    assert _alarms(world) == []
    assert ledgers.open().resume(CountingLearner()) == at


def test_a_trainer_that_ends_on_a_full_disk_ends_without_a_snapshot(
    world: World, ledgers: LedgerFactory
) -> None:
    ledger, learner = ledgers.open(), CountingLearner(is_full=lambda: True)
    at = step(world, ledger, learner, ledger.resume(learner), 0)
    ledger.snapshot(learner, at)
    assert world.ask(SNAPSHOTS) == []


def test_the_older_snapshot_is_removed_to_make_room_for_a_new_one(
    world: World, ledgers: LedgerFactory
) -> None:
    """The disk holds two snapshots; the third replaces the older of them."""
    home = ledgers.home / "checkpoints"
    ledger = ledgers.open()
    learner = CountingLearner(is_full=lambda: len([*home.glob("*.snapshot")]) >= 2)
    at = ledger.resume(learner)
    for position in range(3 * SNAPSHOT_EVERY):
        at = step(world, ledger, learner, at, position)
    assert world.ask(SNAPSHOTS) == [(2 * SNAPSHOT_EVERY,), (3 * SNAPSHOT_EVERY,)]
    assert _alarms(world) == []


class BlockedSnapshotLearner(CountingLearner):
    """A learner whose snapshots wait for `may_write`."""

    def __init__(self, may_write: threading.Event) -> None:
        def wait() -> bool:
            assert may_write.wait(60.0)
            return False

        super().__init__(is_full=wait)


def test_updates_go_on_while_a_snapshot_is_written_and_its_checkpoint_is_kept(
    world: World, ledgers: LedgerFactory
) -> None:
    """With `keep_checkpoints` 1 only the snapshot keeps the checkpoint of its version."""
    may_write = threading.Event()
    learner = BlockedSnapshotLearner(may_write)
    trainer = Trainer(snapshot_every=SNAPSHOT_EVERY, keep_checkpoints=1)
    ledger = ledgers.open(Config(tasks={"dbbench": Task()}, trainer=trainer), in_threads=True)
    at = ledger.resume(learner)
    for position in range(2 * SNAPSHOT_EVERY + 1):
        at = step(world, ledger, learner, at, position)
    live = SNAPSHOTS.replace("WHERE", "WHERE state = 'live' AND")
    assert (at.version, world.ask(live)) == (2 * SNAPSHOT_EVERY + 1, [])
    may_write.set()
    eventually(
        lambda: not ledger.end_if_due(at) and world.ask(live) == [(SNAPSHOT_EVERY,)],
        within_s=60,
        text=lambda: str(world.ask(live)),
    )
    ledger.snapshot(learner, at)
    assert world.ask(live) == [(SNAPSHOT_EVERY,), (at.version,)]
    assert _alarms(world) == []
    assert world.accounting() == []
