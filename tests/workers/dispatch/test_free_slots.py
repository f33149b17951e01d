"""How many groups a dispatcher admits, and when admission waits for a checkpoint."""

from dispatching import BOUND, make_dispatcher, positions, tick
from run_transitions import World
from sqlalchemy import select
from sqlalchemy.orm import Session

from agentrl.core.types import CURRENT, RunState
from agentrl.db.models.processes import PolicyServer
from agentrl.db.registry import policy_servers
from agentrl.workers.dispatch.dispatcher import ADMITTED, AWAIT_S, FAILED_SLOT_S


def test_groups_are_admitted_up_to_the_bound_and_their_episodes_sent(world: World) -> None:
    dispatcher = make_dispatcher(world)
    sent = tick(dispatcher)
    assert len(sent) == BOUND * 2
    assert {command.fence for command in sent} == {1}
    assert {command.run_id for command in sent} == {world.run_id}
    assert tick(dispatcher) == []
    assert positions(world) == [0, 1, 2, 3]
    world.sql("UPDATE groups SET state = 'ready', pending = 0 WHERE position = 0")
    assert tick(dispatcher) == []
    world.sql("UPDATE groups SET state = 'filtered', closed_at = admitted_at WHERE position = 0")
    assert len(tick(dispatcher)) == 2
    assert positions(world) == [0, 1, 2, 3, 4]


def test_failed_groups_except_one_keep_their_slots_for_some_time(world: World) -> None:
    dispatcher = make_dispatcher(world, items=9)
    tick(dispatcher)
    fail = "UPDATE groups SET state = 'failed', pending = 0, closed_at = admitted_at WHERE"
    world.sql(f"{fail} position = 0")
    assert len(tick(dispatcher)) == 2, "one that failed is replaced at once"
    world.sql(f"{fail} state = 'open'")
    assert tick(dispatcher) == []
    assert world.run().state == RunState.RUNNING
    world.sql("UPDATE groups SET closed_at = closed_at - :s", s=FAILED_SLOT_S)
    assert len(tick(dispatcher)) == 2 * BOUND


def test_many_free_slots_are_filled_in_several_ticks(world: World) -> None:
    groups = ADMITTED // 2 + 1
    dispatcher = make_dispatcher(world, groups_per_update=groups, max_staleness=0)
    assert [len(tick(dispatcher)) for _ in range(3)] == [ADMITTED, 2, 0]


def _serve_current(world: World, version: int) -> None:
    """Let the policy server of the run serve this version on the track `current`."""

    def serve(session: Session) -> None:
        checkpoint = world.checkpoint(version)
        session.add(checkpoint)
        session.flush()
        (server_id,) = session.scalars(select(PolicyServer.server_id))
        policy_servers.begin_serving(session, server_id, CURRENT, checkpoint)

    world.store.transact(serve)


def test_on_policy_no_group_begins_before_the_newest_checkpoint_is_served(world: World) -> None:
    dispatcher = make_dispatcher(world, max_staleness=0)
    world.sql("UPDATE runs SET version = 2")
    assert tick(dispatcher) == []
    assert world.run().state == RunState.RUNNING
    _serve_current(world, 2)
    assert len(tick(dispatcher)) == 4


def test_on_policy_admission_waits_a_limited_time_for_a_checkpoint_that_no_server_loads(
    world: World,
) -> None:
    now = [0.0]
    dispatcher = make_dispatcher(world, clock=lambda: now[0], max_staleness=0)
    world.sql("UPDATE runs SET version = 2")
    assert tick(dispatcher) == []
    now[0] += AWAIT_S
    assert len(tick(dispatcher)) == 4


def test_off_policy_admission_does_not_wait_for_a_checkpoint(world: World) -> None:
    world.sql("UPDATE runs SET version = 2")
    assert len(tick(make_dispatcher(world, max_staleness=1))) == 2 * BOUND
