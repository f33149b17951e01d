"""What pages and reports ask of a run."""

from contextlib import closing
from pathlib import Path

from run_history import begun, trained
from run_transitions import World

from agentrl.core.types import UpdateState
from agentrl.db.queries import curves, progress


def test_hours_are_those_since_the_run_was_made(world: World) -> None:
    world.sql("UPDATE runs SET created_at = created_at - 7200")
    with world.store.read() as session:
        assert 2.0 <= progress.hours(session, world.run_id) < 2.1


def test_recent_groups_closed_since_the_last_live_updates_began(world: World) -> None:
    def recent(updates: int) -> tuple[int, dict[str, float]]:
        with world.store.read() as session:
            return (
                progress.recent_groups(session, world.run_id, updates),
                progress.recent_success(session, world.run_id, updates),
            )

    assert recent(1) == (0, {})
    for place, rewards in enumerate([(1.0, 1.0, 1.0, 1.0), (1.0, 1.0, 0.0, 0.0), (0.0,) * 4]):
        world.ready(place, rewards)
    world.sql("UPDATE groups SET state = 'trained', closed_at = 10 * (position + 1)")
    assert recent(1) == (3, {"dbbench": 0.5})
    world.add_update(1, started_at=15.0)
    world.add_update(2, started_at=25.0)
    world.add_update(3, started_at=5.0, state=UpdateState.ROLLED_BACK)
    world.sql("UPDATE runs SET version = 2")
    assert recent(1) == (1, {"dbbench": 0.0})
    assert recent(2) == (2, {"dbbench": 0.25})


def test_staleness_is_of_the_latest_batch_or_of_all(tmp_path: Path) -> None:
    """Version 0 sampled every step; update 3 learned from some two versions later."""
    store, run_id = begun(f"sqlite:///{tmp_path / 'store.db'}")
    with closing(store):
        trained(store, run_id, 3)
        with store.read() as session:
            assert progress.staleness(session, run_id) == {"fresh": 2.0, "lagged": 2.0}
            of_all = progress.staleness(session, run_id, of_all=True)
            assert of_all == {"fresh": 1.0, "lagged": 1.0}


def test_metrics_are_those_that_each_update_recorded(tmp_path: Path) -> None:
    store, run_id = begun(f"sqlite:///{tmp_path / 'store.db'}")
    with closing(store):
        trained(store, run_id, 2)
        with store.read() as session:
            found = curves.metrics_by_version(session, run_id)
        assert {version: metrics["loss"] for version, metrics in found.items()} == {
            1: 0.1,
            2: 0.05,
        }
