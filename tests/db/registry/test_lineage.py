"""Checkpoints of a run that forked and rolled back, and who served them."""

from run_history import evaluation
from run_transitions import World

from agentrl.core.types import CheckpointState
from agentrl.db.models.processes import PolicyServer, Serving
from agentrl.db.models.updates import Checkpoint
from agentrl.db.registry import lineage, policy_servers


def made(world: World, version: int, parent: int, suffix: str = "", state: str = "live") -> str:
    """A checkpoint after another of the same run; its id."""
    row = world.checkpoint(version, parent_id=f"{world.run_id}-v{parent}")
    row.checkpoint_id += suffix
    row.state = CheckpointState(state)
    name = row.checkpoint_id
    with world.store.write() as session:
        session.add(row)
    return name


def test_nodes_say_what_was_undone_and_whose_files_are_gone(world: World) -> None:
    made(world, 1, 0, state="deleted")
    made(world, 2, 1, state="rolled_back")
    made(world, 2, 1, "b")
    with world.store.read() as session:
        nodes = lineage.lineage_nodes(session, world.run_id)
        states = lineage.checkpoint_states(session, world.run_id)
    told = [(node.version, node.undone, node.present) for node in nodes]
    assert told == [(0, False, True), (1, False, False), (2, True, True), (2, False, True)]
    assert states == {"live": 2, "deleted": 1, "rolled_back": 1}


def test_the_registry_lists_the_newest_first(world: World) -> None:
    for version in (1, 2, 3):
        made(world, version, version - 1)
    with world.store.read() as session:
        assert [each.version for each in lineage.newest_checkpoints(session, world.run_id, 2)] == [
            3,
            2,
        ]
        one = lineage.checkpoint_entry(session, world.run_id, f"{world.run_id}-v1")
        assert lineage.checkpoint_entry(session, world.run_id, "none") is None
    assert one is not None
    assert (one.update_state, one.episodes, one.snapshot) == ("", None, False)


def test_a_fork_says_where_it_began(world: World) -> None:
    other = World.begin(world.store, "child")
    world.sql(
        "UPDATE runs SET forked_from = :c WHERE run_id = :r",
        c=f"{world.run_id}-v0",
        r=other.run_id,
    )
    with world.store.read() as session:
        assert lineage.fork_origin(session, world.run_id) is None
        assert lineage.fork_origin(session, other.run_id) == ("run", 0)
    world.sql("UPDATE runs SET forked_from = 'gone' WHERE run_id = :r", r=other.run_id)
    with world.store.read() as session:
        assert lineage.fork_origin(session, other.run_id) == ("gone", -1)


def test_serving_ends_with_its_row_or_with_the_servers_lease(world: World) -> None:
    first = f"{world.run_id}-v0"
    with world.store.write() as session:
        policy_servers.end_serving(session, f"policy-{world.run_id}", "lagged(4)", first)
        dead = PolicyServer(
            server_id="dead",
            run_id=world.run_id,
            name="dead",
            engine="local",
            url="http://d",
            lease_until=0.0,
            started_at=0.0,
        )
        session.add(dead)
        session.flush()
        checkpoint = session.get_one(Checkpoint, first)
        policy_servers.begin_serving(session, "dead", "current", checkpoint)
    with world.store.read() as session:
        told = {
            (each.server, each.track): each.live
            for each in lineage.servings(session, world.run_id, 9)
        }
    assert told == {("p", "current"): True, ("p", "lagged(4)"): False, ("dead", "current"): False}


def test_what_is_served_now_is_told_however_much_began_after_it(world: World) -> None:
    first = f"{world.run_id}-v0"
    with world.store.write() as session:
        checkpoint = session.get_one(Checkpoint, first)
        policy_servers.begin_serving(session, f"policy-{world.run_id}", "pinned(0)", checkpoint)
    for _ in range(3):
        with world.store.write() as session:
            checkpoint = session.get_one(Checkpoint, first)
            policy_servers.begin_serving(
                session, f"policy-{world.run_id}", "refreshed(5)", checkpoint
            )
            policy_servers.end_serving(session, f"policy-{world.run_id}", "refreshed(5)", first)
    with world.store.read() as session:
        served = lineage.servings(session, world.run_id, 3)
    assert {each.track for each in served} == {"current", "lagged(4)", "pinned(0)"}


def test_minutes_are_counted_from_when_the_run_was_made(world: World) -> None:
    world.sql("UPDATE runs SET created_at = 1000")
    world.sql("UPDATE servings SET live_from = 1060, live_until = 1180")
    with world.store.read() as session:
        served = lineage.servings(session, world.run_id, 1)
    assert [(each.from_min, each.until_min) for each in served] == [(1.0, 3.0)]
    with world.store.read() as session:
        assert session.query(Serving).count() == 2


def test_measurements_come_with_their_intervals(world: World) -> None:
    with world.store.write() as session:
        session.add(evaluation(world.run_id, 0))
    with world.store.read() as session:
        (one,) = lineage.measurements(session, world.run_id, 9)
    assert (one.task, one.success, one.low, one.high) == ("kg", 0.5, 0.24, 0.76)
