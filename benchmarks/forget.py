"""What it costs to forget a run in Postgres: removed group by group, or dropped as partitions.

    python benchmarks/forget.py --store postgresql+psycopg://… [--groups 12500] [--steps 10]

Fills an empty Postgres database with one run (`benchmarks/long_run.py`) and copies the rows of the
five tables that grow with episodes into tables partitioned by run, with the same indexes. Then the
partitions are dropped, and the run is removed as `agentrl db prune` removes it.
"""

import argparse
import json
import sys
import time
from contextlib import closing
from pathlib import Path

from sqlalchemy import text

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from long_run import RUN, Size, fill

from agentrl.db.admin import migrate, retention
from agentrl.db.store import Store, open_store

GROWING = ("groups", "episodes", "steps", "trajectories", "update_groups")


def partitioned(store: Store) -> None:
    """Copies whose partitions each hold the rows of one run."""
    with store.write() as session:
        for table in GROWING:
            made = f"CREATE TABLE p_{table} (LIKE {table} INCLUDING DEFAULTS"
            rows = f"SELECT * FROM {table}"  # noqa: S608
            if table == "update_groups":  # has no run_id: its copy gets one
                made += ", run_id text"
                rows = f"SELECT u.*, '{RUN}' FROM update_groups u"  # noqa: S608
            session.execute(text(f"{made}) PARTITION BY LIST (run_id)"))
            session.execute(
                text(f"CREATE TABLE p_{table}_1 PARTITION OF p_{table} FOR VALUES IN ('{RUN}')")
            )
            session.execute(text(f"INSERT INTO p_{table} {rows}"))
            session.execute(text(f"CREATE INDEX ON p_{table} ({_key(table)})"))


def _key(table: str) -> str:
    return {"groups": "group_id", "steps": "episode_id, fence, number"}.get(table, "episode_id")


def dropped(store: Store) -> None:
    with store.write() as session:
        for table in GROWING:
            session.execute(text(f"DROP TABLE p_{table}_1"))


def main() -> None:
    """Fill, copy, drop, remove, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", required=True)
    parser.add_argument("--groups", type=int, default=12_500)
    parser.add_argument("--steps", type=int, default=10)
    given = parser.parse_args()
    with closing(open_store(given.store)) as store:
        migrate.upgrade(store)
        figures = {"fill_s": fill(store, Size(given.groups, given.steps))}
        partitioned(store)
        began = time.perf_counter()
        dropped(store)
        figures["drop_s"] = time.perf_counter() - began
        with store.write() as session:
            session.execute(text("UPDATE runs SET state = 'stopped', ended_at = 1"))
        began = time.perf_counter()
        longest, last, episodes = 0.0, began, 0
        for removed in retention.forget_groups(store, RUN):
            longest, last = max(longest, time.perf_counter() - last), time.perf_counter()
            episodes += removed
        figures |= {"remove_s": last - began, "longest_transaction_s": longest}
    print(
        json.dumps(
            {name: round(value, 2) for name, value in figures.items()} | {"episodes": episodes}
        )
    )


if __name__ == "__main__":
    main()
