import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import structlog
from protocol_stores import Database, PostgresDatabase, SqliteDatabase

from agentrl.db.admin import migrate
from agentrl.db.store import open_store
from agentrl.trainer import loop


@pytest.fixture(scope="session")
def template(migrated_sqlite: Path) -> Path:
    """A migrated file to copy, without a log beside it."""
    with closing(sqlite3.connect(migrated_sqlite)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return migrated_sqlite


@pytest.fixture
def sqlite(template: Path) -> Database:
    return SqliteDatabase(template)


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[Database]:
    with closing(PostgresDatabase(postgres_url)) as database:
        database.prepare()
        with closing(open_store(postgres_url)) as store:
            migrate.upgrade(store)
        yield database


@pytest.fixture(autouse=True)
def _calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are not assembled, nobody logs."""
    monkeypatch.setattr(loop, "assemble_batch", lambda groups, _settings: groups)
    monkeypatch.setattr(loop, "with_advantages", lambda groups, _batch: groups)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
