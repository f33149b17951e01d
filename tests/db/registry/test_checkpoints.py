import pytest
from run_transitions import World

from agentrl.db.registry import checkpoints
from agentrl.db.store import Store


@pytest.fixture
def world(store: Store) -> World:
    return World.begin(store)


def test_tracks_follow_the_live_lineage_never_the_highest_version(world: World) -> None:
    with world.store.write() as session:
        session.add_all([world.checkpoint(1, snapshot_path="snapshot"), world.checkpoint(2)])
    world.sql("UPDATE checkpoints SET state = 'rolled_back' WHERE version = 2")
    with world.store.read() as session:
        latest = checkpoints.latest_checkpoint(session, world.run_id)
        resumable = checkpoints.latest_snapshot(session, world.run_id)
    assert latest is not None
    assert resumable is not None
    assert latest.version == resumable.version == 1
