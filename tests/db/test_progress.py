"""What pages and reports ask of a run."""

import pytest
from world import World

from db import progress
from db.store import Store


@pytest.fixture
def world(store: Store) -> World:
    return World.begin(store)


def test_success_over_time_is_counted_in_equal_slices(world: World) -> None:
    with world.store.read() as session:
        assert progress.success_over_time(session, world.run_id, 2) == []
    world.ready(0, (1.0, 0.0, 1.0, 1.0))
    world.sql("UPDATE episodes SET ended_at = 100 + 5 * member WHERE member < 3")
    world.sql("UPDATE episodes SET ended_at = 109.9, task = 'kg' WHERE member = 3")
    with world.store.read() as session:
        found = progress.success_over_time(session, world.run_id, 2)
        assert found == [(0, "dbbench", 1.0, 1), (1, "dbbench", 0.5, 2), (1, "kg", 1.0, 1)]
        (row,) = progress.success_over_time(session, world.run_id, 1)[:1]
        assert row == (0, "dbbench", 2 / 3, 3)


def test_hours_are_those_since_the_run_was_made(world: World) -> None:
    world.sql("UPDATE runs SET created_at = created_at - 7200")
    with world.store.read() as session:
        assert 2.0 <= progress.hours(session, world.run_id) < 2.1
