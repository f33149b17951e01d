"""The timeouts of each connection to Postgres, and what follows when one of them ends a wait."""

import os
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from running import eventually
from sqlalchemy import text
from sqlalchemy.orm import Session

from agentrl.core.errors import StoreError, StoreUnavailable
from agentrl.db.admin.readonly import open_readonly
from agentrl.db.engine import LEASE, TIMEOUTS, Timeouts
from agentrl.db.store import Store, open_store


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
def test_every_connection_to_postgres_has_timeouts(
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


def test_a_transaction_that_stands_still_is_ended_by_the_server_and_repeated(
    postgres_url: str,
) -> None:
    happened: list[str] = []

    def update_slowly(session: Session) -> None:
        session.execute(text("UPDATE t SET n = n + 1"))
        happened.append("updated")
        if happened == ["updated"]:
            other.start()
            other.join(60)
            session.execute(text("SELECT 1"))

    def stand_still(session: Session) -> None:
        pid = session.scalar(text("SELECT pg_backend_pid()"))
        lives = text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid")
        eventually(
            lambda: store.ask(lambda beside: beside.scalar(lives, {"pid": pid})) == 0,
            within_s=60,
            text=lambda: "the session lives on",
        )
        session.execute(text("SELECT 1"))

    def update_beside() -> None:
        store.transact(lambda session: session.execute(text("UPDATE t SET n = n + 10")))
        happened.append("the other's")

    with closing(open_store(postgres_url, timeouts=Timeouts(idle_s=1.0))) as store:
        with store.write() as session:
            session.execute(text("CREATE TABLE t AS SELECT 0 AS n"))
        other = threading.Thread(target=update_beside, daemon=True)
        store.transact(update_slowly)
        assert happened == ["updated", "the other's", "updated"]
        with store.read() as session:
            assert session.scalar(text("SELECT n FROM t")) == 11
        with pytest.raises(StoreError, match="idle-in-transaction"):
            store.transact(stand_still, patience_s=0.0)


def test_a_statement_that_waits_for_a_lock_is_given_up_after_the_lock_timeout(
    postgres_url: str,
) -> None:
    with closing(open_store(postgres_url, timeouts=Timeouts(lock_s=0.05))) as store:
        store.transact(lambda session: session.execute(text("CREATE TABLE t AS SELECT 0 AS n")))
        with store.engine.connect() as holder:
            holder.execute(text("LOCK TABLE t IN SHARE MODE"))
            with pytest.raises(StoreUnavailable, match="lock timeout"):
                store.transact(
                    lambda session: session.execute(text("UPDATE t SET n = 1")), patience_s=0.0
                )
        store.transact(lambda session: session.execute(text("UPDATE t SET n = 1")), patience_s=0.0)


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_statement_that_timed_out_is_repeated_with_more_time(
    postgres_url: str, autocommit: bool
) -> None:
    brief = Timeouts(statement_s=0.2, answer_s=0.2, longest_s=3600.0)
    with (
        closing(open_store(postgres_url, stop=threading.Event())) as whole,
        closing(whole.one_thread(brief, autocommit=autocommit)) as store,
    ):
        store.ask(lambda session: session.execute(text("SELECT pg_sleep(1)")))
        assert store.ask(lambda s: s.scalar(text("SHOW statement_timeout"))) == "200ms"


def test_a_statement_that_never_ends_is_given_up_with_its_text(postgres_url: str) -> None:
    brief = Timeouts(statement_s=0.1, longest_s=0.3)
    with closing(open_store(postgres_url, timeouts=brief, stop=threading.Event())) as store:
        endless = text("SELECT pg_sleep(3600)  AS\n too_long")
        with pytest.raises(
            StoreError, match=r"after 0\.3 s .* SELECT pg_sleep\(3600\) AS too"
        ) as caught:
            store.ask(lambda session: session.execute(endless))
        assert not isinstance(caught.value, StoreUnavailable)
