from run_transitions import World

from agentrl.core.types import RunState
from agentrl.db.transitions import dispatcher_lease, runs


def test_a_run_that_is_over_stays_so(world: World) -> None:
    def move(state: RunState) -> bool:
        return world.store.transact(lambda s: runs.move_run(s, world.run_id, state))

    assert move(RunState.PAUSED)
    assert move(RunState.RUNNING)
    assert move(RunState.STOPPED)
    assert not move(RunState.RUNNING)
    assert world.run().state == RunState.STOPPED
    assert world.run().ended_at is not None


def test_the_dispatchers_lease_has_one_holder(world: World) -> None:
    def hold(owner: str, lease_s: float = 60.0) -> bool:
        return world.store.transact(
            lambda s: dispatcher_lease.acquire(s, world.run_id, owner, lease_s=lease_s)
        )

    assert hold("one")
    assert hold("one")
    assert not hold("two")
    world.store.transact(lambda s: dispatcher_lease.release(s, world.run_id, "two"))
    assert not hold("two")
    world.store.transact(lambda s: dispatcher_lease.release(s, world.run_id, "one"))
    assert hold("two", lease_s=-1.0)
    assert hold("one")
