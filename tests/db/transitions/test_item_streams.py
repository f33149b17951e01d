from run_transitions import World

from agentrl.db.transitions import item_streams
from agentrl.db.transitions.item_streams import LatestSuccess, StreamPlace


def test_the_next_position_follows_the_highest_taken_in_any_state(world: World) -> None:
    world.admit(0, 1)
    world.admit(0, task="alfworld")
    world.sql("UPDATE groups SET state = 'failed' WHERE position = 1")
    tasks = ("dbbench", "alfworld", "kg")
    taken = world.store.ask(lambda s: item_streams.taken_positions(s, world.run_id, tasks))
    assert taken == {"dbbench": 2, "alfworld": 1, "kg": 0}


def test_a_place_rolled_back_is_repeated_until_a_later_round_has_it(world: World) -> None:
    world.admit(0, 1)
    world.sql("UPDATE groups SET state = 'rolled_back' WHERE position = 1")

    def places() -> list[StreamPlace]:
        return world.store.ask(lambda s: item_streams.positions_to_repeat(s, world.run_id))

    assert places() == [StreamPlace("dbbench", 1, 0, "item-1")]
    world.sql("UPDATE groups SET round = 1, state = 'open' WHERE position = 0")
    assert places() == [StreamPlace("dbbench", 1, 0, "item-1")]
    world.sql("UPDATE groups SET round = 1, position = 1 WHERE position = 0")
    assert places() == []
    world.sql("UPDATE groups SET state = 'rolled_back'")
    assert places() == [StreamPlace("dbbench", 1, 1, "item-0")]


def test_items_are_known_by_their_latest_closed_group(world: World) -> None:
    world.ready(0, (1.0, 1.0, 1.0, 1.0))
    world.ready(1, (0.0, 1.0, 1.0, 1.0))
    world.sql("UPDATE groups SET state = 'filtered', closed_at = position")

    def latest(since: float = 0.0) -> dict[str, LatestSuccess]:
        rows = world.store.ask(lambda s: item_streams.latest_success(s, world.run_id, since))
        return {item_id: row for (_, item_id), row in rows.items()}

    assert latest() == {"item-0": LatestSuccess(0, 1.0), "item-1": LatestSuccess(1, 0.75)}
    world.ready(2, (0.0, 0.0, 0.0, 1.0))
    world.sql("UPDATE groups SET item_id = 'item-0' WHERE position = 2")
    assert latest()["item-0"] == LatestSuccess(0, 1.0)
    world.sql("UPDATE groups SET state = 'trained', closed_at = 9 WHERE position = 2")
    assert latest()["item-0"] == LatestSuccess(2, 0.25)
    assert latest(since=9) == {"item-0": LatestSuccess(2, 0.25)}
    assert world.ask(
        "SELECT item_id, closed_groups, last_position, success FROM item_success ORDER BY item_id"
    ) == [("item-0", 2, 2, 0.25), ("item-1", 1, 1, 0.75)]


def test_a_tasks_success_is_that_of_its_last_groups_newest_first(world: World) -> None:
    for position, rewards in enumerate([(1.0, 0.0), (1.0, 1.0), (0.0, 0.0), (0.0, 1.0)]):
        world.ready(position, rewards)
        world.sql("UPDATE groups SET ready_at = :p WHERE position = :p", p=position)
    world.sql("UPDATE groups SET state = 'trained' WHERE position = 0")
    world.sql("UPDATE groups SET state = 'rolled_back' WHERE position = 2")

    def recent(task: str, groups: int) -> list[float]:
        return world.store.ask(lambda s: item_streams.recent_success(s, world.run_id, task, groups))

    assert recent("dbbench", 9) == [0.5, 1.0, 0.5]
    assert recent("dbbench", 2) == [0.5, 1.0]
    assert recent("alfworld", 2) == []


def test_a_repeated_place_is_one_admitted_group(world: World) -> None:
    world.admit(0, 7)
    world.admit(0, task="alfworld")
    world.sql("UPDATE groups SET round = 1 WHERE position = 7")

    def admitted(**since: int) -> dict[str, int]:
        return world.store.ask(lambda s: item_streams.count_admitted_groups(s, world.run_id, since))

    assert admitted(dbbench=0, alfworld=0) == {"dbbench": 1, "alfworld": 1}
    assert admitted(dbbench=1) == {"dbbench": 0}
    assert admitted() == {}
