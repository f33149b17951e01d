"""Sizes: rows and bytes per table and per run, and dead rows."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import func, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from agentrl.db.models.base import Base
from agentrl.db.models.episodes import Episode, Group, StoredTrajectory
from agentrl.db.models.runs import Run
from agentrl.db.query_parts import count_by
from agentrl.db.store import read_clock

DEAD = """
SELECT relname, n_dead_tup, GREATEST(last_vacuum, last_autovacuum)
FROM pg_stat_user_tables WHERE schemaname = current_schema()
"""
PRAGMAS = ("page_size", "page_count", "freelist_count", "journal_mode")


@dataclass(frozen=True, slots=True)
class TableSize:
    """Size of a table. `bytes`: with indexes; None if SQLite cannot tell. `dead`: dead tuples.
    `vacuumed_s`: seconds since the last vacuum. The last two on Postgres only."""

    table: str
    rows: int
    bytes: int | None
    dead: int | None = None
    vacuumed_s: float | None = None


@dataclass(frozen=True, slots=True)
class RunSize:
    """Size of a run. `bodies`: trajectories with a body. `age_s`: seconds since its creation."""

    run: str
    state: str
    groups: int
    episodes: int
    bodies: int
    body_bytes: int
    age_s: float
    ended_s: float | None


@dataclass(frozen=True, slots=True)
class Sizes:
    """All sizes. `engine`: properties of the database."""

    tables: list[TableSize]
    runs: list[RunSize]
    engine: dict[str, int | str]


def sizes(session: Session) -> Sizes:
    """Compute all sizes; reads every table once."""
    sqlite = session.get_bind().dialect.name == "sqlite"
    tables = _sqlite_tables(session) if sqlite else _postgres_tables(session)
    tables.sort(key=lambda each: (-(each.bytes or 0), -each.rows, each.table))
    engine = _pragmas(session) if sqlite else _database(session)
    return Sizes(tables, _runs(session), engine)


def _rows(session: Session) -> dict[str, int]:
    return {
        name: session.scalar(select(func.count()).select_from(table)) or 0
        for name, table in Base.metadata.tables.items()
    }


def _sqlite_tables(session: Session) -> list[TableSize]:
    """Return the tables of SQLite; bytes need a virtual table that not every build has."""
    sizes: dict[str, int] = {}
    try:
        query = (
            "SELECT m.tbl_name, SUM(s.pgsize) FROM dbstat s JOIN sqlite_master m ON m.name = s.name"
            " GROUP BY m.tbl_name"
        )
        sizes = {name: size for name, size in session.execute(text(query))}
    except OperationalError:
        session.rollback()
    return [TableSize(name, rows, sizes.get(name)) for name, rows in _rows(session).items()]


def _postgres_tables(session: Session) -> list[TableSize]:
    clock = read_clock(session)
    dead: dict[str, Any] = {row[0]: row[1:] for row in session.execute(text(DEAD))}
    total = text("SELECT pg_total_relation_size(to_regclass(:name))")
    sizes = []
    for name, rows in _rows(session).items():
        tuples, at = dead.get(name, (None, None))
        vacuumed = None if at is None else clock - at.timestamp()
        size = session.scalar(total, {"name": name})
        sizes.append(TableSize(name, rows, size, tuples, vacuumed))
    return sizes


def _pragmas(session: Session) -> dict[str, int | str]:
    """Return page counts; `wal_bytes`: of the write-ahead log."""
    connection = session.connection()
    values = {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in PRAGMAS}
    file = connection.exec_driver_sql("PRAGMA database_list").all()[0][2]
    log = Path(f"{file}-wal")
    return values | {"wal_bytes": log.stat().st_size if log.is_file() else 0}


def _database(session: Session) -> dict[str, int | str]:
    query = text("SELECT pg_database_size(current_database()), current_setting('server_version')")
    size, version = session.execute(query).one()
    return {"database_bytes": size, "version": version}


def _runs(session: Session) -> list[RunSize]:
    """Return the sizes of runs, oldest first."""
    clock = read_clock(session)
    groups = count_by(session, Group.run_id)
    episodes = count_by(session, Episode.run_id)
    length = func.length(StoredTrajectory.body)
    stored = session.execute(
        select(StoredTrajectory.run_id, func.count(), func.sum(length))
        .where(length > 0)
        .group_by(StoredTrajectory.run_id)
    )
    bodies = {run_id: (number, int(size)) for run_id, number, size in stored}
    return [
        RunSize(
            run=run.name,
            state=run.state,
            groups=groups.get(run.run_id, 0),
            episodes=episodes.get(run.run_id, 0),
            bodies=bodies.get(run.run_id, (0, 0))[0],
            body_bytes=bodies.get(run.run_id, (0, 0))[1],
            age_s=clock - run.created_at,
            ended_s=None if run.ended_at is None else clock - run.ended_at,
        )
        for run in session.scalars(select(Run).order_by(Run.created_at, Run.run_id))
    ]
