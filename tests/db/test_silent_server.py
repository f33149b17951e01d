"""When a store gives up a Postgres server that neither answers nor closes the connection."""

import threading
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from psycopg.waiting import Ready
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError

from agentrl.core.errors import StoreUnavailable
from agentrl.db.engine import ServerSilent, Silence, Timeouts
from agentrl.db.store import open_store
from agentrl.ops.chaos.proxy import Proxy


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    address = make_url(postgres_url)
    with closing(Proxy(str(address.host), address.port or 5432)) as proxy:
        yield proxy


@pytest.fixture
def proxied_url(postgres_url: str, proxy: Proxy) -> str:
    return make_url(postgres_url).set(port=proxy.port).render_as_string(hide_password=False)


def test_a_server_that_vanishes_is_given_up_after_the_timeouts(
    proxy: Proxy, proxied_url: str
) -> None:
    """A host that lost its power sends neither an answer nor a reset."""
    brief = Timeouts(statement_s=3.0, answer_s=1.0)
    with (
        closing(open_store(proxied_url, timeouts=brief)) as store,
        store.engine.connect() as connection,
    ):
        connection.execute(text("SELECT 1"))
        proxy.stall()
        with pytest.raises(OperationalError, match="did not answer within 4 s"):
            connection.execute(text("SELECT 1"))
        assert connection.invalidated
    with pytest.raises(StoreUnavailable, match="timeout"):
        open_store(proxied_url, timeouts=replace(brief, connect_s=2.0))


@pytest.mark.parametrize("connected", [True, False])
def test_a_process_that_stops_does_not_wait_for_a_silent_server(
    proxy: Proxy, proxied_url: str, connected: bool
) -> None:
    """Without the stop event each wait for a frozen database would last an hour."""
    stop, errors = threading.Event(), list[StoreUnavailable]()
    patient = Timeouts(connect_s=3600.0, statement_s=3600.0, stopping_s=0.1)
    with closing(open_store(proxied_url, timeouts=patient, stop=stop)) as store:
        if not connected:
            store.close()
        proxy.stall()

        def ask() -> None:
            try:
                store.ask(lambda session: session.execute(text("SELECT 1")))
            except StoreUnavailable as error:
                errors.append(error)

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(0.5)
        assert asking.is_alive()
        stop.set()
        asking.join(60)
    assert [type(error) for error in errors] == [StoreUnavailable]


def test_a_process_that_stops_counts_only_the_time_since_the_last_answer() -> None:
    """A large answer that is on its way arrives."""
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


def test_a_process_that_stops_waits_for_a_silent_server_only_once() -> None:
    """Otherwise several calls together would outlast the time that the process has to end."""
    now, stop = [0.0], threading.Event()
    silence = Silence(statement_s=60.0, stopping_s=3.0, stop=stop, clock=lambda: now[0])
    stop.set()

    def silent_s(answers: Ready = Ready.NONE) -> float:
        """Return how long a call lasts whose server answers once, and never again."""

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
