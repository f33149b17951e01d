"""How a store waits for an unavailable database, and which of its errors are StoreErrors."""

import threading
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from running import eventually
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError, InterfaceError, OperationalError
from sqlite_lock import hold_lock
from structlog.testing import capture_logs

from agentrl.core.errors import StoreError, StoreUnavailable
from agentrl.db.engine import Timeouts
from agentrl.db.store import Store, open_store


@pytest.mark.parametrize("kind", [OperationalError, InterfaceError])
def test_a_lost_connection_is_a_store_error(store: Store, kind: type[OperationalError]) -> None:
    for begin in (store.read, store.write):
        with pytest.raises(StoreError, match="server closed the connection"), begin():
            raise kind("SELECT 1", None, Exception("server closed the connection\nabruptly"))


def test_a_violated_constraint_is_not_a_store_error(store: Store) -> None:
    with pytest.raises(IntegrityError), store.write():
        raise IntegrityError("INSERT", None, Exception("a row is there"))


def test_a_process_of_a_run_waits_for_an_unavailable_store_until_its_stop_event(
    tmp_path: Path,
) -> None:
    stop, folder = threading.Event(), tmp_path / "folder"
    (folder / "store.db").mkdir(parents=True)  # no file: it cannot be opened
    errors: list[StoreError] = []

    def open_it() -> None:
        try:
            open_store(f"sqlite:///{folder / 'store.db'}", stop=stop)
        except StoreUnavailable as error:
            errors.append(error)

    with capture_logs() as lines:
        thread = threading.Thread(target=open_it, daemon=True)
        thread.start()
        eventually(lambda: lines, within_s=60, text=lambda: "nothing was logged")
        assert thread.is_alive()
        stop.set()
        thread.join(60)
    assert lines[0]["event"] == "Waiting for a service that is unavailable"
    assert "unable to open" in str(errors[0])


def test_a_store_waits_until_a_read_only_primary_takes_writes(postgres_url: str) -> None:
    """A session of a standby stays read-only for ever, so each try opens a new one."""
    name, stop = postgres_url.rpartition("/")[2], threading.Event()
    server = postgres_url.replace("+psycopg", "")
    with closing(open_store(postgres_url, stop=stop)) as store, capture_logs() as lines:
        store.transact(lambda session: session.execute(text("CREATE TABLE t (n INT)")))
        store.close()
        with psycopg.connect(server, autocommit=True) as beside:
            beside.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
            insert = text("INSERT INTO t VALUES (1)")
            writing = threading.Thread(
                target=store.transact, args=(lambda session: session.execute(insert),), daemon=True
            )
            writing.start()
            eventually(lambda: lines, within_s=60, text=lambda: "nothing was logged")
            assert writing.is_alive()
            beside.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
        writing.join(60)
        assert store.ask(lambda session: session.scalar(text("SELECT n FROM t"))) == 1
    assert "read-only transaction" in lines[0]["error"]
    stop.set()


def test_a_store_is_unavailable_while_all_its_connections_are_in_use(tmp_path: Path) -> None:
    url, impatient = f"sqlite:///{tmp_path / 'store.db'}", Timeouts(pool_s=0.01)
    with closing(open_store(url, threads=1, timeouts=impatient)) as store:
        with store.read() as session:
            session.execute(text("SELECT 1"))
            with pytest.raises(StoreUnavailable, match="QueuePool limit"):
                store.ask(lambda inner: inner.execute(text("SELECT 1")), patience_s=0.0)
            with closing(store.one_thread()) as own:
                assert own.ask(lambda inner: inner.scalar(text("SELECT 1"))) == 1
        store.ask(lambda inner: inner.execute(text("SELECT 1")), patience_s=0.0)


def test_a_process_of_a_run_waits_only_briefly_for_a_connection_or_a_file_lock(
    tmp_path: Path,
) -> None:
    """These waits see no stop event, so the call ends them and tries again."""
    url, stop = f"sqlite:///{tmp_path / 'store.db'}", threading.Event()
    quick = Timeouts(pool_s=3600.0, lock_s=3600.0, stopping_s=0.1)
    with closing(open_store(url, threads=1, timeouts=quick, stop=stop)) as store:
        with store.read() as session:
            session.execute(text("SELECT 1"))
            with pytest.raises(StoreUnavailable, match="QueuePool limit"):
                store.ask(lambda inner: inner.execute(text("SELECT 1")), patience_s=0.0)
        with hold_lock(tmp_path / "store.db"), pytest.raises(StoreUnavailable, match="locked"):
            store.transact(lambda inner: inner.execute(text("SELECT 1")), patience_s=0.0)
    stop.set()


def test_with_autocommit_a_statement_is_a_transaction_and_a_lost_connection_is_replaced(
    postgres_url: str,
) -> None:
    backend = text("SELECT pg_backend_pid()")
    last = text("SELECT query FROM pg_stat_activity WHERE pid = :pid")
    with (
        closing(open_store(postgres_url)) as store,
        closing(store.one_thread(autocommit=True)) as own,
    ):
        pid = own.transact(lambda session: session.scalar(backend))
        ended = store.ask(lambda session: session.scalar(last, {"pid": pid}))
        assert ended == "SELECT pg_backend_pid()"  # no COMMIT came after it
        store.ask(lambda session: session.execute(text(f"SELECT pg_terminate_backend({pid})")))
        assert own.transact(lambda session: session.scalar(backend)) != pid
