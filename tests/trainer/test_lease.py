from run_transitions import World
from running import eventually

from agentrl.db.store import Store
from agentrl.db.transitions import runs
from agentrl.trainer.lease import trainer_lease


def _lease(world: World) -> tuple[str, float]:
    ((owner, until),) = world.ask("SELECT trainer, trainer_until FROM runs")
    return owner, until


def test_the_lease_holds_while_the_trainer_works_and_is_given_back(store: Store) -> None:
    world = World.begin(store)
    epoch = store.transact(lambda session: runs.begin_epoch(session, world.run_id))
    with trainer_lease(store, world.run_id, lambda: epoch, beat_s=0.01):
        eventually(lambda: _lease(world)[1] > 0, within_s=60, text=lambda: str(_lease(world)))
        assert _lease(world)[0] == str(epoch)
    assert _lease(world) == (str(epoch), 0.0)


def test_a_trainer_that_was_replaced_takes_no_lease_from_its_successor(store: Store) -> None:
    world = World.begin(store)
    for _ in "ab":
        epoch = store.transact(lambda session: runs.begin_epoch(session, world.run_id))
    assert store.transact(
        lambda session: runs.extend_trainer_lease(session, world.run_id, epoch, lease_s=60.0)
    )
    held = _lease(world)
    with trainer_lease(store, world.run_id, lambda: epoch - 1, beat_s=0.01):
        pass
    assert _lease(world) == held
