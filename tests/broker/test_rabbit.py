"""What only a server can do to us: go away, come back, refuse."""

import contextlib
import select
import socket
import struct
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pika
import pytest
from running import eventually
from structlog.testing import capture_logs
from trajectories import finished, published_event

from agentrl.broker import connect
from agentrl.broker.api import Broker, Consumer, Delivery
from agentrl.broker.messages import encode
from agentrl.broker.queue_names import (
    DEAD,
    EVENTS,
    MAX_DEAD_LETTERS,
    MAX_EVENTS,
    TRAJECTORIES,
    dead_queue,
    trainer_queue,
)
from agentrl.broker.rabbit_consumer import PREFETCH, RabbitConsumer
from agentrl.broker.rabbit_publisher import RabbitPublisher
from agentrl.core.errors import BrokerError, BrokerUnavailable, MessageRefused


class Wire:
    """A TCP proxy that can be cut and mended."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._refusing = threading.Event()
        self._speaking = threading.Event()
        self._speaking.set()
        self.refused = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        for pair in self._pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()

    def refuse(self) -> None:
        self._refusing.set()
        self.cut()

    def mend(self) -> None:
        self._refusing.clear()

    def silence(self) -> None:
        """Bytes are taken and go nowhere; connections stay open."""
        self._speaking.clear()

    def speak(self) -> None:
        self._speaking.set()

    def close(self) -> None:
        self.speak()
        self._listener.shutdown(socket.SHUT_RDWR)
        self.cut()

    def _accept(self) -> None:
        with self._listener, contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._refusing.is_set():
                    self.refused += 1
                    client.close()
                    continue
                pair = (client, socket.create_connection(self._target))
                self._pairs.append(pair)
                threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, client: socket.socket, server: socket.socket) -> None:
        other = {client: server, server: client}
        with client, server, contextlib.suppress(OSError):
            while True:
                for end in select.select(list(other), [], [])[0]:
                    some = end.recv(65536)
                    if not some:
                        return
                    self._speaking.wait()
                    other[end].sendall(some)


@pytest.fixture
def wire(amqp_url: str) -> Iterator[Wire]:
    parameters = pika.URLParameters(amqp_url)
    wire = Wire((parameters.host, parameters.port))
    yield wire
    wire.close()


@pytest.fixture
def wired_url(amqp_url: str, wire: Wire) -> str:
    parameters = pika.URLParameters(amqp_url)
    return amqp_url.replace(f":{parameters.port}/", f":{wire.port}/")


@pytest.fixture
def broker(wired_url: str) -> Broker:
    return connect(wired_url)


def refused_twice(wire: Wire) -> None:
    """Nobody reaches the server any more, and somebody has tried again and again."""
    wire.refuse()
    enough = wire.refused + 2
    eventually(lambda: wire.refused >= enough, within_s=60, text=lambda: str(wire.refused))


@pytest.fixture
def run_id(amqp_url: str) -> Iterator[str]:
    run_id = f"test-{uuid.uuid4().hex}"
    direct = connect(amqp_url)
    direct.declare_run(run_id)
    yield run_id
    direct.delete_run(run_id)


@contextlib.contextmanager
def plain_channel(amqp_url: str) -> Iterator[Any]:
    """A channel of pika's own; what it publishes is in the queue before the next line runs."""
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(amqp_url))) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel


def receive_for_ever(consumer: Consumer) -> None:
    while True:
        consumer.receive(1, 0.2)


def test_no_message_is_lost_while_the_connection_is_cut_again_and_again(
    broker: Broker, wire: Wire, run_id: str
) -> None:
    publisher, consumer = broker.publisher(), broker.consumer(trainer_queue(run_id))
    seen: set[int] = set()
    with ThreadPoolExecutor(8) as pool:
        sent = [
            pool.submit(publisher.publish, TRAJECTORIES, run_id, finished(run_id, member=member))
            for member in range(600)
        ]
        next_cut, cuts, end = 0, 0, time.monotonic() + 200
        while len(seen) < 600 and time.monotonic() < end:
            if len(seen) >= next_cut and cuts < 4:
                wire.cut()
                next_cut, cuts = len(seen) + 100, cuts + 1
            deliveries = consumer.receive(50, 0.2)
            seen |= {delivery.message.trajectory.member for delivery in deliveries}  # type: ignore[union-attr]
            consumer.ack(deliveries)
        for one in sent:
            one.result()
    assert seen == set(range(600))
    assert cuts == 4
    publisher.close()
    consumer.close()


def test_a_publish_waits_for_a_broker_that_comes_back(
    broker: Broker, wire: Wire, run_id: str
) -> None:
    publisher = broker.publisher()
    refused_twice(wire)
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(publisher.publish, TRAJECTORIES, run_id, finished(run_id))
        refused_twice(wire)
        assert not sent.done()
        wire.mend()
        sent.result(timeout=60)
    publisher.close()
    eventually(
        lambda: broker.depths(run_id)[trainer_queue(run_id)] == 1,
        within_s=60,
        text=lambda: str(broker.depths(run_id)),
    )


class Poisoned(RabbitPublisher):
    """Its messages of one body are such that the broker closes the channel over each (406)."""

    poison = b""

    def _properties(self, pending: Any, sequence: int) -> pika.BasicProperties:
        properties = super()._properties(pending, sequence)
        if pending.body == self.poison:
            properties.expiration = "never"
        return properties


def test_a_message_that_the_broker_refuses_fails_alone_and_the_others_arrive(
    amqp_url: str, run_id: str
) -> None:
    publisher, broker = Poisoned(pika.URLParameters(amqp_url), 4096), connect(amqp_url)
    sent = [finished(run_id, member=member) for member in range(40)]
    publisher.poison = encode(sent[17])
    with ThreadPoolExecutor(40) as pool:
        ends = [pool.submit(publisher.publish, TRAJECTORIES, run_id, each) for each in sent]
        failed = [number for number, end in enumerate(ends) if end.exception(timeout=120)]
    assert failed == [17]
    with pytest.raises(MessageRefused, match="PRECONDITION_FAILED"):
        ends[17].result()
    publisher.publish(TRAJECTORIES, run_id, finished(run_id, member=99))
    publisher.close()
    consumer = broker.consumer(trainer_queue(run_id))
    seen: set[int] = set()
    while len(seen) < 40:
        seen |= {each.message.trajectory.member for each in consumer.receive(50, 3600.0)}  # type: ignore[union-attr]
    assert seen == {*range(40), 99} - {17}
    consumer.close()


def test_a_publish_waits_on_a_silent_broker_until_its_caller_has_enough(
    broker: Broker, wire: Wire, run_id: str
) -> None:
    """And what it was told to wait for goes out once the broker speaks again."""

    class EnoughError(Exception):
        pass

    def waiting(waited_s: float) -> None:
        waits.append(waited_s)
        if len(waits) == 2:
            raise EnoughError

    waits: list[float] = []
    publisher = broker.publisher()
    wire.silence()
    with ThreadPoolExecutor(1) as pool:
        patient = pool.submit(publisher.publish, TRAJECTORIES, run_id, finished(run_id))
        with pytest.raises(EnoughError):
            publisher.publish(TRAJECTORIES, run_id, finished(run_id, member=1), waiting=waiting)
        assert not patient.done()
        wire.speak()
        patient.result(timeout=120)
    publisher.close()


def test_an_event_is_not_waited_for_long(broker: Broker, wire: Wire, run_id: str) -> None:
    publisher = broker.publisher()
    refused_twice(wire)
    with pytest.raises(BrokerUnavailable, match="did not confirm an event"):
        publisher.publish(EVENTS, run_id, published_event(run_id))
    wire.mend()
    publisher.close()


def test_a_consumer_waits_for_a_broker_that_is_away_longer_than_for_its_queue(
    wire: Wire, wired_url: str, amqp_url: str, run_id: str
) -> None:
    parameters, queue = pika.URLParameters(wired_url), trainer_queue(run_id)
    consumer = RabbitConsumer(parameters, queue, patience_s=0.0)
    refused_twice(wire)
    assert consumer.receive(1, 0.1) == []
    publisher = connect(amqp_url).publisher()
    publisher.publish(TRAJECTORIES, run_id, finished(run_id))
    publisher.close()
    wire.mend()
    assert len(consumer.receive(1, 3600.0)) == 1
    consumer.close()


def test_what_waits_for_its_confirm_is_bounded(
    broker: Broker, wire: Wire, wired_url: str, run_id: str
) -> None:
    publisher = RabbitPublisher(pika.URLParameters(wired_url), 4096, window=3)

    def waiting() -> int:
        return len(publisher._outbox) + len(publisher._unconfirmed)

    wire.refuse()
    with ThreadPoolExecutor(12) as pool:
        sent = [
            pool.submit(publisher.publish, TRAJECTORIES, run_id, finished(run_id, member=member))
            for member in range(12)
        ]
        began = lambda: all(one.running() for one in sent)  # noqa: E731
        eventually(lambda: began() and waiting() >= 3, within_s=60, text=lambda: str(waiting()))
        refused_twice(wire)
        assert waiting() == 3
        wire.mend()
        for one in sent:
            one.result(timeout=60)
    publisher.close()
    eventually(
        lambda: broker.depths(run_id)[trainer_queue(run_id)] == 12,
        within_s=60,
        text=lambda: str(broker.depths(run_id)),
    )


def test_a_subscriber_hears_again_after_a_cut(broker: Broker, wire: Wire, run_id: str) -> None:
    publisher, subscriber = broker.publisher(), broker.subscriber(run_id)
    wire.cut()
    heard, end = False, time.monotonic() + 60
    while not heard and time.monotonic() < end:
        publisher.publish(EVENTS, run_id, published_event(run_id))
        heard = bool(subscriber.receive(1, 0.2))
    assert heard
    publisher.close()
    subscriber.close()


def test_a_consumer_that_acknowledges_nothing_is_sent_so_much_and_no_more(
    amqp_url: str, run_id: str
) -> None:
    with plain_channel(amqp_url) as channel:
        for _ in range(PREFETCH + 9):
            channel.basic_publish("", trainer_queue(run_id), encode(published_event(run_id)))
    with contextlib.closing(connect(amqp_url).consumer(trainer_queue(run_id))) as consumer:
        held: list[Delivery] = []
        while len(held) < PREFETCH:
            held += (some := consumer.receive(2 * PREFETCH, 300))
            assert some
        assert consumer.receive(1, 0.2) == []
        consumer.ack(held[:5])
        assert consumer.receive(1, 300)


def test_events_of_a_subscriber_that_never_reads_are_bounded(amqp_url: str, run_id: str) -> None:
    """Beside those that the consumer was sent before."""
    most, last = MAX_EVENTS + PREFETCH, f"{MAX_EVENTS + PREFETCH + 99}"
    with contextlib.closing(connect(amqp_url).subscriber(run_id)) as subscriber:
        with plain_channel(amqp_url) as channel:
            for number in range(int(last) + 1):
                event = published_event(run_id, str(number))
                channel.basic_publish(EVENTS, run_id, encode(event))
        heard: list[str] = []
        while last not in heard:
            events = subscriber.receive(2 * most, 60)
            assert events, "the newest gave way"
            heard += [getattr(event.message, "checkpoint_id", "") for event in events]
    assert len(heard) <= most


def test_an_acknowledgement_from_before_a_cut_is_passed_over(
    broker: Broker, wire: Wire, run_id: str
) -> None:
    publisher, consumer = broker.publisher(), broker.consumer(trainer_queue(run_id))
    for member in range(2):
        publisher.publish(TRAJECTORIES, run_id, finished(run_id, member=member))
    (before,) = consumer.receive(1, 60)
    wire.cut()
    again: list[Delivery] = []
    while not again:
        again = [d for d in consumer.receive(1, 10) if d.message == before.message]
    consumer.ack([before])
    consumer.close()
    fresh = broker.consumer(trainer_queue(run_id))
    assert before.message in [d.message for d in fresh.receive(1, 60)]
    publisher.close()
    fresh.close()


@pytest.mark.parametrize("sign", ["/", "#", "?", "["])
def test_a_url_that_is_none_is_refused_without_a_part_of_its_password(sign: str) -> None:
    with pytest.raises(BrokerError, match="not an AMQP URL") as refused:
        connect(f"amqp://me:hush{sign}x@127.0.0.1:1/%2F")
    assert "hush" not in f"{refused.value} {refused.value.hint} {refused.value.__cause__}"


def test_an_unreachable_broker_is_one_line_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(BrokerUnavailable, match=f"127.0.0.1:{port} is unreachable") as caught:
        connect(f"amqp://guest:guest@127.0.0.1:{port}/")
    assert "\n" not in str(caught.value)
    assert caught.value.hint


def test_a_broker_that_resets_each_connection_is_unreachable() -> None:
    """Pika notices it at several places, one in fourteen times where it raises a ValueError."""
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
def test_a_broker_that_dies_while_we_log_in_has_not_refused_the_login(
    amqp_url: str, answers: int
) -> None:
    """It has asked for the login, and, the second time, accepted it."""
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


def test_a_process_of_a_run_waits_for_its_broker_until_it_is_there(
    wire: Wire, wired_url: str, run_id: str
) -> None:
    """Here, and where it asks for a publisher."""
    stop = threading.Event()
    wire.refuse()
    with ThreadPoolExecutor(1) as pool, capture_logs() as lines:
        try:
            connecting = pool.submit(connect, wired_url, stop=stop)
            eventually(lambda: wire.refused > 1, within_s=60, text=lambda: str(lines))
            wire.mend()
            broker = connecting.result(60)
            wire.refuse()
            making = pool.submit(broker.publisher)
            enough = wire.refused + 2
            eventually(lambda: wire.refused >= enough, within_s=60, text=lambda: str(lines))
            wire.mend()
            with contextlib.closing(making.result(60)) as publisher:
                publisher.publish(TRAJECTORIES, run_id, finished(run_id, member=0))
        finally:
            stop.set()
    said = [line["event"] for line in lines if line.get("service") == "broker"]
    assert said == ["Waiting for a service that is unavailable", "Service is available again"] * 2


def test_a_process_that_is_told_to_stop_waits_no_longer_for_a_silent_broker(
    wire: Wire, wired_url: str
) -> None:
    """Pika alone would wait for twenty seconds, and then be asked again."""
    stop = threading.Event()
    wire.silence()
    with ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(connect, wired_url, stop=stop)
        stop.set()
        with pytest.raises(BrokerUnavailable, match="does not answer"):
            connecting.result(60)


def test_consuming_a_queue_that_was_never_declared_is_an_error(amqp_url: str) -> None:
    with pytest.raises(BrokerError, match="no queue"):
        connect(amqp_url).consumer(trainer_queue("test-never-declared"))


def test_closing_ends_threads_while_the_broker_is_away(
    broker: Broker, wire: Wire, run_id: str
) -> None:
    before = set(threading.enumerate())
    publisher, consumer = broker.publisher(), broker.consumer(trainer_queue(run_id))
    refused_twice(wire)
    publisher.close()
    consumer.close()
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert not {name for name in left if name.startswith("amqp-")}


def test_a_consumer_whose_queue_vanished_says_so(
    broker: Broker, wired_url: str, run_id: str
) -> None:
    parameters = pika.URLParameters(wired_url)
    consumer = RabbitConsumer(parameters, trainer_queue(run_id), patience_s=0.5)
    broker.delete_run(run_id)
    with pytest.raises(BrokerError, match="no queue"):
        receive_for_ever(consumer)
    consumer.close()


def test_a_consumer_hears_again_after_a_callback_failed(
    broker: Broker, run_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    publisher, consumer = broker.publisher(), broker.consumer(trainer_queue(run_id))

    def fail(_channel: Any) -> None:
        raise KeyError("nothing")

    consumer._link.call(fail)  # type: ignore[attr-defined]
    publisher.publish(TRAJECTORIES, run_id, finished(run_id))
    heard: list[Delivery] = []
    end = time.monotonic() + 60
    while not heard and time.monotonic() < end:
        heard += consumer.receive(1, 0.2)
    assert heard
    assert consumer._link.generation > 1  # type: ignore[attr-defined]
    consumer.ack(heard)
    publisher.close()
    consumer.close()
    assert "Broker connection failed" in "".join(capsys.readouterr())


def test_of_dead_letters_the_newest_stay(amqp_url: str, run_id: str) -> None:
    broker = connect(amqp_url)
    queue = trainer_queue(run_id)
    with plain_channel(amqp_url) as channel:
        for number in range(MAX_DEAD_LETTERS + 3):
            channel.basic_publish(DEAD, queue, str(number).encode())
    eventually(
        lambda: broker.depths(run_id)[dead_queue(queue)] == MAX_DEAD_LETTERS,
        within_s=60,
        text=lambda: str(broker.depths(run_id)),
    )
    assert broker.dead_letters(run_id)[0].body == b"3"


def test_queues_of_dead_letters_of_an_older_version_stay_as_they_are(amqp_url: str) -> None:
    run_id = f"test-{uuid.uuid4().hex}"
    with plain_channel(amqp_url) as channel:
        channel.queue_declare(dead_queue(trainer_queue(run_id)), durable=True)
    broker = connect(amqp_url)
    broker.declare_run(run_id)
    broker.declare_run(run_id)
    try:
        assert broker.queues_exist(run_id)
    finally:
        broker.delete_run(run_id)
