import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import structlog
from protocol_machine import Protocol

from trainer import loop


@pytest.fixture(autouse=True)
def _calm(migrated_sqlite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are not assembled, nobody logs."""
    with closing(sqlite3.connect(migrated_sqlite)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    monkeypatch.setattr(Protocol, "template", migrated_sqlite, raising=False)
    monkeypatch.setattr(loop, "assemble", lambda groups, _settings: groups)
    monkeypatch.setattr(loop, "taught", lambda groups, _batch: groups)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
