from typing import Any

import pytest
from run_transitions import World
from sqlalchemy import event

from agentrl.db.registry import checkpoints


def test_tracks_follow_the_live_lineage_never_the_highest_version(world: World) -> None:
    with world.store.write() as session:
        session.add_all([world.checkpoint(1, snapshot_path="snapshot"), world.checkpoint(2)])
    world.sql("UPDATE checkpoints SET state = 'rolled_back' WHERE version = 2")
    with world.store.read() as session:
        live = checkpoints.live_checkpoints(session, world.run_id)
        resumable = checkpoints.latest_snapshot(session, world.run_id)
    assert resumable is not None
    assert live[-1].version == resumable.version == 1


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_live_policies_are_read_from_open_servings_alone(world: World) -> None:
    """A server opens a serving row of each track at every update, and keeps them all."""
    asked: list[tuple[str, Any]] = []
    event.listen(
        world.store.engine, "before_cursor_execute", lambda *given: asked.append(given[2:4])
    )
    with world.store.read() as session:
        found = checkpoints.live_policies(session, world.run_id)
        statement, values = asked[-1]
        connection = session.connection()
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all()
    assert [policy.track for policy in found] == ["current", "lagged(4)"]
    assert "USING INDEX servings_open (" in str(plan)
