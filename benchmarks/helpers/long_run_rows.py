"""A long run's rows, made by the database itself: groups, episodes, steps, updates, checkpoints.

Sound by construction (`accounting` and `unserved_steps` are empty), and not uniform: one group in
ten has no spread, one in a hundred is stale, one in two hundred failed, one episode in fifty took a
second attempt, and the newest groups are ready or open with members queued and running. Bodies are
empty. The same statements fill Postgres and SQLite; on Postgres the indexes of the largest tables
are made afterwards, and foreign keys are not looked up.
"""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection, text

from agentrl.db.models.base import Base
from agentrl.db.models.episodes import Episode, Step, StoredTrajectory
from agentrl.db.models.updates import UpdateGroup
from agentrl.db.store import Store

RUN = "long"
MEMBERS, TASKS, BATCH = 8, 5, 32  # of a group, of the run, groups of an update
LARGE = (Episode, Step, StoredTrajectory, UpdateGroup)
PAST_S = 7 * 86_400.0  # the run began so long ago
OPEN = 20  # groups whose members still run

NUMBERS = """
WITH RECURSIVE n(i) AS (SELECT {low} UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {high})
"""
# What group i is: its place in the stream, how it ended, and when.
GROUPS = """
, g AS (SELECT i, '{run}-task' || (i % {tasks}) || '-' || (i / {tasks}) AS group_id,
  'task' || (i % {tasks}) AS task, i / {tasks} AS position,
  'item-' || ((i / {tasks}) % {items}) AS item_id, {start} + i * {apart} AS at,
  i / {batch} + 1 AS version,
  CASE WHEN i >= {groups} - {open} THEN 'open' WHEN i >= {closed} THEN 'ready'
       WHEN i % 10 = 3 THEN 'filtered' WHEN i % 100 = 11 THEN 'stale'
       WHEN i % 200 = 12 THEN 'failed' ELSE 'trained' END AS state
  FROM n)
"""
# What member m of it is; 0 ≤ m < MEMBERS.
EPISODES = """
, m(m) AS (VALUES {members})
, e AS (SELECT g.*, m, group_id || '-' || m AS episode_id,
  CASE WHEN g.state = 'open' AND m < 4 THEN 'queued' WHEN g.state = 'open' THEN 'running'
       WHEN g.state = 'failed' AND m > 0 THEN 'failed' WHEN i % 40 = 17 AND m = 7 THEN 'failed'
       ELSE 'finished' END AS ends,
  CASE WHEN (i * 8 + m) % 50 = 0 THEN 2 ELSE 1 END AS fence,
  CASE WHEN g.state = 'filtered' THEN 1.0 ELSE 1.0 * ((i * 7 + m * 3) % 2) END AS reward
  FROM g CROSS JOIN m)
"""

INSERTS = {
    "groups": GROUPS
    + """
SELECT group_id, '{run}', task, position, 0, item_id, NULL, {size},
  CASE WHEN state = 'open' THEN {size} ELSE 0 END, state, NULL,
  CASE state WHEN 'filtered' THEN 'zero_spread' WHEN 'stale' THEN 'too_stale'
             WHEN 'failed' THEN 'too_few_survivors' END,
  version - 1, at, CASE WHEN state = 'open' THEN NULL ELSE at + 30 END,
  CASE WHEN state IN ('open', 'ready') THEN NULL ELSE at + 60 END FROM g""",
    "episodes": GROUPS
    + EPISODES
    + """
SELECT episode_id, '{run}', group_id, m, task, item_id, ends, fence,
  CASE WHEN ends = 'queued' THEN 0 ELSE fence END,
  CASE WHEN ends = 'queued' THEN NULL ELSE 'worker' || (m % 4) END,
  CASE WHEN ends IN ('queued', 'running') THEN {later} ELSE at + 90 END,
  CASE WHEN ends = 'failed' THEN 'lost' END,
  CASE ends WHEN 'finished' THEN 'completed' WHEN 'failed' THEN 'lost' END,
  CASE WHEN ends = 'finished' THEN reward END, CASE WHEN ends = 'finished' THEN reward END,
  CASE WHEN ends = 'finished' THEN {steps} END, CASE WHEN ends = 'finished' THEN 800 END,
  CASE WHEN ends = 'finished' THEN 200 END,
  CASE WHEN ends = 'finished' THEN 'sha-' || episode_id END,
  at, CASE WHEN ends = 'queued' THEN NULL ELSE at + 1 END,
  CASE WHEN ends IN ('queued', 'running') THEN NULL ELSE at + 29 END FROM e""",
    "trajectories": GROUPS
    + EPISODES
    + """
SELECT episode_id, fence, '{run}', 'sha-' || episode_id, {nothing}, at + 30, 40000
FROM e WHERE ends = 'finished'""",
    "steps": GROUPS
    + EPISODES
    + """
, s(s) AS (VALUES {numbers})
SELECT episode_id, fence, s, '{run}', 'server' || ((m + s) % 2),
  CASE WHEN (m + s) % 2 = 0 THEN 'current' ELSE 'lagged(1)' END,
  '{run}-v' || (version - 1 - CASE WHEN version > 1 THEN (m + s) % 2 ELSE 0 END),
  version - 1 - CASE WHEN version > 1 THEN (m + s) % 2 ELSE 0 END,
  1.0, 40 + 60 * s, 60 * s, 60 * s + 20, at + 2 + 2 * s, 0.5, 0.01, 'stop',
  '{{"name":"look","arguments":{{"at":' || s || '}}}}',
  'You see a table, a lamp and a book. Turn ' || s || '.', 0
FROM e CROSS JOIN s WHERE ends = 'finished'""",
    "checkpoints": """
SELECT '{run}-v' || i, '{run}', i, CASE WHEN i > 0 THEN '{run}-v' || (i - 1) END, '/tmp/none',
  NULL, CASE WHEN i > {updates} - 8 THEN 'live' ELSE 'deleted' END,
  {start} + i * {batch} * {apart}, NULL FROM n WHERE i <= {updates}""",
    "updates": """
SELECT '{run}-u' || (i + 1), '{run}', i + 1, 1, '{run}-v' || (i + 1), 'committed', '', {batch},
  {batch} * {size}, {batch} * {size} * 200, '{{"loss": 0.1, "entropy": 1.2, "grad_norm": 0.4}}',
  {start} + i * {batch} * {apart}, {start} + (i + 1) * {batch} * {apart}
FROM n WHERE i < {updates}""",
    "servings": """
, k(k) AS (VALUES (0), (1))
SELECT 2 * i + k + 1, 'server' || k, '{run}', CASE k WHEN 0 THEN 'current' ELSE 'lagged(1)' END,
  '{run}-v' || i, i, {start} + (i - 1 + k) * {batch} * {apart} - 3600,
  CASE WHEN i < {updates} - k THEN {start} + (i + 2 + k) * {batch} * {apart} + 3600 END
FROM n CROSS JOIN k WHERE i <= {updates}""",
    "update_groups": GROUPS
    + EPISODES
    + """
SELECT '{run}-u' || version, episode_id, group_id, fence, 'sha-' || episode_id, 200, reward - 0.5
FROM e WHERE state = 'trained' AND ends = 'finished'""",
}

# Primary keys that no other table refers to.
KEYS = """
SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint c
WHERE contype = 'p' AND conrelid = CAST(:table AS regclass)
  AND NOT EXISTS (SELECT 1 FROM pg_constraint f WHERE f.confrelid = c.conrelid)
"""
INDEXES = "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = :table"

LEAVING = """
UPDATE groups SET state = 'cancelled', reason = 'run_ended', pending = 0,
  closed_at = (SELECT created_at FROM runs WHERE runs.run_id = groups.run_id)
WHERE group_id IN (SELECT group_id FROM groups g WHERE state = 'open' AND NOT EXISTS (
  SELECT 1 FROM episodes e WHERE e.group_id = g.group_id AND e.state = 'running')
  ORDER BY admitted_at LIMIT :count)
"""
LEFT = """
UPDATE episodes SET state = 'cancelled', status = 'cancelled', reason = 'run_ended'
WHERE state = 'queued' AND group_id IN (SELECT group_id FROM groups WHERE state = 'cancelled')
"""

FIRST = (
    """INSERT INTO runs (run_id, name, config, seed, state, reason, version, trainer_epoch,
  dispatcher, dispatcher_until, created_at)
VALUES ('{run}', '{run}', '', 0, 'running', '', {updates}, 1, '', 0, {start})""",
    """INSERT INTO workers (worker_id, run_id, host, pid, lease_until, started_at)
SELECT 'worker' || i, '{run}', 'none', i, {later}, {start} FROM n WHERE i < 4""",
    """INSERT INTO policy_servers (server_id, run_id, name, engine, url, lease_until, started_at)
SELECT 'server' || i, '{run}', 'server' || i, 'scripted', 'http://none', {later}, {start}
FROM n WHERE i < 2""",
)


@dataclass(frozen=True, slots=True)
class Size:
    """How long the run is: its groups of MEMBERS episodes, and the steps of each episode."""

    groups: int
    steps: int

    @property
    def updates(self) -> int:
        """Whole batches below the open groups."""
        return (self.groups - OPEN) // BATCH

    def episodes(self) -> int:
        return self.groups * MEMBERS


def fill(store: Store, size: Size, *, chunk: int = 12_500) -> float:
    """The rows of a run of that size, in an empty schema; returns the seconds it took."""
    began = time.monotonic()
    clock = store.clock()
    values = {
        "run": RUN,
        "tasks": TASKS,
        "size": MEMBERS,
        "batch": BATCH,
        "items": 5_000,
        "groups": size.groups,
        "steps": size.steps,
        "open": OPEN,
        "updates": size.updates,
        "closed": size.updates * BATCH,
        "start": clock - PAST_S,
        "apart": (PAST_S - 600.0) / size.groups,
        "later": clock + PAST_S,
        "members": ", ".join(f"({m})" for m in range(MEMBERS)),
        "numbers": ", ".join(f"({s})" for s in range(size.steps)),
        "nothing": "''::bytea" if _postgres(store) else "x''",
    }
    with store.engine.begin() as connection, _bare(connection):
        for statement in FIRST:
            head, body = statement.split("\nSELECT") if "\nSELECT" in statement else (statement, "")
            numbers = NUMBERS.format(low=0, high=8) if body else ""
            _run(connection, f"{head}\n{numbers}SELECT{body}" if body else head, values)
        for table in ("checkpoints", "updates", "servings"):
            _insert(connection, table, (0, size.updates + 1), values)
        for low in range(0, size.groups, chunk):
            for table in ("groups", "episodes", "trajectories", "steps", "update_groups"):
                _insert(connection, table, (low, min(low + chunk, size.groups)), values)
    _settle(store)
    return time.monotonic() - began


def leave(store: Store, count: int) -> None:
    """So many of the open groups of which nothing runs are cancelled, and leave their places."""
    with store.write() as session:
        session.execute(text(LEAVING), {"count": count})
        session.execute(text(LEFT))


def _insert(
    connection: Connection, table: str, span: tuple[int, int], values: dict[str, object]
) -> None:
    columns = ", ".join(column.name for column in Base.metadata.tables[table].columns)
    numbers = NUMBERS.format(low=span[0], high=span[1])
    _run(connection, f"INSERT INTO {table} ({columns}) {numbers} {INSERTS[table]}", values)


def _run(connection: Connection, statement: str, values: dict[str, object]) -> None:
    connection.execute(text(statement.format(**values).replace(":", "\\:")))


@contextlib.contextmanager
def _bare(connection: Connection) -> Iterator[None]:
    """Postgres: the largest tables without keys and indexes, which are made again at the end."""
    if connection.dialect.name != "postgresql":
        yield
        return
    connection.execute(text("SET LOCAL session_replication_role = replica"))
    connection.execute(text("SET LOCAL maintenance_work_mem = '1GB'"))
    kept = [again for model in LARGE for again in _drop(connection, model.__tablename__)]
    yield
    for statement in kept:
        connection.execute(text(statement))


def _drop(connection: Connection, table: str) -> list[str]:
    """Drop the table's keys and indexes; returns how to make them again."""
    again = []
    for name, definition in connection.execute(text(KEYS), {"table": table}).all():
        connection.execute(text(f"ALTER TABLE {table} DROP CONSTRAINT {name}"))
        again.append(f"ALTER TABLE {table} ADD CONSTRAINT {name} {definition}")
    for name, definition in connection.execute(text(INDEXES), {"table": table}).all():
        if not name.endswith("_pkey"):
            connection.execute(text(f"DROP INDEX {name}"))
            again.append(definition)
    return again


def _postgres(store: Store) -> bool:
    return store.engine.dialect.name == "postgresql"


def _settle(store: Store) -> None:
    """Statistics as they would be in a run that has stood for a while."""
    with store.engine.connect() as connection:
        if _postgres(store):
            outside = connection.execution_options(isolation_level="AUTOCOMMIT")
            outside.execute(text("VACUUM ANALYZE"))
        else:
            connection.exec_driver_sql("ANALYZE")
            connection.commit()
