"""What is kept between two looks is what a fresh look finds."""

from run_transitions import World
from sqlalchemy.orm import Session

from agentrl.db.transitions import item_streams
from agentrl.db.transitions.item_streams import LatestSuccess
from agentrl.workers.dispatch.admission_cache import AdmittedCounts, LatestItems


def _admitted(world: World, counted: AdmittedCounts) -> dict[str, int]:
    tasks = ("dbbench", "alfworld")

    def count(session: Session) -> dict[str, int]:
        return counted.count(session, item_streams.taken_positions(session, world.run_id, tasks))

    return world.store.ask(count)


def test_groups_are_counted_on_from_the_last_look(world: World) -> None:
    counted = AdmittedCounts(world.run_id)
    assert _admitted(world, counted) == {"dbbench": 0, "alfworld": 0}
    world.admit(0, 1)
    assert _admitted(world, counted) == {"dbbench": 2, "alfworld": 0}
    world.admit(4)  # the items between rest
    world.admit(0, task="alfworld")
    found = {"dbbench": 3, "alfworld": 1}
    assert _admitted(world, counted) == found
    assert _admitted(world, counted) == _admitted(world, AdmittedCounts(world.run_id)) == found
    world.sql("UPDATE groups SET position = 99 WHERE position = 0 AND task = 'dbbench'")
    assert _admitted(world, counted)["dbbench"] == 4, "what was counted is not read again"


def _items(world: World, latest: LatestItems) -> dict[str, LatestSuccess]:
    return {item: found for (_, item), found in world.store.ask(latest.look).items()}


def test_items_are_known_by_what_closed_since_the_last_look(world: World) -> None:
    latest = LatestItems(world.run_id)
    world.ready(0, (1.0, 1.0, 1.0, 1.0))
    world.ready(1, (0.0, 1.0, 1.0, 1.0))
    world.sql("UPDATE groups SET state = 'trained', closed_at = ready_at, item_id = 'one'")
    assert _items(world, latest) == {"one": LatestSuccess(1, 0.75)}
    world.sql("UPDATE groups SET closed_at = 5 WHERE position = 1")
    world.ready(2, (0.0, 0.0, 0.0, 1.0))
    closing = "UPDATE groups SET state = 'filtered', closed_at = ready_at, item_id = 'one' WHERE "
    world.sql(closing + "position = 2")
    assert _items(world, latest) == {"one": LatestSuccess(2, 0.25)}
    world.sql("UPDATE groups SET closed_at = 5")
    assert _items(world, latest) == {"one": LatestSuccess(2, 0.25)}, "long closed, still known"
    assert _items(world, LatestItems(world.run_id)) == {"one": LatestSuccess(2, 0.25)}


def test_a_roll_back_is_forgotten_by_nobody(world: World) -> None:
    latest = LatestItems(world.run_id)
    world.ready(0, (1.0, 1.0, 1.0, 1.0))
    world.ready(1, (0.0, 0.0, 0.0, 1.0))
    world.sql("UPDATE groups SET state = 'trained', closed_at = 5, item_id = 'one'")
    assert _items(world, latest) == {"one": LatestSuccess(1, 0.25)}
    world.sql("UPDATE groups SET state = 'rolled_back' WHERE position = 1")
    assert _items(world, latest) == {"one": LatestSuccess(0, 1.0)}
