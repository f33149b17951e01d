"""The rows of external models."""

from run_transitions import World, run_concurrently

from agentrl.core.types import CheckpointState
from agentrl.db.registry import checkpoints, external_policies
from agentrl.db.store import Store
from agentrl.db.transitions import lifecycle


def test_what_is_spent_is_added_up_by_run_and_name(store: Store) -> None:
    run_id = World.begin(store).run_id
    with store.read() as session:
        assert external_policies.spending(session, run_id, "teacher") == (0, 0)
    with store.write() as session:
        for name in ("teacher", "other", "teacher"):
            external_policies.require_checkpoint(session, run_id, name)
    store.transact(external_policies.record_spending(run_id, "teacher", 1, 0))
    one = external_policies.record_spending(run_id, "teacher", 1, 20)
    run_concurrently(*[lambda: store.transact(one)] * 4)
    store.transact(external_policies.record_spending(run_id, "other", 1, 1))
    with store.read() as session:
        assert external_policies.spending(session, run_id, "teacher") == (5, 80)


def test_the_row_that_stands_for_a_model_is_neither_live_nor_present(store: Store) -> None:
    world = World.begin(store)
    for _ in range(2):
        with store.write() as session:
            row = external_policies.require_checkpoint(session, world.run_id, "teacher")
            assert (row.state, row.version) == (CheckpointState.EXTERNAL, external_policies.VERSION)
    first = f"{world.run_id}-v0"
    with store.read() as session:
        live = checkpoints.live_checkpoints(session, world.run_id)
        present = checkpoints.undeleted_checkpoints(session, world.run_id)
        assert [each.checkpoint_id for each in (*live, *present)] == [first, first]


def test_a_deleted_run_leaves_nothing_of_it(store: Store) -> None:
    world = World.begin(store)
    with store.write() as session:
        external_policies.require_checkpoint(session, world.run_id, "teacher")
    with store.write() as session:
        lifecycle.delete_run_rows(session, world.run_id)
    for table in ("spendings", "checkpoints"):
        assert world.ask(f"SELECT count(*) FROM {table}") == [(0,)]  # noqa: S608
