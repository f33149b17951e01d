"""What only a file can do to us."""

import threading
import time
from pathlib import Path

import pytest
from locking import locked
from trajectories import finished

from broker import connect, embedded
from broker.messages import RunControl
from broker.topology import EVENTS, TRAJECTORIES, trainer_queue
from core.errors import BrokerError


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


def test_events_of_a_subscriber_that_never_reads_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "MAX_EVENTS", 3)
    broker = connect(f"sqlite:///{tmp_path / 'queue.db'}")
    subscriber, publisher = broker.subscriber("run"), broker.publisher()
    for number in range(9):
        publisher.publish(EVENTS, "run", RunControl(run_id="run", action=str(number)))
    events = [delivery.message for delivery in subscriber.receive(100, 0)]
    assert events == [RunControl(run_id="run", action=action) for action in "678"]
    broker.close()


def test_a_subscriber_that_stopped_reading_is_forgotten_and_returns_by_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "SUBSCRIBER_LEASE_S", -1.0)
    broker = connect(f"sqlite:///{tmp_path / 'queue.db'}")
    subscriber, publisher = broker.subscriber("run"), broker.publisher()
    publisher.publish(EVENTS, "run", RunControl(run_id="run", action="unheard"))
    monkeypatch.setattr(embedded, "SUBSCRIBER_LEASE_S", 60.0)
    monkeypatch.setattr(embedded, "TOUCH_S", 0.0)
    assert subscriber.receive(1, 0) == []
    publisher.publish(EVENTS, "run", RunControl(run_id="run", action="heard"))
    (delivery,) = subscriber.receive(1, 0)
    assert delivery.message == RunControl(run_id="run", action="heard")
    broker.close()


def test_a_folder_that_cannot_hold_the_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BrokerError, match=str(tmp_path)):
        connect(f"sqlite:///{tmp_path / 'file' / 'queue.db'}")


def test_who_keeps_the_file_locked_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.embedded_file.BUSY_S", 0.05)
    broker = connect(f"sqlite:///{tmp_path / 'queue.db'}")
    refusal = pytest.raises(BrokerError, match="database is locked")
    with locked(tmp_path / "queue.db") as holder, refusal as refused:
        broker.declare_run("run")
    broker.close()
    assert refused.value.mend.startswith(f"pid {holder} (")


@pytest.mark.slow
def test_a_message_is_received_soon_after_its_commit_by_another_process_or_this(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where commits follow within one tick of the file's clock."""
    monkeypatch.setattr("broker.embedded_file.LOOK_S", 60.0)  # one that was missed takes so long
    url = f"sqlite:///{tmp_path / 'queue.db'}"
    here, there = connect(url), connect(url)
    here.declare_run("run")
    consumer = here.consumer(trainer_queue("run"))
    delays = (0.0, 0.004, 0.008, 0.012, 0.15)  # the last one beyond what is fresh
    for number in range(40):
        publisher = (here, there)[number % 2].publisher()
        sent = (TRAJECTORIES, "run", finished("run", member=number))
        late = threading.Timer(delays[number % 5], publisher.publish, sent)
        late.start()
        began = time.monotonic()
        (delivery,) = consumer.receive(1, 60.0)
        assert time.monotonic() - began < 20
        consumer.ack([delivery])
        late.join()
    there.close()
    here.close()
