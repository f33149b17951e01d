"""RabbitMQ and the embedded broker: messages, queue names, publisher, consumer."""

import threading

from agentrl.broker.api import Broker
from agentrl.core.errors import BrokerError


def connect(url: str, *, compress_above: int = 4096, stop: threading.Event | None = None) -> Broker:
    """Connect to a broker: RabbitMQ for `amqp://…` or `amqps://…`, embedded for `sqlite:///FILE`.

    `compress_above`: larger bodies (bytes) are compressed with zstd. `stop`: given by processes of
    a run. They wait for an unavailable broker, here and when they create queues, publishers and
    consumers, until `stop` is set. Raises BrokerError if the login is refused, BrokerUnavailable if
    the broker is unavailable.
    """
    scheme = url.partition(":")[0]
    if scheme in ("amqp", "amqps"):
        from agentrl.broker.rabbit import RabbitBroker

        return RabbitBroker(url, compress_above, stop=stop)
    if scheme == "sqlite":
        from agentrl.broker.embedded import EmbeddedBroker

        return EmbeddedBroker(url, compress_above, stop=stop)
    raise BrokerError(
        f"broker.url: unknown scheme {scheme!r}", hint="use amqp://…, sqlite:///FILE or embedded"
    )
