"""RabbitMQ and its embedded twin: messages, topology, publisher, consumer."""

import threading

from agentrl.broker.api import Broker
from agentrl.core.errors import BrokerError


def connect(url: str, *, compress_above: int = 4096, stop: threading.Event | None = None) -> Broker:
    """The broker of a URL: `amqp://…` or `amqps://…` RabbitMQ, `sqlite:///file` the embedded twin.

    `compress_above`: bytes; bodies above it travel as zstd. `stop`: of a process of a run, which
    waits for a broker that is away, here and where it makes queues, publishers and consumers, until
    `stop` is set. Raises BrokerError where the broker refuses the login, BrokerUnavailable where it
    is away.
    """
    scheme = url.partition(":")[0]
    if scheme in ("amqp", "amqps"):
        from agentrl.broker.rabbit import RabbitBroker

        return RabbitBroker(url, compress_above, stop=stop)
    if scheme == "sqlite":
        from agentrl.broker.embedded import EmbeddedBroker

        return EmbeddedBroker(url, compress_above, stop=stop)
    raise BrokerError(
        f"broker.url: unknown scheme {scheme!r}", hint="use amqp://…, sqlite:///file or embedded"
    )
