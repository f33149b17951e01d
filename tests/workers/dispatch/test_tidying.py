"""Rows that a dispatcher removes or closes because no other process does."""

from dispatching import make_dispatcher, tick
from run_transitions import World

from agentrl.db.transitions import refusals, runs


def test_the_oldest_refusals_and_rows_of_ended_processes_are_removed(world: World) -> None:
    def add(table: str, rows: int, columns: str, values: str) -> None:
        numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :most)"
        chosen = f"SELECT r.run_id, {values} FROM n, runs r"  # noqa: S608
        world.sql(f"INSERT INTO {table} (run_id, {columns}) {numbers} {chosen}", most=rows)

    refused = "transition, subject, fence, found, refused_at"
    add("refusals", refusals.KEPT + 5, refused, "'claim', 'nobody', i, 'queued', 0")
    worker = "worker_id, host, pid, started_at, lease_until"
    add("workers", runs.KEPT + 5, worker, "'gone-' || i, 'host', 1, i, i")
    server = "server_id, name, engine, url, started_at, lease_until"
    add("policy_servers", runs.KEPT + 5, server, "'gone-' || i, 'policy', 'local', 'url', i, i")
    tick(make_dispatcher(world))
    fences = world.ask("SELECT MIN(fence), COUNT(*) FROM refusals")
    assert fences == [(6, refusals.KEPT)]
    for table, key in (("workers", "worker_id"), ("policy_servers", "server_id")):
        gone = f"SELECT MIN(started_at), COUNT(*) FROM {table} WHERE {key} LIKE 'gone-%'"  # noqa: S608
        assert world.ask(gone) == [(6, runs.KEPT)]
        living = f"SELECT COUNT(*) FROM {table} WHERE {key} NOT LIKE 'gone-%'"  # noqa: S608
        assert world.ask(living) == [(1,)]


def test_the_servings_of_a_killed_policy_server_are_closed(world: World) -> None:
    world.sql("UPDATE policy_servers SET lease_until = 1")
    tick(make_dispatcher(world))
    assert world.ask("SELECT COUNT(*) FROM servings WHERE live_until IS NULL") == [(0,)]
