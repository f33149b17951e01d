import logging
import sqlite3
import types
from contextlib import closing
from pathlib import Path

import pytest
import structlog
from protocol_machine import Protocol

from db import store
from trainer import loop


@pytest.fixture(autouse=True)
def _calm(migrated_sqlite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries do not sleep, batches are not assembled, nobody logs."""
    with closing(sqlite3.connect(migrated_sqlite)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    monkeypatch.setattr(Protocol, "template", migrated_sqlite, raising=False)
    patient = types.SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda _s: None)
    monkeypatch.setattr(store, "time", patient)
    monkeypatch.setattr(loop, "assemble", lambda groups, _settings: groups)
    monkeypatch.setattr(loop, "taught", lambda groups, _batch: groups)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
