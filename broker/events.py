"""Events wake a process, the database decides what it does: subscriptions to a run's events.

    trainer       ─ CheckpointPublished ─▶ Waker ─▶ a policy server looks at the registry
    policy server ─ PoolChanged ─────────▶ Waker ─▶ a worker's pool looks at the registry

Every subscriber also polls, so an unavailable broker only delays it.
"""

import threading
from contextlib import closing, suppress
from functools import partial

from agentrl.broker.api import Broker, Consumer, Publisher
from agentrl.broker.messages import Message
from agentrl.broker.queue_names import EVENTS
from agentrl.core.errors import BrokerError
from agentrl.core.logging import get_logger
from agentrl.core.retry import Backoff, Retry

RECEIVE_S = 0.5  # how long it takes at most to notice that we are to end
# Whatever a broker says, it is asked again: its events are a convenience.
BACKOFF = Backoff(first_s=0.5, longest_s=10.0, stopping_s=0.0)
JOIN_S = 1.0  # a thread that hangs in the broker's library is left to the process's end

log = get_logger()


class EventListener:
    """Sets `wake` when a message of one of `kinds` arrives, from now until closed."""

    def __init__(
        self, broker: Broker, run_id: str, kinds: tuple[type[Message], ...], wake: threading.Event
    ) -> None:
        self._broker = broker
        self._run_id = run_id
        self._kinds = kinds
        self._wake = wake
        self._stop = threading.Event()
        self._retry = Retry("broker events", BrokerError, stop=self._stop, backoff=BACKOFF)
        self._thread = threading.Thread(target=self._run, name="waker", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(JOIN_S)

    def _run(self) -> None:
        subscribe = partial(self._broker.subscriber, self._run_id)
        while not self._stop.is_set():
            try:
                with closing(self._retry.call(subscribe)) as subscriber:
                    self._wake.set()  # what came before we listened
                    self._listen(subscriber)
            except BrokerError as error:
                log.warning("Subscription to events ended", error=str(error))
            self._stop.wait(BACKOFF.first_s)

    def _listen(self, subscriber: Consumer) -> None:
        while not self._stop.is_set():
            deliveries = subscriber.receive(256, RECEIVE_S)
            if any(isinstance(each.message, self._kinds) for each in deliveries):
                self._wake.set()


class EventPublisher:
    """Publishes a run's events on its own thread; several calls may be merged into one event."""

    def __init__(self, broker: Broker, run_id: str, event: Message | None = None) -> None:
        """`event`: published until `announce` sets another."""
        self._broker = broker
        self._run_id = run_id
        self._event = event
        self._due = threading.Event()
        self._stop = threading.Event()
        self._publisher: Publisher | None = None
        self._retry = Retry("broker events", BrokerError, stop=self._stop, backoff=BACKOFF)
        self._thread = threading.Thread(target=self._run, name="announcer", daemon=True)
        self._thread.start()

    def announce(self, event: Message | None = None) -> None:
        """Publish `event`, or the last one again, without waiting for the broker."""
        self._event = event or self._event
        self._due.set()

    def close(self) -> None:
        """Stop without publishing pending events; subscribers also poll."""
        self._stop.set()
        self._due.set()
        self._thread.join(JOIN_S)

    def _run(self) -> None:
        while self._due.wait() and not self._stop.is_set():
            self._due.clear()
            with suppress(BrokerError):  # told to stop
                self._retry.call(self._publish)
        if self._publisher is not None:
            self._publisher.close()

    def _publish(self) -> None:
        """Publish the newest event; replace a failed publisher."""
        event = self._event
        if event is None:
            return
        if self._publisher is None:
            self._publisher = self._broker.publisher()
        try:
            self._publisher.publish(EVENTS, self._run_id, event)
        except BrokerError:
            self._publisher.close()
            self._publisher = None
            raise
