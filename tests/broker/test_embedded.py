"""What only a file can do to us."""

import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from running import eventually
from sqlite_lock import hold_lock
from structlog.testing import capture_logs
from trajectories import finished, published_event

from agentrl.broker import connect
from agentrl.broker.embedded import EmbeddedBroker
from agentrl.broker.embedded_consumer import SUBSCRIBER_LEASE_S, EmbeddedConsumer
from agentrl.broker.embedded_publisher import EmbeddedPublisher
from agentrl.broker.embedded_queue_file import QueueFile, schema
from agentrl.broker.queue_names import EVENTS, MAX_EVENTS, TRAJECTORIES, trainer_queue
from agentrl.core.errors import BrokerError, BrokerUnavailable


def test_a_queue_belongs_to_its_newest_consumer(tmp_path: Path) -> None:
    broker = connect(f"sqlite:///{tmp_path / 'queue.db'}")
    broker.declare_run("run")
    paused = broker.consumer(trainer_queue("run"))
    broker.publisher().publish(TRAJECTORIES, "run", finished("run"))
    successor = broker.consumer(trainer_queue("run"))
    with pytest.raises(BrokerError, match="taken over"):
        paused.receive(1, 0)
    paused.close()
    assert len(successor.receive(1, 0)) == 1
    broker.close()


def test_messages_outlive_the_process_that_published_them(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'deeper' / 'queue.db'}"
    first = connect(url)
    first.declare_run("run")
    first.publisher().publish(TRAJECTORIES, "run", finished("run"))
    first.close()
    second = connect(url)
    (delivery,) = second.consumer(trainer_queue("run")).receive(5, 0)
    assert delivery.message == finished("run")
    second.close()


def test_of_dead_letters_the_newest_stay() -> None:
    bury = "INSERT INTO dead (queue, reason, body) VALUES (?, 'unreadable', ?)"
    kept = "SELECT body FROM dead WHERE queue = ? ORDER BY id"
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(schema(max_dead_letters=3, max_dead_bytes=100))
        connection.execute(bury, ("other", b"0"))
        connection.executemany(bury, [("queue", str(n).encode()) for n in range(5)])
        assert connection.execute(kept, ("queue",)).fetchall() == [(b"2",), (b"3",), (b"4",)]
        connection.execute(bury, ("queue", bytes(99)))
        assert connection.execute(kept, ("queue",)).fetchall() == [(b"4",), (bytes(99),)]
        assert connection.execute(kept, ("other",)).fetchall() == [(b"0",)]


def test_events_of_a_subscriber_that_never_reads_are_bounded(tmp_path: Path) -> None:
    broker = connect(f"sqlite:///{tmp_path / 'queue.db'}")
    subscriber, publisher = broker.subscriber("run"), broker.publisher()
    for number in range(MAX_EVENTS + 3):
        publisher.publish(EVENTS, "run", published_event("run", str(number)))
    events = [delivery.message for delivery in subscriber.receive(2 * MAX_EVENTS, 0)]
    assert len(events) == MAX_EVENTS
    assert events[0] == published_event("run", "3")
    broker.close()


def test_a_subscriber_that_stopped_reading_is_forgotten_and_returns_by_reading(
    tmp_path: Path,
) -> None:
    now = [1000.0]
    broker = EmbeddedBroker(f"sqlite:///{tmp_path / 'queue.db'}", clock=lambda: now[0])
    subscriber, publisher = broker.subscriber("run"), broker.publisher()
    now[0] += SUBSCRIBER_LEASE_S + 1
    publisher.publish(EVENTS, "run", published_event("run", "unheard"))
    assert subscriber.receive(1, 0) == []
    publisher.publish(EVENTS, "run", published_event("run", "heard"))
    (delivery,) = subscriber.receive(1, 0)
    assert delivery.message == published_event("run", "heard")
    broker.close()


def test_a_folder_that_cannot_hold_the_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BrokerError, match=str(tmp_path)):
        connect(f"sqlite:///{tmp_path / 'file' / 'queue.db'}")


def test_who_keeps_the_file_locked_is_named(tmp_path: Path) -> None:
    broker = EmbeddedBroker(f"sqlite:///{tmp_path / 'queue.db'}", busy_s=0.05)
    refusal = pytest.raises(BrokerError, match="database is locked")
    with hold_lock(tmp_path / "queue.db") as holder, refusal as refused:
        broker.declare_run("run")
    broker.close()
    assert refused.value.hint.startswith(f"pid {holder} (")


def test_a_message_is_received_after_its_commit_by_another_process_or_this(tmp_path: Path) -> None:
    """Also where commits follow within one tick of the file's clock; one that was missed is
    looked for after an hour only."""
    path, queue = tmp_path / "queue.db", trainer_queue("run")
    here, there = QueueFile(path, look_s=3600.0), QueueFile(path)
    connect(f"sqlite:///{path}").declare_run("run")
    consumer = EmbeddedConsumer(here, queue)
    delays = (0.0, 0.004, 0.008, 0.012, 0.15)  # the last one beyond what is fresh
    for number in range(40):
        publisher = EmbeddedPublisher((here, there)[number % 2], 4096)
        sent = (TRAJECTORIES, "run", finished("run", member=number))
        late = threading.Timer(delays[number % 5], publisher.publish, sent)
        late.start()
        (delivery,) = consumer.receive(1, 3600.0)
        consumer.ack([delivery])
        late.join()
    there.close()
    here.close()


def test_a_consumer_of_an_empty_queue_asks_the_database_seldom(tmp_path: Path) -> None:
    class Counting(QueueFile):
        reads = 0

        @contextmanager
        def read(self) -> Iterator[sqlite3.Connection]:
            self.reads += 1
            with super().read() as connection:
                yield connection

    file = Counting(tmp_path / "queue.db", look_s=0.5)
    consumer = EmbeddedConsumer(file, "q")
    before = file.reads
    assert consumer.receive(1, 2.0) == []
    assert file.reads - before <= 20  # one in half a second, and a few while the file is fresh
    file.close()


class FullDisk(QueueFile):
    """A file that takes nothing while the disk is full, and cannot be read while it is away."""

    full = away = False

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        if self.away:
            raise BrokerUnavailable("queue file: disk I/O error")
        with super().read() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        if self.full:
            raise BrokerUnavailable("queue file: database or disk is full")
        with super().write() as connection:
            yield connection


def test_a_consumer_goes_on_with_a_full_disk_and_settles_once_there_is_room(
    tmp_path: Path,
) -> None:
    """What it acknowledged and what cannot be decoded; messages are read all the same."""
    queue = trainer_queue("run")
    file = FullDisk(tmp_path / "queue.db")
    with closing(EmbeddedBroker(f"sqlite:///{tmp_path / 'queue.db'}")) as broker:
        broker.declare_run("run")
        consumer = EmbeddedConsumer(file, queue)
        publisher = broker.publisher()
        publisher.publish(TRAJECTORIES, "run", finished("run", member=0))
        with file.write() as connection:
            connection.execute("INSERT INTO messages (queue, body) VALUES (?, ?)", (queue, b"?"))
        publisher.publish(TRAJECTORIES, "run", finished("run", member=1))
        file.full = True
        deliveries = consumer.receive(5, 1.0)
        assert [each.message for each in deliveries] == [
            finished("run", member=0),
            finished("run", member=1),
        ]
        consumer.ack(deliveries)
        assert broker.depths("run")[queue] == 3
        file.full = False
        consumer.receive(5, 0.0)
        assert broker.depths("run")[queue] == 0
        assert [letter.body for letter in broker.dead_letters("run")] == [b"?"]
        file.full = True
        consumer.close()
    file.close()


def test_a_queue_file_that_cannot_be_read_holds_no_messages_until_it_can(tmp_path: Path) -> None:
    file = FullDisk(tmp_path / "queue.db")
    with closing(EmbeddedBroker(f"sqlite:///{tmp_path / 'queue.db'}")) as broker:
        broker.declare_run("run")
        consumer = EmbeddedConsumer(file, trainer_queue("run"))
        broker.publisher().publish(TRAJECTORIES, "run", finished("run"))
        file.away = True
        assert consumer.receive(5, 0.2) == []
        file.away = False
        assert [each.message for each in consumer.receive(5, 0.2)] == [finished("run")]
    file.close()


def test_a_process_of_a_run_waits_for_a_queue_file_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "queue.db").mkdir()  # no file
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool, capture_logs() as lines:
        connecting = pool.submit(connect, f"sqlite:///{tmp_path / 'queue.db'}", stop=stop)
        eventually(lambda: lines, within_s=60, text=lambda: "nothing was logged")
        (tmp_path / "queue.db").rmdir()
        connecting.result(60).close()
    assert [line["event"] for line in lines] == [
        "Waiting for a service that is unavailable",
        "Service is available again",
    ]


def test_a_body_waits_for_a_full_disk_and_says_so_to_who_asked(tmp_path: Path) -> None:
    file = FullDisk(tmp_path / "queue.db")
    connect(f"sqlite:///{tmp_path / 'queue.db'}").declare_run("run")
    publisher = EmbeddedPublisher(file, 4096)
    file.full = True
    waited: list[float] = []

    def waiting(seconds: float) -> None:
        waited.append(seconds)
        file.full = len(waited) < 3

    publisher.publish(TRAJECTORIES, "run", finished("run"), waiting=waiting)
    assert len(waited) == 3
    file.full = True
    with pytest.raises(Stop):
        publisher.publish(TRAJECTORIES, "run", finished("run"), waiting=stopped)
    file.close()


class Stop(Exception):
    pass


def stopped(_seconds: float) -> None:
    raise Stop
