"""Which checkpoints and snapshots a trainer removes from the disk, and which stay."""

from ledgers import SNAPSHOT_EVERY, CountingLearner, LedgerFactory, step
from run_transitions import World

from agentrl.core.config.config import Config
from agentrl.core.config.sections.policies import PolicyServer
from agentrl.core.config.sections.tasks import Task
from agentrl.core.config.sections.training import Trainer
from agentrl.trainer.ledger import Ledger
from agentrl.trainer.retention import RetentionRules, retain


def _open_with_tracks(ledgers: LedgerFactory, tracks: list[str]) -> Ledger:
    """Open a ledger that keeps two checkpoints and what the tracks need."""
    config = Config(
        tasks={"dbbench": Task()},
        trainer=Trainer(snapshot_every=SNAPSHOT_EVERY, keep_checkpoints=2),
        policy=[PolicyServer(name="p", tracks=tracks)],
    )
    return ledgers.open(config)


def _live_versions(world: World) -> list[int]:
    rows = world.ask("SELECT version FROM checkpoints WHERE state = 'live' ORDER BY version")
    return [version for (version,) in rows]


def _versions_on_disk(ledgers: LedgerFactory) -> set[str]:
    """Return the versions that have a directory; `s` marks that of a snapshot."""
    names = [path.name for path in (ledgers.home / "checkpoints").iterdir()]
    return {
        f"{int(name.split('-v')[1][:6])}{'s' if name.endswith('.snapshot') else ''}"
        for name in names
    }


def test_checkpoints_that_nothing_needs_are_removed(world: World, ledgers: LedgerFactory) -> None:
    world.sql("UPDATE servings SET live_until = 1")
    ledger, learner = _open_with_tracks(ledgers, ["current"]), CountingLearner()
    at = ledger.resume(learner)
    for position in range(7):
        at = step(world, ledger, learner, at, position)
    assert _live_versions(world) == [0, 4, 6, 7]
    assert _versions_on_disk(ledgers) == {"4", "4s", "6", "6s", "7"}
    assert world.ask("SELECT COUNT(*) FROM checkpoints WHERE state = 'deleted'") == [(4,)]
    assert world.accounting() == []


def test_checkpoints_that_a_track_a_server_or_an_open_group_needs_stay(
    world: World, ledgers: LedgerFactory
) -> None:
    tracks = ["current", "lagged(3)", "refreshed(5)"]
    ledger, learner = _open_with_tracks(ledgers, tracks), CountingLearner()
    at = ledger.resume(learner)
    for position in range(9):
        at = step(world, ledger, learner, at, position)
        if at.version == 2:
            world.sql("UPDATE servings SET checkpoint_id = :c, version = 2", c=at.checkpoint_id)
        if at.version == 3:
            world.ready(20)
            world.sql("UPDATE steps SET checkpoint_id = :c", c=at.checkpoint_id)
    assert _live_versions(world) == [0, 2, 3, 5, 6, 7, 8, 9]
    assert _versions_on_disk(ledgers) == {"2", "3", "5", "6", "6s", "7", "8", "8s", "9"}


def test_a_trainer_that_starts_removes_directories_that_no_row_names(
    world: World, ledgers: LedgerFactory
) -> None:
    ledger, learner, at = ledgers.train(1)
    ledger.snapshot(learner, at)
    home = ledgers.home / "checkpoints"
    kept = set(home.iterdir())
    (home / f".{world.run_id}-v000009-abc.partial").mkdir()
    (home / f"{world.run_id}-v000009-def.snapshot").mkdir()
    ledgers.open().resume(CountingLearner())
    assert set(home.iterdir()) == kept


def test_a_trainer_that_was_replaced_removes_nothing(world: World, ledgers: LedgerFactory) -> None:
    _open_with_tracks(ledgers, ["current"]).resume(CountingLearner())
    with world.store.write() as session:
        for version in (1, 2, 3, 4):
            session.add(world.checkpoint(version))
        found = retain(session, world.run_id, RetentionRules(keep=1, tracks=["current"], epoch=99))
    assert found == []
