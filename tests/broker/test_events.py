"""Wake-up events over both brokers, and over one that is away."""

import threading
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from running import eventually

from agentrl.broker import connect
from agentrl.broker.api import Broker, Consumer, Publisher
from agentrl.broker.events import EventListener, EventPublisher
from agentrl.broker.messages import CheckpointPublished, Message, PoolChanged
from agentrl.broker.queue_names import EVENTS
from agentrl.core.errors import BrokerError


@pytest.fixture(params=["embedded", "rabbit"])
def link(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    rabbit = request.param == "rabbit"
    url = request.getfixturevalue("amqp_url") if rabbit else f"sqlite:///{tmp_path / 'queue.db'}"
    with closing(connect(url)) as opened:
        yield opened


@pytest.fixture
def run_id() -> str:
    return f"run-{uuid.uuid4().hex}"


class Away:
    """A broker that refuses until it is back."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.back = threading.Event()
        self.asked = threading.Event()

    def subscriber(self, run_id: str) -> Consumer:
        self._refuse()
        return self._broker.subscriber(run_id)

    def publisher(self) -> Publisher:
        self._refuse()
        return self._broker.publisher()

    def _refuse(self) -> None:
        self.asked.set()
        if not self.back.is_set():
            raise BrokerError("away")

    def __getattr__(self, name: str) -> object:
        return getattr(self._broker, name)


def _listening(woken: threading.Event) -> None:
    """A waker wakes once as it begins to listen: what came before is looked at then."""
    assert woken.wait(60)
    woken.clear()


def test_an_event_of_its_kind_and_run_wakes(link: Broker, run_id: str) -> None:
    woken = threading.Event()
    with (
        closing(EventListener(link, run_id, (PoolChanged,), woken)),
        closing(link.publisher()) as publisher,
    ):
        _listening(woken)
        published = CheckpointPublished(run_id=run_id, version=1, checkpoint_id="c")
        for run, event in ((run_id, published), ("another", PoolChanged(run_id="another"))):
            publisher.publish(EVENTS, run, event)
        assert not woken.wait(0.5)
        publisher.publish(EVENTS, run_id, PoolChanged(run_id=run_id))
        assert woken.wait(60)


class Slow(Away):
    """A broker that keeps who asks it waiting until it is back."""

    def _refuse(self) -> None:
        assert self.back.wait(60)


def test_changes_are_announced_off_the_callers_thread(link: Broker, run_id: str) -> None:
    event: Message = PoolChanged(run_id=run_id)
    slow = Slow(link)
    with closing(link.subscriber(run_id)) as subscriber:
        with closing(EventPublisher(slow, run_id, event)) as announcer:
            for _ in range(1000):
                announcer.announce()
            slow.back.set()
            heard = list(subscriber.receive(1000, 60.0))
        heard += subscriber.receive(1000, 0.2)
    assert {each.message for each in heard} == {event}
    assert len(heard) < 1000


def test_a_broker_that_is_away_delays(tmp_path: Path, run_id: str) -> None:
    woken = threading.Event()
    with closing(connect(f"sqlite:///{tmp_path / 'queue.db'}")) as link:
        listened, spoken = Away(link), Away(link)
        with (
            closing(EventListener(listened, run_id, (PoolChanged,), woken)),
            closing(EventPublisher(spoken, run_id, PoolChanged(run_id=run_id))) as announcer,
        ):
            announcer.announce()
            assert listened.asked.wait(60)
            assert not woken.is_set()
            listened.back.set()
            _listening(woken)
            spoken.back.set()
            assert woken.wait(60)


def test_threads_end_while_the_broker_is_away(tmp_path: Path, run_id: str) -> None:
    before = set(threading.enumerate())
    with closing(connect(f"sqlite:///{tmp_path / 'queue.db'}")) as link:
        one, other = Away(link), Away(link)
        waker = EventListener(one, run_id, (PoolChanged,), threading.Event())
        announcer = EventPublisher(other, run_id, PoolChanged(run_id=run_id))
        announcer.announce()
        assert one.asked.wait(60)
        assert other.asked.wait(60)
        waker.close()
        announcer.close()

    def left() -> set[threading.Thread]:
        return set(threading.enumerate()) - before

    eventually(lambda: not left(), within_s=60, text=lambda: str(left()))
