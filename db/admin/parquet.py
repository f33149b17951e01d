"""Exports tables as Parquet files, one per table, all of the same moment (extra `parquet`).

Rows are read in chunks and written as row groups, which bounds the memory. The folder is written
under a temporary name and renamed, so it is complete or absent.
"""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Connection,
    Float,
    Integer,
    LargeBinary,
    Select,
    Table,
    select,
)
from sqlalchemy.exc import DBAPIError

from agentrl.core.errors import StoreError, nearest
from agentrl.db.admin import migrate
from agentrl.db.models.base import Base
from agentrl.db.models.episodes import JournaledStep, StoredTrajectory
from agentrl.db.store import Store, now

if TYPE_CHECKING:
    import pyarrow as pa

PASSING = JournaledStep.__tablename__  # what becomes a body, or is played again
TABLES = {table.name: table for table in Base.metadata.sorted_tables if table.name != PASSING}
OWNERS = {"update_groups": TABLES["updates"], "evaluation_episodes": TABLES["evaluations"]}
BODIES = StoredTrajectory.__tablename__
ROWS = 10_000  # most rows of a row group
BYTES = 16 * 2**20  # of bodies, after which a row group ends
BODIES_AT_ONCE = 16  # fetched from the database
MANIFEST = "export.json"


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """What to export. `run_id`: one run; empty: all. `bodies`: include bodies of trajectories."""

    tables: Sequence[str]
    run_id: str = ""
    bodies: bool = False


def export(store: Store, out: Path, request: ExportRequest) -> dict[str, int]:
    """Write OUT/TABLE.parquet and OUT/export.json; return the row counts by table.

    Raises StoreError: pyarrow is missing, OUT exists, unknown table, lost database.
    """
    require_pyarrow()
    unknown = [name for name in request.tables if name not in TABLES]
    if unknown:
        raise StoreError(f"no table {unknown[0]}{nearest(unknown[0], TABLES)}")
    if out.exists():
        raise StoreError(f"{out} exists already", hint="choose a folder that does not exist")
    partial = out.parent / f".{out.name}.partial"
    if partial.exists():  # what a killed export left
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    try:
        with _one_moment(store) as connection:
            rows = {
                name: _write(connection, TABLES[name], partial, request) for name in request.tables
            }
            manifest = {
                "schema": migrate.head(),
                "run_id": request.run_id,
                "bodies": request.bodies,
                "exported_at": connection.scalar(select(now())),
                "rows": rows,
            }
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
        _sync(partial)
        partial.rename(out)
        _sync(out.parent, files=False)
    except DBAPIError as error:
        raise StoreError(
            f"database {store.url}: {error.orig}", hint="run the export again"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return rows


def schema(table: Table, *, bodies: bool) -> "pa.Schema":
    """Return the Parquet schema of a table. JSON becomes text; integers have 64 bits."""
    import pyarrow as pa

    return pa.schema(
        pa.field(column.name, _type(column), nullable=bool(column.nullable))
        for column in _columns(table, bodies=bodies)
    )


def require_pyarrow() -> None:
    """Raise StoreError if the extra is not installed."""
    try:
        import pyarrow  # noqa: F401 - whether it is there
    except ImportError as error:
        raise StoreError(
            "the export needs pyarrow", hint="run `pip install 'agentrl-system[parquet]'`"
        ) from error


@contextmanager
def _one_moment(store: Store) -> Iterator[Connection]:
    """A transaction with one snapshot of all tables."""
    options: dict[str, Any] = {"agentrl_write": False}
    if store.engine.dialect.name == "postgresql":
        options["isolation_level"] = "REPEATABLE READ"
    with store.engine.execution_options(**options).connect() as connection, connection.begin():
        if connection.dialect.name == "sqlite":
            driver: Any = connection.connection.driver_connection
            if not driver.in_transaction:  # a store that only reads begins none
                driver.execute("BEGIN")
        else:  # a slow disk here is no reason for the server to give up the transaction
            connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
        yield connection


def _write(connection: Connection, table: Table, folder: Path, request: ExportRequest) -> int:
    """Write one file; return the number of rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    shape = schema(table, bodies=request.bodies)
    at_once = BODIES_AT_ONCE if table.name == BODIES and request.bodies else ROWS
    streamed = connection.execution_options(yield_per=at_once)
    query = _query(table, request)
    written = 0
    with pq.ParquetWriter(folder / f"{table.name}.parquet", shape, compression="zstd") as writer:
        for rows in _row_groups(streamed.execute(query).partitions()):
            columns = [
                [_plain_value(value) for value in column] for column in zip(*rows, strict=True)
            ]
            arrays = [
                pa.array(column, field.type) for column, field in zip(columns, shape, strict=True)
            ]
            writer.write_table(pa.Table.from_arrays(arrays, schema=shape))
            written += len(rows)
    return written


def _row_groups(portions: Iterator[Sequence[Any]]) -> Iterator[list[Any]]:
    """Merge chunks to row groups of up to ROWS rows or BYTES bytes of bodies."""
    group: list[Any] = []
    size = 0
    for portion in portions:
        group += portion
        size += sum(len(value) for row in portion for value in row if isinstance(value, bytes))
        if len(group) >= ROWS or size >= BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _query(table: Table, request: ExportRequest) -> Select[Any]:
    query = select(*_columns(table, bodies=request.bodies))
    if not request.run_id:
        return query
    owner = OWNERS.get(table.name)  # whose rows name the run, where the table's own do not
    if owner is None:
        return query.where(table.c.run_id == request.run_id)
    return query.join(owner).where(owner.c.run_id == request.run_id)


def _columns(table: Table, *, bodies: bool) -> list[Column[Any]]:
    left_out = set() if bodies or table.name != BODIES else {"body"}
    return [column for column in table.columns if column.name not in left_out]


def _type(column: Column[Any]) -> "pa.DataType":
    import pyarrow as pa

    kinds: list[tuple[type, pa.DataType]] = [
        (Boolean, pa.bool_()),
        (Integer, pa.int64()),
        (Float, pa.float64()),
        (LargeBinary, pa.large_binary()),
        (JSON, pa.large_string()),
    ]
    for kind, found in kinds:
        if isinstance(column.type, kind):
            return found
    return pa.large_string()


def _plain_value(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else value


def _sync(folder: Path, *, files: bool = True) -> None:
    """Sync a folder and its files to disk."""
    for path in [*(folder.iterdir() if files else ()), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
