import os
import re
import socket
import sqlite3
import threading
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.waiting import Ready
from running import eventually
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session
from sqlite_lock import hold_lock
from structlog.testing import capture_logs

from agentrl.core.errors import StoreError, StoreUnavailable
from agentrl.db.admin.readonly import open_readonly
from agentrl.db.engine import LEASE, TIMEOUTS, ServerSilent, Silence, Timeouts
from agentrl.db.failures import Failure, classify
from agentrl.db.store import Store, open_store
from agentrl.ops.chaos.proxy import Proxy


@pytest.mark.parametrize("kind", [OperationalError, InterfaceError])
def test_a_database_that_goes_away_is_a_store_error(
    store: Store, kind: type[OperationalError]
) -> None:
    for begin in (store.read, store.write):
        with pytest.raises(StoreError, match="server closed the connection"), begin():
            raise kind("SELECT 1", None, Exception("server closed the connection\nabruptly"))


def test_who_keeps_a_file_locked_is_named_and_nobody_who_only_reads_it(tmp_path: Path) -> None:
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


def test_a_file_that_cannot_be_used_is_to_be_looked_at(tmp_path: Path) -> None:
    (tmp_path / "store.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(StoreError, match="not a database") as refused:
        open_store(f"sqlite:///{tmp_path / 'store.db'}")
    assert refused.value.hint.startswith("look at the file")


def test_what_a_statement_violates_stays_its_own_error(store: Store) -> None:
    with pytest.raises(IntegrityError), store.write():
        raise IntegrityError("INSERT", None, Exception("a row is there"))


def test_who_stands_still_within_a_transaction_loses_it_and_begins_again(
    postgres_url: str,
) -> None:
    happened: list[str] = []

    def stopped(session: Session) -> None:
        session.execute(text("UPDATE t SET n = n + 1"))
        happened.append("updated")
        if happened == ["updated"]:
            other.start()
            other.join(60)
            session.execute(text("SELECT 1"))

    def stands_still(session: Session) -> None:
        pid = session.scalar(text("SELECT pg_backend_pid()"))
        lives = text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid")
        with store.engine.connect() as beside:
            eventually(
                lambda: not beside.execute(lives, {"pid": pid}).scalar(),
                within_s=60,
                text=lambda: "the session lives on",
            )
        session.execute(text("SELECT 1"))

    def waits_for_the_row() -> None:
        store.transact(lambda session: session.execute(text("UPDATE t SET n = n + 10")))
        happened.append("the other's")

    with closing(open_store(postgres_url, timeouts=Timeouts(idle_s=1.0))) as store:
        with store.write() as session:
            session.execute(text("CREATE TABLE t AS SELECT 0 AS n"))
        other = threading.Thread(target=waits_for_the_row)
        store.transact(stopped)
        assert happened == ["updated", "the other's", "updated"]
        with store.read() as session:
            assert session.scalar(text("SELECT n FROM t")) == 11
        with pytest.raises(StoreError, match="idle-in-transaction"):
            store.transact(stands_still, patience_s=0.0)


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
def test_each_state_of_postgres_is_classified(state: str, failure: Failure) -> None:
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
def test_a_connection_that_is_refused_is_classified_by_its_words(
    words: str, failure: Failure
) -> None:
    error = psycopg.OperationalError(f'connection failed: connection to server at "h": {words}')
    assert classify(OperationalError(None, None, error)) is failure


def test_errors_of_sqlite_are_classified_by_their_code(tmp_path: Path) -> None:
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

    def fills_the_disk(session: Session) -> None:
        session.execute(text("PRAGMA max_page_count = 2"))
        session.execute(text("CREATE TABLE big AS SELECT zeroblob(100000)"))

    assert failure_of(lambda session: session.execute(text("CREATE TABLE t (n INT)"))) is None
    with hold_lock(path):
        assert failure_of(lambda session: session.execute(text("SELECT 1"))) is Failure.TRANSIENT
    assert failure_of(fills_the_disk) is Failure.TRANSIENT
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
def test_errors_of_sqlite_without_a_code_are_classified_by_their_kind(
    error: sqlite3.Error, failure: Failure
) -> None:
    assert classify(error) is failure


def test_errors_that_are_none_of_a_database_are_not_classified() -> None:
    assert classify(KeyError("n")) is None
    assert classify(PoolTimeoutError("QueuePool limit reached")) is Failure.TRANSIENT


def test_a_pool_that_is_exhausted_is_waited_for(tmp_path: Path) -> None:
    url, impatient = f"sqlite:///{tmp_path / 'store.db'}", Timeouts(pool_s=0.01)
    with closing(open_store(url, threads=1, timeouts=impatient)) as store:
        with store.read() as session:
            session.execute(text("SELECT 1"))
            with pytest.raises(StoreUnavailable, match="QueuePool limit"):
                store.ask(lambda inner: inner.execute(text("SELECT 1")), patience_s=0.0)
            with closing(store.one_thread()) as own:
                assert own.ask(lambda inner: inner.scalar(text("SELECT 1"))) == 1
        store.ask(lambda inner: inner.execute(text("SELECT 1")), patience_s=0.0)


def test_a_process_of_a_run_waits_for_a_store_that_is_away_until_it_is_told_to_stop(
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
        thread = threading.Thread(target=open_it)
        thread.start()
        eventually(lambda: lines, within_s=60, text=lambda: "nothing was logged")
        assert thread.is_alive()
        stop.set()
        thread.join(60)
    assert lines[0]["event"] == "Waiting for a service that is unavailable"
    assert "unable to open" in str(errors[0])


SECRETS = (  # with "qzq" and "jkj" in each password
    "qzq@jkj-1@127.0.0.1:1/x",
    "qzq@jkj/1@127.0.0.1:1/x",
    "qzq@jkj:wo/rd@127.0.0.1:1/x",
    "qzq@jkj:word@127.0.0.1:1/x",
    "qzq/jkj-1@127.0.0.1:1/x",
    "qzq:jkj#1@127.0.0.1:1/x",
    "qzq[jkj]1@127.0.0.1:1/x",
    "qzq?jkj=1@127.0.0.1:1/x",
    "qzq%40%2Fjkj@127.0.0.1:1/x",
)


@pytest.mark.parametrize("rest", SECRETS)
@pytest.mark.parametrize("open_it", [open_store, open_readonly])
def test_no_part_of_a_password_reaches_an_error(open_it: Callable[[str], Store], rest: str) -> None:
    with pytest.raises(StoreError) as refused:
        open_it(f"postgresql+psycopg://agentrl:{rest}")
    said = f"{refused.value} {refused.value.hint}"
    assert not re.search("qzq|jkj", said)


def test_a_password_in_the_query_of_a_url_is_not_shown() -> None:
    with pytest.raises(StoreError) as refused:
        open_store("postgresql+psycopg://127.0.0.1:1/x?user=u&password=hunter2")
    assert "hunter2" not in str(refused.value)


def test_a_primary_that_reads_only_is_waited_for(postgres_url: str) -> None:
    """Sessions of a standby stay read-only for ever: each try opens a new one."""
    name, stop = postgres_url.rpartition("/")[2], threading.Event()
    server = postgres_url.replace("+psycopg", "")
    with closing(open_store(postgres_url, stop=stop)) as store, capture_logs() as lines:
        store.transact(lambda session: session.execute(text("CREATE TABLE t (n INT)")))
        store.close()
        with psycopg.connect(server, autocommit=True) as beside:
            beside.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
            insert = text("INSERT INTO t VALUES (1)")
            writing = threading.Thread(
                target=store.transact, args=(lambda session: session.execute(insert),)
            )
            writing.start()
            eventually(lambda: lines, within_s=60, text=lambda: "nothing was logged")
            assert writing.is_alive()
            beside.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
        writing.join(60)
        assert store.ask(lambda session: session.scalar(text("SELECT n FROM t"))) == 1
    assert "read-only transaction" in lines[0]["error"]
    stop.set()


def test_a_lock_that_is_held_costs_its_time_out_and_is_waited_for(postgres_url: str) -> None:
    with closing(open_store(postgres_url, timeouts=Timeouts(lock_s=0.05))) as store:
        store.transact(lambda session: session.execute(text("CREATE TABLE t AS SELECT 0 AS n")))
        with store.engine.connect() as holder:
            holder.execute(text("LOCK TABLE t IN SHARE MODE"))
            with pytest.raises(StoreUnavailable, match="lock timeout"):
                store.transact(
                    lambda session: session.execute(text("UPDATE t SET n = 1")), patience_s=0.0
                )
        store.transact(lambda session: session.execute(text("UPDATE t SET n = 1")), patience_s=0.0)


def test_a_server_that_vanishes_without_a_word_is_given_up(postgres_url: str) -> None:
    """Neither a reset nor an answer: what a host that lost its power looks like."""
    address = make_url(postgres_url)
    with closing(Proxy(str(address.host), address.port or 5432)) as proxy:
        url = address.set(port=proxy.port).render_as_string(hide_password=False)
        silent = Timeouts(statement_s=3.0, answer_s=1.0)
        with (
            closing(open_store(url, timeouts=silent)) as store,
            store.engine.connect() as connection,
        ):
            connection.execute(text("SELECT 1"))
            proxy.stall()
            with pytest.raises(OperationalError, match="did not answer within 4 s"):
                connection.execute(text("SELECT 1"))
            assert connection.invalidated
        with pytest.raises(StoreUnavailable, match="timeout"):
            open_store(url, timeouts=replace(silent, connect_s=2.0))


@pytest.mark.parametrize("connected", [True, False])
def test_who_is_told_to_stop_waits_no_longer_for_a_server_that_is_silent(
    postgres_url: str, connected: bool
) -> None:
    """A frozen database: without the stop event each wait would last an hour."""
    address, stop = make_url(postgres_url), threading.Event()
    patient = Timeouts(connect_s=3600.0, statement_s=3600.0, stopping_s=0.1)
    with closing(Proxy(str(address.host), address.port or 5432)) as proxy:
        url = address.set(port=proxy.port).render_as_string(hide_password=False)
        errors: list[StoreUnavailable] = []
        with closing(open_store(url, timeouts=patient, stop=stop)) as store:
            if not connected:
                store.close()
            proxy.stall()

            def ask() -> None:
                try:
                    store.ask(lambda session: session.execute(text("SELECT 1")))
                except StoreUnavailable as error:
                    errors.append(error)

            asking = threading.Thread(target=ask)
            asking.start()
            asking.join(0.5)
            assert asking.is_alive()
            stop.set()
            asking.join(60)
    assert [type(error) for error in errors] == [StoreUnavailable]


def test_once_told_to_stop_only_the_time_without_a_word_of_the_server_counts() -> None:
    """A large answer under way arrives; it is silence that is not waited for."""
    now, stop = [0.0], threading.Event()
    silence = Silence(statement_s=60.0, stopping_s=3.0, stop=stop, clock=lambda: now[0])

    def endless() -> Generator[str, bool, None]:
        while True:
            yield "wait"

    bounded = silence.bound(endless(), silence.statement_s)
    next(bounded)
    for at, ready in ((50.0, False), (52.9, True), (55.8, True), (58.7, False)):
        stop.set()
        now[0] = at
        assert bounded.send(ready) == "wait"
    now[0] = 58.9
    with pytest.raises(ServerSilent, match="did not answer within 3 s"):
        bounded.send(False)


def test_once_told_to_stop_a_server_that_was_silent_is_not_waited_for_again() -> None:
    """Calls one after the other would together outlast the process's time to end."""
    now, stop = [0.0], threading.Event()
    silence = Silence(statement_s=60.0, stopping_s=3.0, stop=stop, clock=lambda: now[0])
    stop.set()

    def silent_s(answers: Ready = Ready.NONE) -> float:
        """How long a call lasts whose server answers once, and never again."""

        def ask() -> Generator[str, Ready, None]:
            while True:
                yield "wait"

        began, bounded = now[0], silence.bound(ask(), silence.statement_s)
        next(bounded)
        bounded.send(answers)
        try:
            while now[0] < began + 60.0:
                now[0] += 0.1
                bounded.send(Ready.NONE)
        except ServerSilent:
            return now[0] - began
        raise AssertionError("the call goes on")

    assert silent_s() == pytest.approx(3.0, abs=0.2)
    assert silent_s() <= 0.5
    assert silent_s(Ready.W) <= 0.5  # a frozen server's machine still takes what is sent
    assert silent_s(Ready.R) == pytest.approx(3.0, abs=0.2)


def test_a_process_of_a_run_waits_for_a_free_connection_a_short_time_only(tmp_path: Path) -> None:
    """That wait sees no stop event; the call asks again."""
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


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_statement_that_needs_longer_than_it_may_is_given_more_time(
    postgres_url: str, autocommit: bool
) -> None:
    brief = Timeouts(statement_s=0.2, answer_s=0.2, longest_s=3600.0)
    with (
        closing(open_store(postgres_url, stop=threading.Event())) as whole,
        closing(whole.one_thread(brief, autocommit=autocommit)) as store,
    ):
        store.ask(lambda session: session.execute(text("SELECT pg_sleep(1)")))
        assert store.ask(lambda s: s.scalar(text("SHOW statement_timeout"))) == "200ms"


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


def test_a_statement_that_never_ends_is_given_up_with_its_text(postgres_url: str) -> None:
    brief = Timeouts(statement_s=0.1, longest_s=0.3)
    with closing(open_store(postgres_url, timeouts=brief, stop=threading.Event())) as store:
        endless = text("SELECT pg_sleep(3600)  AS\n too_long")
        with pytest.raises(
            StoreError, match=r"after 0\.3 s .* SELECT pg_sleep\(3600\) AS too"
        ) as caught:
            store.ask(lambda session: session.execute(endless))
        assert not isinstance(caught.value, StoreUnavailable)


def _open_lease(url: str) -> Store:
    with closing(open_store(url)) as store:
        return store.one_thread()


@pytest.mark.parametrize(
    ("opened", "timeouts", "statement", "lock"),
    [
        (open_store, TIMEOUTS, "1min", "10s"),
        (open_readonly, TIMEOUTS, "1min", "10s"),
        (_open_lease, LEASE, "5s", "3s"),
    ],
)
def test_every_connection_to_postgres_is_bounded(
    postgres_url: str,
    opened: Callable[[str], Store],
    timeouts: Timeouts,
    statement: str,
    lock: str,
) -> None:
    with closing(opened(postgres_url)) as store, store.engine.connect() as connection:
        for name, value in (
            ("statement_timeout", statement),
            ("lock_timeout", lock),
            ("idle_in_transaction_session_timeout", f"{timeouts.idle_s:.0f}s"),
        ):
            assert connection.scalar(text(f"SHOW {name}")) == value
        driver: Any = connection.connection.driver_connection
        with socket.socket(fileno=os.dup(driver.pgconn.socket)) as peer:
            assert peer.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            idle_s = peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
            assert idle_s == round(timeouts.tcp_s / 3)
            user_timeout_ms = peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            assert user_timeout_ms == 1000 * timeouts.tcp_s
