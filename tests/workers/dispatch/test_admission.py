"""Which items, tasks and horizons a dispatcher admits, and when a run is exhausted."""

import pytest
from dispatching import BOUND, close, make_dispatcher, positions, stopped_event, tick
from run_transitions import World

from agentrl.broker.messages import RunEpisode
from agentrl.core.types import RunState
from agentrl.db.transitions import episodes


def test_groups_have_the_horizon_of_their_version_and_keep_it(world: World) -> None:
    dispatcher = make_dispatcher(world, horizons=[(0, 5), (3, 8)])
    tick(dispatcher)
    close(world, "trained")
    world.sql("UPDATE runs SET version = 3")
    world.sql("UPDATE groups SET state = 'rolled_back' WHERE position = 1")
    tick(dispatcher)
    rows = world.ask("SELECT position, round, horizon FROM groups ORDER BY position, round")
    assert rows == [*((n, r, 5) for n, r in [(0, 0), (1, 0), (1, 1), (2, 0), (3, 0)]), *LONGER]
    (episode_id,) = world.ask("SELECT episode_id FROM episodes WHERE group_id LIKE '%-1r1'")[0]
    first = world.claim(episode_id)
    assert first is not None
    assert first.horizon == 5
    world.store.transact(lambda s: episodes.release(s, first))
    again = world.claim(episode_id, 2)
    assert again is not None
    assert again.horizon == 5
    (longer,) = world.ask("SELECT episode_id FROM episodes WHERE group_id LIKE '%-6'")[0]
    other = world.claim(longer)
    assert other is not None
    assert other.horizon == 8


LONGER = [(4, 0, 8), (5, 0, 8), (6, 0, 8)]


def test_rolled_back_groups_of_a_task_that_was_removed_are_not_played_again(
    world: World,
) -> None:
    """No worker has its items; if the task comes back, they are."""

    def tick_once(*tasks: str) -> list[RunEpisode]:
        dispatcher = make_dispatcher(world, weights=dict.fromkeys(tasks, 1.0))
        sent = tick(dispatcher)
        dispatcher.serve(lambda _: None, stopped_event())
        return sent

    tick_once("a", "b")
    close(world, "rolled_back")
    again = "SELECT position FROM groups WHERE task = :t AND round = 1 ORDER BY position"
    assert len(tick_once("a")) == 2 * BOUND
    assert (world.ask(again, t="a"), world.ask(again, t="b")) == ([(0,), (1,)], [])
    close(world)
    tick_once("a", "b")
    assert world.ask(again, t="b") == [(0,), (1,)]


def test_items_outside_the_window_rest_and_come_back(world: World) -> None:
    dispatcher = make_dispatcher(world, items=4, window=(0.1, 0.9), window_pause=1)
    seen = []
    for _ in range(3):
        seen += [command.episode_id for command in tick(dispatcher)]
        close(world)  # every item is solved: all of a pass rest in the next
    assert positions(world) == [*range(4), *range(8, 12), *range(16, 20)]
    assert len(seen) == 3 * BOUND * 2


def test_items_within_the_window_stay(world: World) -> None:
    dispatcher = make_dispatcher(world, items=4, window=(0.1, 0.9), window_pause=1)
    tick(dispatcher)
    close(world)
    world.sql("UPDATE episodes SET score = 0.0 WHERE member = 0 AND group_id LIKE '%-2'")
    (item,) = world.ask("SELECT item_id FROM groups WHERE position = 2")[0]
    tick(dispatcher)
    again = world.ask("SELECT item_id FROM groups WHERE position BETWEEN 4 AND 7")
    assert again == [(item,)]


def test_a_task_that_improves_gets_more_groups_and_a_restart_goes_on(world: World) -> None:
    """Ten episodes a group: `a` solves one more of them each version, `b` always the same five."""
    plan = {"mixing": "progress", "mixing_groups": 4, "mixing_floor": 0.1, "group_size": 10}
    counts: list[tuple[int, int]] = []
    for version in range(10):
        world.sql("UPDATE runs SET version = :v", v=version)
        dispatcher = make_dispatcher(world, 50, {"a": 1.0, "b": 1.0}, **plan)
        tick(dispatcher)
        assert tick(dispatcher) == []
        dispatcher.serve(lambda _: None, stopped_event())
        _play(world, {"a": version, "b": 5})
        counts.append((len(positions(world, "a")), len(positions(world, "b"))))
    assert counts[3] == (8, 8)
    assert counts[9] == (8 + 22, 8 + 2)  # nine in ten of 24 groups
    rows = world.ask("SELECT number, version, SUM(share) FROM mixtures GROUP BY number, version")
    assert [(number, version) for number, version, _ in sorted(rows)] == [(n, n) for n in range(10)]
    assert all(total == pytest.approx(1.0) for _, _, total in rows)
    last = world.ask("SELECT task, share, progress FROM mixtures WHERE version = 9 ORDER BY task")
    assert [(task, pytest.approx(share)) for task, share, _ in last] == [("a", 0.9), ("b", 0.1)]
    assert last[0][2] > last[1][2] == 0.0


def _play(world: World, solved: dict[str, int]) -> None:
    """Every open group is played and trained at the run's version; so many of it are solved."""
    for task, wins in solved.items():
        world.sql(
            "UPDATE episodes SET state = 'finished', score = CASE WHEN member < :w THEN 1.0 "
            "ELSE 0.0 END WHERE state = 'queued' AND task = :t",
            w=wins,
            t=task,
        )
    world.sql(
        "UPDATE groups SET state = 'trained', pending = 0, ready_at = :v, closed_at = admitted_at"
        " WHERE state = 'open'",
        v=float(world.run().version),
    )


def test_shares_are_recorded_when_they_change(world: World) -> None:
    tick(make_dispatcher(world, weights={"a": 3.0, "b": 1.0}))
    for weights in ({"a": 3.0, "b": 1.0}, {"a": 6.0, "b": 2.0}, {"a": 1.0, "b": 1.0}):
        world.sql("UPDATE runs SET dispatcher_until = 0")
        close(world)
        tick(make_dispatcher(world, weights=weights))
    rows = world.ask("SELECT number, task, share, admitted FROM mixtures ORDER BY number, task")
    assert rows == [(0, "a", 0.75, 0), (0, "b", 0.25, 0), (1, "a", 0.5, 9), (1, "b", 0.5, 3)]


def test_tasks_are_admitted_by_their_weights(world: World) -> None:
    dispatcher = make_dispatcher(world, weights={"a": 3.0, "b": 1.0})
    for _ in range(4):
        tick(dispatcher)
        close(world)
    assert (len(positions(world, "a")), len(positions(world, "b"))) == (12, 4)


def test_a_restarted_dispatcher_admits_neither_position_nor_item_twice(world: World) -> None:
    for _ in range(5):
        dispatcher = make_dispatcher(world)
        tick(dispatcher)
        assert tick(dispatcher) == []
        close(world)
        dispatcher.serve(lambda _: None, stopped_event())
    assert positions(world) == list(range(5 * BOUND))
    items = [item for (item,) in world.ask("SELECT item_id FROM groups ORDER BY position LIMIT 18")]
    assert all(len(set(items[start : start + 6])) == 6 for start in (0, 6, 12))


def test_rolled_back_positions_are_admitted_again_in_the_next_round(world: World) -> None:
    dispatcher = make_dispatcher(world)
    tick(dispatcher)
    close(world, "trained")
    world.sql("UPDATE groups SET state = 'rolled_back' WHERE position IN (1, 3)")
    sent = tick(dispatcher)
    again = world.ask("SELECT position FROM groups WHERE round = 1 ORDER BY position")
    assert again == [(1,), (3,)]
    assert len(sent) == BOUND * 2
    assert positions(world) == [0, 1, 1, 2, 3, 3, 4, 5]
    same = world.ask("SELECT COUNT(DISTINCT item_id) FROM groups WHERE position IN (1, 3)")
    assert same == [(2,)]


def test_a_run_is_exhausted_when_all_its_items_are_solved(world: World) -> None:
    dispatcher = make_dispatcher(world, items=3, retire_at=0.9)
    states = []
    for _ in range(4):
        states.append(dispatcher.tick(lambda _: None))
        close(world)
    assert states[-1] == RunState.EXHAUSTED
    assert world.run().state == RunState.EXHAUSTED
    assert len(positions(world)) == BOUND
    assert tick(dispatcher) == []


def test_a_run_is_exhausted_although_fewer_groups_than_a_batch_are_ready(world: World) -> None:
    dispatcher = make_dispatcher(world, items=3, retire_at=0.9)
    tick(dispatcher)
    close(world)
    world.sql("UPDATE groups SET state = 'ready' WHERE position >= 2")
    world.sql("UPDATE groups SET item_id = 'a0' WHERE position = 2")
    world.sql("UPDATE groups SET item_id = 'a1' WHERE position = 0")
    world.sql("UPDATE groups SET item_id = 'a2' WHERE position = 1")
    _solve_last_item(world)
    assert dispatcher.tick(lambda _: None) == RunState.RUNNING
    world.sql("UPDATE groups SET state = 'filtered', closed_at = admitted_at WHERE position = 3")
    assert dispatcher.tick(lambda _: None) == RunState.EXHAUSTED


def _solve_last_item(world: World) -> None:
    """Add a closed and solved group for the item that has none."""
    (group_id,) = world.admit(9, size=2, task="a")
    world.sql("UPDATE groups SET item_id = 'a0', pending = 0 WHERE group_id = :g", g=group_id)
    close(world)
