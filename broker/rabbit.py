"""RabbitMQ through pika: quorum queues, confirms, dead letters.

Queues are declared, counted and deleted over a short-lived connection. Publishers and consumers
keep a connection on a thread (broker/rabbit_connection.py).
"""

import logging
import re
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import pika
from pika.exceptions import (
    AMQPError,
    AuthenticationError,
    ChannelClosedByBroker,
    NackError,
    ProbableAuthenticationError,
    UnroutableError,
)

from agentrl.broker.api import Consumer, DeadLetter, Publisher, letter_id, make_retry
from agentrl.broker.queue_names import (
    DEAD,
    EXCHANGES,
    MAX_DEAD_BYTES,
    MAX_DEAD_LETTERS,
    TRAJECTORIES,
    dead_queue,
    episodes_queue,
    run_queues,
)
from agentrl.broker.rabbit_connection import HEARTBEAT_S, address, reason_of
from agentrl.broker.rabbit_consumer import NO_QUEUE, RabbitConsumer, RabbitSubscriber
from agentrl.broker.rabbit_publisher import RabbitPublisher
from agentrl.core.errors import BrokerError, BrokerUnavailable
from agentrl.core.processes.threads import call_bounded
from agentrl.core.retry import FOREVER

T = TypeVar("T")

DELIVERY_LIMIT = 100  # generous: it also counts deliveries merely held when a consumer dies
DEAD_BOUNDS = {
    "x-max-length": MAX_DEAD_LETTERS,
    "x-max-length-bytes": MAX_DEAD_BYTES,
    "x-overflow": "drop-head",
}
OTHER_ARGUMENTS = 406  # AMQP's code of a queue that stands, declared with other ones
CHECK_URL = "check broker.url"
REFUSED = re.compile(r"ConnectionClosedByBroker: \((403|530)\)")  # access refused, not allowed
STOPPING_S = 2.0  # for an answer once the process is told to stop
# A peer that vanished without a word: the kernel gives up what it does not acknowledge.
TCP_OPTIONS = {"TCP_USER_TIMEOUT": 15_000, "TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 2}


class RabbitBroker:
    """The Broker of `amqp://USER:PASSWORD@HOST:PORT/VHOST`. Raises BrokerError."""

    def __init__(
        self, url: str, compress_above: int = 4096, *, stop: threading.Event | None = None
    ) -> None:
        logging.getLogger("pika").setLevel(logging.CRITICAL)  # our errors name the cause
        self._parameters = _parameters(url)
        self._compress_above = compress_above
        self._retry = make_retry(stop)
        self._call_patiently(self._check)

    def declare_run(self, run_id: str) -> None:
        self._call_patiently(partial(self._declare, run_id))

    def _declare(self, run_id: str) -> None:
        with self._channel() as channel:
            for exchange in EXCHANGES:
                channel.exchange_declare(exchange, "direct", durable=True)
            for queue in run_queues(run_id):
                _declare_dead(channel, dead_queue(queue))
                channel.queue_bind(dead_queue(queue), DEAD, queue)
                channel.queue_declare(queue, durable=True, arguments=_quorum(queue))
            for queue in run_queues(run_id):  # at once: a message routed to one alone is lost
                channel.queue_bind(queue, TRAJECTORIES, run_id)

    def queues_exist(self, run_id: str) -> bool:
        return self._call_patiently(partial(self._queues_exist, run_id))

    def _queues_exist(self, run_id: str) -> bool:
        with self._channel() as channel:
            try:
                for queue in run_queues(run_id):
                    channel.queue_declare(queue, passive=True)
            except ChannelClosedByBroker as error:
                if error.reply_code != NO_QUEUE:
                    raise
                return False
        return True

    def delete_run(self, run_id: str) -> None:
        with self._channel() as channel:
            for queue in (*_queues(run_id), episodes_queue(run_id)):
                channel.queue_delete(queue)

    def publisher(self) -> Publisher:
        return self._call_patiently(
            partial(RabbitPublisher, self._parameters, self._compress_above)
        )

    def consumer(self, queue: str) -> Consumer:
        return self._call_patiently(partial(RabbitConsumer, self._parameters, queue))

    def subscriber(self, run_id: str) -> Consumer:
        return RabbitSubscriber(self._parameters, run_id)

    def depths(self, run_id: str) -> dict[str, int]:
        with self._channel() as channel:
            return {
                queue: channel.queue_declare(queue, passive=True).method.message_count
                for queue in _queues(run_id)
            }

    def consumers(self, queue: str) -> int:
        """Count the consumers of a queue. Raises BrokerError, also for a missing queue."""
        with self._channel() as channel:
            return int(channel.queue_declare(queue, passive=True).method.consumer_count)

    def dead_letters(self, run_id: str) -> Sequence[DeadLetter]:
        """Return at most the oldest 1,000; unacknowledged messages return to their place."""
        with self._channel() as channel:
            return [
                letter for queue in run_queues(run_id) for letter in _dead_letters(channel, queue)
            ]

    def requeue(self, run_id: str, letter_ids: Collection[str]) -> int:
        """Requeue among the oldest 1,000 of each queue. Letters go once copies are confirmed."""
        with self._channel() as channel:
            channel.confirm_delivery()
            return sum(_requeue(channel, queue, letter_ids) for queue in run_queues(run_id))

    def close(self) -> None:
        """Do nothing: owners close their publishers and consumers."""

    def _call_patiently(self, work: Callable[[], T]) -> T:
        """Run `work`, waiting for the broker. Raises BrokerError."""
        return self._retry.call(partial(self._call_bounded, work))

    def _call_bounded(self, work: Callable[[], T]) -> T:
        """Run `work` on a thread that is abandoned on stop, because pika ignores stop events."""
        if self._retry.stop is None:
            return work()
        try:
            return call_bounded(work, FOREVER, stop=self._retry.stop, stopping_s=STOPPING_S)
        except TimeoutError as error:
            where = address(self._parameters)
            raise BrokerUnavailable(f"RabbitMQ at {where} does not answer: {error}") from error

    def _check(self) -> None:
        with self._channel():
            pass

    @contextmanager
    def _channel(self) -> Iterator[Any]:
        where = address(self._parameters)
        try:
            connection = self._connect()
            try:
                yield connection.channel()
            finally:
                if connection.is_open:
                    connection.close()
        except (NackError, UnroutableError) as error:
            raise BrokerError(
                f"RabbitMQ at {where} rejected a requeued message",
                hint="check that its queue exists",
            ) from error
        except ChannelClosedByBroker as error:
            raise BrokerError(f"RabbitMQ at {where}: {error.reply_text}") from error
        except (AMQPError, OSError) as error:
            raise self._failure(error) from error

    def _connect(self) -> pika.BlockingConnection:
        try:
            return pika.BlockingConnection(self._parameters)
        except ValueError as error:  # pika's, for a connection that the broker resets at once
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> BrokerError:
        """Create the error for a failed connection.

        Pika reports any end of a connection at these stages as a refusal; a real refusal of the
        broker contains the broker's code.
        """
        where = address(self._parameters)
        refused = isinstance(error, AuthenticationError) or REFUSED.search(str(error))
        if refused and isinstance(error, AuthenticationError | ProbableAuthenticationError):
            user = self._parameters.credentials.username
            return BrokerError(
                f"RabbitMQ at {where} refused the login of {user!r}",
                hint="check the user and password in broker.url",
            )
        if refused:
            vhost = self._parameters.virtual_host
            return BrokerError(
                f"RabbitMQ at {where} refused the virtual host {vhost!r}", hint=CHECK_URL
            )
        return BrokerUnavailable(
            f"RabbitMQ at {where} is unreachable: {reason_of(error)}",
            hint=f"start it (`make services`), or {CHECK_URL}",
        )


def _parameters(url: str) -> pika.URLParameters:
    try:
        parameters = pika.URLParameters(url)
    except (ValueError, TypeError):  # whose text may hold a part of the password
        raise BrokerError(
            "broker.url is not an AMQP URL",
            hint=f"{CHECK_URL}; in user and password write @ as %40, / as %2F, : as %3A",
        ) from None
    parameters.heartbeat = HEARTBEAT_S
    parameters.socket_timeout = 10
    parameters.stack_timeout = 20
    parameters.blocked_connection_timeout = 60
    parameters.connection_attempts = 1
    parameters.tcp_options = TCP_OPTIONS
    return parameters


def _quorum(queue: str) -> dict[str, Any]:
    return {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": DEAD,
        "x-dead-letter-routing-key": queue,
        "x-delivery-limit": DELIVERY_LIMIT,
    }


def _declare_dead(channel: Any, name: str) -> None:
    """Declare a dead-letter queue. One of an older version keeps its arguments, without limits."""
    beside = channel.connection.channel()  # a refusal closes it
    try:
        beside.queue_declare(name, durable=True, arguments=DEAD_BOUNDS)
        beside.close()
    except ChannelClosedByBroker as error:
        if error.reply_code != OTHER_ARGUMENTS:
            raise


def _queues(run_id: str) -> list[str]:
    return [name for queue in run_queues(run_id) for name in (queue, dead_queue(queue))]


def _dead_letters(channel: Any, queue: str) -> Iterator[DeadLetter]:
    for _ in range(MAX_DEAD_LETTERS):
        method, properties, body = channel.basic_get(dead_queue(queue))
        if method is None:
            return
        headers = properties.headers or {}
        reason = headers.get("reason") or headers.get("x-first-death-reason", "unknown")
        yield DeadLetter(queue, str(reason), body)


def _requeue(channel: Any, queue: str, letter_ids: Collection[str]) -> int:
    back: set[str] = set()
    persistent = pika.BasicProperties(delivery_mode=2)
    for _ in range(MAX_DEAD_LETTERS):
        method, _properties, body = channel.basic_get(dead_queue(queue))
        if method is None:
            break
        name = letter_id(queue, body)
        if name not in letter_ids:
            continue
        if name not in back:
            channel.basic_publish("", queue, body, persistent, mandatory=True)
            back.add(name)
        channel.basic_ack(method.delivery_tag)
    return len(back)
