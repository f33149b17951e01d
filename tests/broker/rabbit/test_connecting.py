"""Connecting to RabbitMQ: bad URLs and logins, and a server that is away, silent or dying."""

import contextlib
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import pika
import pytest
from rabbit_proxy import RabbitProxy
from running import eventually
from structlog.testing import capture_logs
from trajectories import finished

from agentrl.broker import connect
from agentrl.broker.queue_names import TRAJECTORIES
from agentrl.core.errors import BrokerError, BrokerUnavailable


@pytest.mark.parametrize("sign", ["/", "#", "?", "["])
def test_an_invalid_url_is_refused_without_showing_its_password(sign: str) -> None:
    with pytest.raises(BrokerError, match="not an AMQP URL") as refused:
        connect(f"amqp://me:hush{sign}x@127.0.0.1:1/%2F")
    assert "hush" not in f"{refused.value} {refused.value.hint} {refused.value.__cause__}"


def test_the_error_of_an_unreachable_broker_is_one_line_with_its_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(BrokerUnavailable, match=f"127.0.0.1:{port} is unreachable") as caught:
        connect(f"amqp://guest:guest@127.0.0.1:{port}/")
    assert "\n" not in str(caught.value)
    assert caught.value.hint


def test_a_broker_that_resets_each_connection_is_unreachable() -> None:
    """Pika notices a reset in several places; about once in fourteen times it raises ValueError."""
    stop, at_once = threading.Event(), struct.pack("ii", 1, 0)  # SO_LINGER: on, for no time
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def reset_each() -> None:
            while not stop.is_set():
                near, _ = listener.accept()
                near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
                near.close()

        thread = threading.Thread(target=reset_each)
        thread.start()
        try:
            url = f"amqp://guest:guest@127.0.0.1:{listener.getsockname()[1]}/"
            for _ in range(100):
                with pytest.raises(BrokerUnavailable, match="is unreachable"):
                    connect(url)
        finally:
            stop.set()
            with contextlib.suppress(OSError):
                socket.create_connection(listener.getsockname()).close()
            thread.join()


def test_a_refused_login_names_the_user_and_never_the_password(amqp_url: str) -> None:
    with pytest.raises(BrokerError, match=r"refused the login of 'mallory'") as caught:
        connect(amqp_url.replace("guest:guest", "mallory:hunter2"), stop=threading.Event())
    assert "hunter2" not in str(caught.value) + caught.value.hint
    assert not isinstance(caught.value, BrokerUnavailable)


def test_an_unknown_virtual_host_is_named(amqp_url: str) -> None:
    with pytest.raises(BrokerError, match="nowhere") as caught:
        connect(amqp_url.rpartition("/")[0] + "/nowhere", stop=threading.Event())
    assert not isinstance(caught.value, BrokerUnavailable)


@pytest.mark.parametrize("answers", [1, 2])
def test_a_broker_that_dies_during_the_login_is_unreachable(amqp_url: str, answers: int) -> None:
    """After `answers` 1 it has asked for the login, after 2 it has accepted it."""
    parameters = pika.URLParameters(amqp_url)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection((parameters.host, parameters.port)) as far,
        ThreadPoolExecutor(1) as pool,
    ):
        port = listener.getsockname()[1]
        url = amqp_url.replace(f":{parameters.port}/", f":{port}/")
        connecting = pool.submit(connect, url)
        near, _ = listener.accept()
        with near:
            for _ in range(answers):
                far.sendall(near.recv(65536))
                near.sendall(far.recv(65536))
            near.recv(65536)
        with pytest.raises(BrokerUnavailable, match="is unreachable"):
            connecting.result(60)


def test_a_process_of_a_run_waits_until_it_can_connect_and_make_a_publisher(
    proxy: RabbitProxy, proxied_url: str, run_id: str
) -> None:
    stop = threading.Event()
    proxy.refuse()
    with ThreadPoolExecutor(1) as pool, capture_logs() as lines:
        try:
            connecting = pool.submit(connect, proxied_url, stop=stop)
            eventually(lambda: proxy.refused > 1, within_s=60, text=lambda: str(lines))
            proxy.admit()
            broker = connecting.result(60)
            proxy.refuse()
            making = pool.submit(broker.publisher)
            enough = proxy.refused + 2
            eventually(lambda: proxy.refused >= enough, within_s=60, text=lambda: str(lines))
            proxy.admit()
            with contextlib.closing(making.result(60)) as publisher:
                publisher.publish(TRAJECTORIES, run_id, finished(run_id, member=0))
        finally:
            stop.set()
    said = [line["event"] for line in lines if line.get("service") == "broker"]
    assert said == ["Waiting for a service that is unavailable", "Service is available again"] * 2


def test_a_process_that_stops_does_not_wait_for_a_silent_broker(
    proxy: RabbitProxy, proxied_url: str
) -> None:
    """Pika alone would wait for twenty seconds, and then we would connect again."""
    stop = threading.Event()
    proxy.stall()
    with ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(connect, proxied_url, stop=stop)
        stop.set()
        with pytest.raises(BrokerUnavailable, match="does not answer"):
            connecting.result(60)
