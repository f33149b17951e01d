"""What a live system is watched by, over a run in the middle of things."""

from run_transitions import World

from agentrl.db.queries.run_gauges import run_gauges
from agentrl.db.store import Store


def test_levels_count_what_is_open_and_who_holds_a_lease(store: Store) -> None:
    world = World.begin(store)
    first, _ = world.admit(0, 1, size=3)
    world.claimed(first)
    world.sql("UPDATE episodes SET queued_at = queued_at - 40 WHERE state = 'queued'")
    lapsed = "UPDATE workers SET lease_until = lease_until - 9999"
    found = store.ask(lambda session: run_gauges(session, world.run_id))
    live = found.leases.get(("worker", "live"), 0)
    world.sql(lapsed)
    later = store.ask(lambda session: run_gauges(session, world.run_id))
    assert found.groups == {"open": 2}
    assert found.episodes == {"queued": 3, "running": 3}
    assert 39.0 < found.wait_s < 3600.0
    assert found.version == 0
    assert live >= 1
    others = {key: n for key, n in found.leases.items() if key[0] != "worker"}
    assert later.leases == others | {("worker", "lapsed"): live}


def test_a_run_without_episodes_waits_for_nothing(store: Store) -> None:
    world = World.begin(store)
    found = store.ask(lambda session: run_gauges(session, world.run_id))
    assert (found.wait_s, found.groups, found.episodes) == (0.0, {}, {})
    assert (found.staleness, found.success, found.alarms) == ({}, {}, {})
