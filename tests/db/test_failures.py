"""How errors of databases are classified, and which hints they give."""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session
from sqlite_lock import hold_lock

from agentrl.core.errors import StoreError
from agentrl.db.engine import Timeouts
from agentrl.db.failures import Failure, classify
from agentrl.db.store import open_store


@pytest.mark.parametrize(
    ("state", "failure"),
    [
        ("25006", Failure.TRANSIENT),  # read-only transaction
        ("25P03", Failure.TRANSIENT),  # idle in transaction
        ("40001", Failure.TRANSIENT),  # serialization failure
        ("40P01", Failure.TRANSIENT),  # deadlock
        ("53100", Failure.TRANSIENT),  # disk full
        ("53300", Failure.TRANSIENT),  # too many connections
        ("53400", Failure.PERMANENT),  # a limit of its configuration
        ("55P03", Failure.TRANSIENT),  # lock time-out
        ("57014", Failure.TRANSIENT),  # statement time-out
        ("57P01", Failure.TRANSIENT),  # shut down
        ("57P03", Failure.TRANSIENT),  # starting up
        ("08006", Failure.TRANSIENT),  # connection failure
        ("58030", Failure.TRANSIENT),  # its disk
        ("58P01", Failure.PERMANENT),  # a file of its own is not there
        ("28P01", Failure.PERMANENT),  # password
        ("3D000", Failure.PERMANENT),  # no such database
        ("XX001", Failure.PERMANENT),  # damaged
        ("23505", Failure.OURS),  # unique violation
        ("42P01", Failure.PERMANENT),  # no such table
        ("22001", Failure.OURS),  # text too long
        ("25P02", Failure.OURS),  # in a failed transaction
    ],
)
def test_each_sqlstate_of_postgres_is_classified(state: str, failure: Failure) -> None:
    assert classify(DBAPIError("SELECT 1", None, psycopg.errors.lookup(state)())) is failure


@pytest.mark.parametrize(
    ("words", "failure"),
    [
        ("connection timeout expired", Failure.TRANSIENT),
        ("server closed the connection unexpectedly", Failure.TRANSIENT),
        ('FATAL:  password authentication failed for user "agentrl"', Failure.PERMANENT),
        ('FATAL:  database "agentrl" does not exist', Failure.PERMANENT),
        ('FATAL:  database "x" is not currently accepting connections', Failure.TRANSIENT),
        ("FATAL:  sorry, too many clients already", Failure.TRANSIENT),
        ("FATAL:  the database system is starting up", Failure.TRANSIENT),
    ],
)
def test_a_refused_connection_is_classified_by_its_words(words: str, failure: Failure) -> None:
    error = psycopg.OperationalError(f'connection failed: connection to server at "h": {words}')
    assert classify(OperationalError(None, None, error)) is failure


def test_sqlite_errors_are_classified_by_their_code(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    url, impatient = f"sqlite:///{path}", Timeouts(lock_s=0.05)

    def failure_of(work: Callable[[Session], object]) -> Failure | None:
        with closing(open_store(url, timeouts=impatient)) as store:
            try:
                with store._write.begin() as session:
                    work(session)
            except DBAPIError as error:
                return classify(error)
        return None

    def fill_the_disk(session: Session) -> None:
        session.execute(text("PRAGMA max_page_count = 2"))
        session.execute(text("CREATE TABLE big AS SELECT zeroblob(100000)"))

    assert failure_of(lambda session: session.execute(text("CREATE TABLE t (n INT)"))) is None
    with hold_lock(path):
        assert failure_of(lambda session: session.execute(text("SELECT 1"))) is Failure.TRANSIENT
    assert failure_of(fill_the_disk) is Failure.TRANSIENT
    permanent = failure_of(lambda session: session.execute(text("SELECT * FROM u")))
    assert permanent is Failure.PERMANENT  # a file without our schema
    assert failure_of(lambda session: session.execute(text("SELEC"))) is Failure.OURS


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (sqlite3.OperationalError("database is locked"), Failure.TRANSIENT),
        (sqlite3.InterfaceError("bad parameter or other API misuse"), Failure.TRANSIENT),
        (sqlite3.ProgrammingError("Cannot operate on a closed database."), Failure.OURS),
    ],
)
def test_sqlite_errors_without_a_code_are_classified_by_their_type(
    error: sqlite3.Error, failure: Failure
) -> None:
    assert classify(error) is failure


def test_an_exhausted_pool_is_transient_and_an_unrelated_error_has_no_class() -> None:
    assert classify(KeyError("n")) is None
    assert classify(PoolTimeoutError("QueuePool limit reached")) is Failure.TRANSIENT


def test_the_hint_for_a_locked_file_names_the_process_that_writes_and_no_reader(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store.db"
    with closing(open_store(f"sqlite:///{path}", timeouts=Timeouts(lock_s=0.05))) as store:
        with hold_lock(path) as holder, store.read() as session:
            session.execute(text("SELECT count(*) FROM sqlite_master"))
            with pytest.raises(StoreError, match="database is locked") as refused:
                store.transact(lambda inner: inner.execute(text("SELECT 1")), patience_s=0.0)
        assert refused.value.hint.startswith(f"pid {holder} (")
        assert f"pid {os.getpid()} (" not in refused.value.hint
        assert refused.value.hint.endswith(") writes to it: wait until that is done, or end it")
        store.transact(lambda session: session.execute(text("SELECT 1")), patience_s=0.0)


def test_the_hint_for_a_damaged_file_is_to_look_at_it(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(StoreError, match="not a database") as refused:
        open_store(f"sqlite:///{tmp_path / 'store.db'}")
    assert refused.value.hint.startswith("look at the file")
