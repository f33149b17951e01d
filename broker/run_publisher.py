"""A publisher of one run, which declares the run's queues again if the broker has lost them."""

import threading
import time
from collections.abc import Callable

from agentrl.broker.api import Broker, Publisher, Unroutable, Waiting
from agentrl.broker.messages import Message
from agentrl.core.logging import get_logger

# RabbitMQ cancels the consumers of a lost queue, and they come back to the new one. Where the queue
# is there again before it has done so, it moves them itself, and then drops what it sends to them.
PAUSE_S = 1.0

log = get_logger()


class RunPublisher:
    """Publishes like `publisher`. Thread-safe. `is_over`: whether the run may have no queues."""

    def __init__(self, broker: Broker, publisher: Publisher, is_over: Callable[[], bool]) -> None:
        self._broker = broker
        self._publisher = publisher
        self._is_over = is_over
        self._declaring = threading.Lock()  # a broker that lost all is asked by one at a time

    def publish(
        self, exchange: str, run_id: str, message: Message, *, waiting: Waiting | None = None
    ) -> None:
        """Raises what `Publisher.publish` and `Broker.declare_run` raise."""
        try:
            self._publisher.publish(exchange, run_id, message, waiting=waiting)
        except Unroutable as error:
            if self._is_over():
                raise
            log.warning("Queues of the run are declared again", error=str(error))
            time.sleep(PAUSE_S)
            with self._declaring:
                self._broker.declare_run(run_id)
            self._publisher.publish(exchange, run_id, message, waiting=waiting)

    def close(self) -> None:
        self._publisher.close()
