import os
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from locking import locked
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError, InterfaceError, OperationalError
from sqlalchemy.orm import Session

from core.errors import StoreError
from core.process import unlocked
from db.store import Store, open_store


@pytest.mark.parametrize("kind", [OperationalError, InterfaceError])
def test_a_database_that_goes_away_is_a_store_error(
    store: Store, kind: type[OperationalError]
) -> None:
    for begin in (store.read, store.write):
        with pytest.raises(StoreError, match="server closed the connection"), begin():
            raise kind("SELECT 1", None, Exception("server closed the connection\nabruptly"))


def test_who_keeps_a_file_locked_is_named_and_nobody_who_only_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("db.store.BUSY_TIMEOUT_S", 0.05)
    path = tmp_path / "store.db"
    with closing(open_store(f"sqlite:///{path}")) as store:
        with locked(path) as holder, store.read() as session:
            session.execute(text("SELECT count(*) FROM sqlite_master"))
            with pytest.raises(StoreError, match="database is locked") as refused:
                store.transact(lambda inner: inner.execute(text("SELECT 1")), patience_s=0.0)
        assert refused.value.mend.startswith(f"pid {holder} (")
        assert f"pid {os.getpid()} (" not in refused.value.mend
        assert refused.value.mend.endswith(") writes to it: wait until that is done, or end it")
        store.transact(lambda session: session.execute(text("SELECT 1")), patience_s=0.0)


def test_who_keeps_a_file_of_another_file_system_locked_is_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inodes are numbered on each anew: our lock on one file may read like one on this."""
    path = tmp_path / "store.db"
    path.touch()
    like = f"1: POSIX ADVISORY WRITE {os.getpid()} 00:99:{path.stat().st_ino} 0 EOF"
    monkeypatch.setattr("core.process._locks", lambda: [like.split()])
    assert unlocked(path).startswith("another process writes to it")
    with path.open():
        assert unlocked(path).startswith(f"pid {os.getpid()} (")


def test_a_file_that_cannot_be_used_is_to_be_looked_at(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(StoreError, match="not a database") as refused:
        open_store(f"sqlite:///{tmp_path / 'store.db'}")
    assert refused.value.mend.startswith("look at the file")


def test_what_a_statement_violates_stays_its_own_error(store: Store) -> None:
    with pytest.raises(IntegrityError), store.write():
        raise IntegrityError("INSERT", None, Exception("a row is there"))


def test_who_stands_still_within_a_transaction_loses_it_and_begins_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("db.store.IDLE_S", 1.0)
    tries: list[float] = []
    others: list[float] = []

    def stopped(session: Session) -> None:
        session.execute(text("UPDATE t SET n = n + 1"))
        tries.append(time.monotonic())
        if len(tries) == 1:
            other.start()
            other.join(60)
            session.execute(text("SELECT 1"))

    def stands_still(session: Session) -> None:
        session.execute(text("SELECT 1"))
        time.sleep(2.0)
        session.execute(text("SELECT 1"))

    def waits_for_the_row() -> None:
        store.transact(lambda session: session.execute(text("UPDATE t SET n = n + 10")))
        others.append(time.monotonic())

    with closing(open_store(postgres_url)) as store:
        with store.write() as session:
            session.execute(text("CREATE TABLE t AS SELECT 0 AS n"))
        other = threading.Thread(target=waits_for_the_row)
        store.transact(stopped)
        assert others[0] < tries[1], "the row was free before the first came back"
        with store.read() as session:
            assert session.scalar(text("SELECT n FROM t")) == 11
        with pytest.raises(StoreError, match="idle-in-transaction"):
            store.transact(stands_still, patience_s=0.0)
