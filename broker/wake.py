"""Events wake, the database decides: threads between a process and the events of its run.

    trainer       ─ CheckpointPublished ─▶ Waker ─▶ a policy server looks at the registry
    policy server ─ PoolChanged ─────────▶ Waker ─▶ a worker's pool looks at the registry

Whoever is woken also looks by itself now and then: a broker that is away delays, and nothing more.
"""

import threading
from contextlib import closing

from broker.api import Broker, Consumer, Publisher
from broker.messages import Message
from broker.topology import EVENTS
from core.errors import BrokerError
from core.logging import get_logger

RECEIVE_S = 0.5  # how long it takes at most to notice that we are to end
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0  # between two tries to reach the broker
JOIN_S = 1.0  # a thread that hangs in the broker's library is left to the process's end

log = get_logger()


class Waker:
    """Sets `wake` when a message of one of `kinds` arrives, from now until closed."""

    def __init__(
        self, broker: Broker, run_id: str, kinds: tuple[type[Message], ...], wake: threading.Event
    ) -> None:
        self._broker = broker
        self._run_id = run_id
        self._kinds = kinds
        self._wake = wake
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="waker", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(JOIN_S)

    def _run(self) -> None:
        pause = FIRST_PAUSE_S
        while not self._stop.is_set():
            try:
                with closing(self._broker.subscriber(self._run_id)) as subscriber:
                    self._wake.set()  # what came before we listened
                    pause = FIRST_PAUSE_S
                    self._listen(subscriber)
            except BrokerError as error:
                log.warning("no wake-up events for now", error=str(error))
            self._stop.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _listen(self, subscriber: Consumer) -> None:
        while not self._stop.is_set():
            deliveries = subscriber.receive(256, RECEIVE_S)
            if any(isinstance(each.message, self._kinds) for each in deliveries):
                self._wake.set()


class Announcer:
    """Publishes a run's event off the caller's thread; several calls may become one event."""

    def __init__(self, broker: Broker, run_id: str, event: Message | None = None) -> None:
        """`event`: what is published until `announce` names another."""
        self._broker = broker
        self._run_id = run_id
        self._event = event
        self._due = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="announcer", daemon=True)
        self._thread.start()

    def announce(self, event: Message | None = None) -> None:
        """Publish `event`, or the last one again, soon; never waits for the broker."""
        self._event = event or self._event
        self._due.set()

    def close(self) -> None:
        """What is due then is left to those who look by themselves."""
        self._stop.set()
        self._due.set()
        self._thread.join(JOIN_S)

    def _run(self) -> None:
        pause = FIRST_PAUSE_S
        while self._due.wait() and not self._stop.is_set():
            try:
                with closing(self._broker.publisher()) as publisher:
                    pause = FIRST_PAUSE_S
                    self._publish(publisher)
            except BrokerError as error:
                log.warning("change not announced yet", error=str(error))
                self._due.set()
                self._stop.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)

    def _publish(self, publisher: Publisher) -> None:
        while self._due.wait() and not self._stop.is_set():
            self._due.clear()
            if self._event is not None:
                publisher.publish(EVENTS, self._run_id, self._event)
