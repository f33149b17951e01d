"""What processes on other machines wait for."""

from run_transitions import World

from agentrl.core.telemetry.outages import STALE_S, Outage
from agentrl.db.registry.outages import put_outages, read_outages
from agentrl.db.store import Store
from agentrl.db.transitions import lifecycle


def test_a_process_replaces_what_it_waits_for(store: Store) -> None:
    run_id = World.begin(store).run_id
    broker, weights = (
        Outage("ignored", service, 30.0, "refused") for service in ("broker", "checkpoints")
    )

    def read() -> list[tuple[str, str]]:
        found = store.ask(lambda session: read_outages(session, run_id))
        assert all(30.0 <= each.waited_s < 300.0 for each in found)
        return [(each.process, each.service) for each in found]

    store.transact(lambda session: put_outages(session, run_id, "w1", [broker, weights]))
    store.transact(lambda session: put_outages(session, run_id, "w2", [broker]))
    assert read() == [("w1", "broker"), ("w1", "checkpoints"), ("w2", "broker")]
    store.transact(lambda session: put_outages(session, run_id, "w1", [weights]))
    assert read() == [("w1", "checkpoints"), ("w2", "broker")]
    store.transact(lambda session: put_outages(session, run_id, "w2", []))
    assert read() == [("w1", "checkpoints")]


def test_what_nobody_repeats_is_not_shown_and_goes(store: Store) -> None:
    world = World.begin(store)
    broker = Outage("w1", "broker", 1.0, "refused")
    store.transact(lambda session: put_outages(session, world.run_id, "w1", [broker]))
    world.sql("UPDATE service_outages SET until = until - :s", s=STALE_S + 1)
    assert store.ask(lambda session: read_outages(session, world.run_id)) == []
    store.transact(lambda session: put_outages(session, world.run_id, "w2", [broker]))
    assert world.ask("SELECT process FROM service_outages") == [("w2",)]
    with store.write() as session:
        lifecycle.delete_run_rows(session, world.run_id)
    assert world.ask("SELECT process FROM service_outages") == []
