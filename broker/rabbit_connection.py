"""Keeps one connection and one channel to RabbitMQ open on one thread.

    thread: connect ─▶ channel ─▶ opened(channel) ─▶ owner calls link.ready() ─▶ I/O until it ends
               ▲                                                                     │
               └───────── back-off ◀── lost() ◀──────────────────────────────────────┘

A pika connection belongs to one thread, so other threads pass work to it with `call`. The thread
answers heartbeats even if its owner computes for a long time. When the connection ends, the thread
opens a new one; it does not repeat calls as core/retry.py does.
"""

import copy
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import pika

from agentrl.core.errors import BrokerUnavailable
from agentrl.core.logging import get_logger
from agentrl.core.processes.threads import vital_thread
from agentrl.core.telemetry import metrics, outages
from agentrl.core.telemetry.outages import REMIND_S

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0  # back-off between connections
STEADY_S = 5.0  # a connection that lasted so long starts the back-off anew
HEARTBEAT_S = 30
START_S = 30.0  # for the first connection to be ready
CLOSE_S = 10.0  # for a connection to end in good order


class ChannelUser(Protocol):
    """The owner of a link. Both methods are called on the link's thread."""

    def on_open(self, channel: Any) -> None:
        """Set up a new channel, then call `link.ready()`."""

    def on_loss(self) -> None:
        """Handle the loss of the connection with its channel and all delivery tags."""


class RabbitConnection:
    """A connection kept by a thread. `generation` counts channels; delivery tags belong to one."""

    def __init__(self, parameters: pika.URLParameters, name: str, owner: ChannelUser) -> None:
        self._parameters = copy.copy(parameters)
        self._parameters.blocked_connection_timeout = None  # an alarm is waited for
        self._owner = owner
        self._name = f"broker {name}"
        self._lock = threading.Lock()  # of _connection; the rest belongs to the thread
        self._connection: Any = None
        self._channel: Any = None
        self._up = threading.Event()
        self._started = threading.Event()  # the first connection was ready, or failed
        self._stopping = threading.Event()
        self._down_since = time.monotonic()
        self._reminded_at = -REMIND_S
        self.generation = 0
        self.why = "not connected yet"
        self.reply_code = 0  # with which the broker closed the last channel
        self.blocked = ""  # why the broker takes no messages for now
        self._blocked_since = 0.0
        self._thread = vital_thread(f"amqp-{name}", self._run)  # else callers wait for ever

    def start(self) -> None:
        """Start and wait for the first channel. Raises BrokerError."""
        self._thread.start()
        self._started.wait(START_S)
        if not self._up.is_set():
            self.close()
            raise self.failure()

    def call(self, work: Callable[[Any], None]) -> None:
        """Run `work(channel)` on the link's thread; skipped without a channel."""
        with self._lock:
            if self._connection is not None:
                self._connection.ioloop.add_callback_threadsafe(lambda: self._work(work))

    def later(self, delay_s: float, work: Callable[[Any], None]) -> None:
        """Run `call` after a delay, from the link's own thread."""
        self._connection.ioloop.call_later(delay_s, lambda: self._work(work))

    def ready(self) -> None:
        if self._started.is_set():
            outages.report_available(self._name, self.down_s())
        else:
            metrics.AWAY.labels(name=self._name).set(0)
        self._reminded_at = -REMIND_S
        self._up.set()
        self._started.set()

    def down_s(self) -> float:
        """Return the seconds since the link was ready; 0: it is ready."""
        return 0.0 if self._up.is_set() else time.monotonic() - self._down_since

    def failure(self) -> BrokerUnavailable:
        where = address(self._parameters)
        if self.blocked:
            return BrokerUnavailable(
                f"RabbitMQ at {where} blocks publishers: {self.blocked}",
                hint="free memory or disk on its host; `rabbitmqctl status` shows the alarm",
            )
        return BrokerUnavailable(
            f"RabbitMQ at {where} does not answer: {self.why}", hint="check that it is running"
        )

    def close(self) -> None:
        """Finish earlier calls, then end the thread."""
        self._stopping.set()
        with self._lock:
            if self._connection is not None:
                self._connection.ioloop.add_callback_threadsafe(self._shut)
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        pause = FIRST_PAUSE_S
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                self._serve()
            except Exception as error:  # whatever a callback raises, others wait for this thread
                self.why = reason_of(error)
                get_logger().exception("Broker connection failed")
            if self._up.is_set():
                self._down_since = time.monotonic()
                self._up.clear()
            if not self._started.is_set():
                self._stopping.set()
                self._started.set()
            self._owner.on_loss()
            if not self._stopping.is_set():
                self._tell()
            lasted_s = time.monotonic() - began
            pause = FIRST_PAUSE_S if lasted_s > STEADY_S else min(2 * pause, LONGEST_PAUSE_S)
            self._stopping.wait(pause)

    def _tell(self) -> None:
        """Log that the connection is lost, repeatedly."""
        if time.monotonic() - self._reminded_at >= REMIND_S:
            self._reminded_at = time.monotonic()
            outages.report_away(self._name, self.down_s(), str(self.failure()))

    def _serve(self) -> None:
        """Run one connection until it ends."""
        self.blocked, self.reply_code = "", 0
        connection = pika.SelectConnection(
            self._parameters,
            on_open_callback=lambda connection: connection.channel(
                on_open_callback=self._on_channel_open
            ),
            on_open_error_callback=self._on_end,
            on_close_callback=self._on_end,
        )
        connection.add_on_connection_blocked_callback(self._block)
        connection.add_on_connection_unblocked_callback(self._unblock)
        with self._lock:
            self._connection = connection
            if self._stopping.is_set():  # `close` found no connection to end
                connection.ioloop.add_callback_threadsafe(self._shut)
        try:
            connection.ioloop.start()
        except pika.exceptions.AMQPError as error:
            self.why = reason_of(error)
        except Exception:
            self._abandon(connection)
            raise
        finally:
            with self._lock:
                self._connection = self._channel = None
                connection.ioloop.close()

    def _abandon(self, connection: Any) -> None:
        """Close the connection after an error, so that other consumers get the messages."""
        self._shut()
        try:
            connection.ioloop.start()
        except Exception as error:  # the first one is what is told
            get_logger().warning("Broker connection not closed", error=str(error))

    def _on_channel_open(self, channel: Any) -> None:
        channel.add_on_close_callback(self._channel_closed)
        self.generation += 1
        self._channel = channel
        self._owner.on_open(channel)

    def _block(self, connection: Any, frame: Any) -> None:
        self.blocked = str(frame.method.reason) or "an alarm"
        self._blocked_since = time.monotonic()
        self._tell_blocked(connection, self._blocked_since)

    def _tell_blocked(self, connection: Any, since: float) -> None:
        """Log that the broker blocks us since then, repeatedly."""
        if connection.is_open and self.blocked and since == self._blocked_since:
            outages.report_away(self._name, time.monotonic() - since, str(self.failure()))
            connection.ioloop.call_later(REMIND_S, partial(self._tell_blocked, connection, since))

    def _unblock(self, _connection: Any, _frame: Any) -> None:
        self.blocked = ""
        outages.report_available(self._name, time.monotonic() - self._blocked_since)

    def _channel_closed(self, channel: Any, reason: BaseException) -> None:
        self.why = reason_of(reason)
        self.reply_code = getattr(reason, "reply_code", 0)
        if channel.connection.is_open:
            channel.connection.close()

    def _on_end(self, connection: Any, reason: BaseException) -> None:
        if connection.is_closed and "Normal shutdown" not in str(reason):
            self.why = reason_of(reason)
        connection.ioloop.stop()

    def _work(self, work: Callable[[Any], None]) -> None:
        if self._channel is not None and self._channel.is_open:
            work(self._channel)

    def _shut(self) -> None:
        connection = self._connection
        connection.ioloop.call_later(CLOSE_S / 2, connection.ioloop.stop)
        if not (connection.is_closing or connection.is_closed):
            connection.close()


def address(parameters: pika.URLParameters) -> str:
    return f"{parameters.host}:{parameters.port}"


def reason_of(error: BaseException) -> str:
    """Return the innermost cause of a pika error in one line."""
    while True:
        nested = getattr(error, "exceptions", None) or error.args
        inner = next((arg for arg in reversed(nested) if isinstance(arg, BaseException)), None)
        if inner is None:
            return " ".join(str(error).split()) or type(error).__name__
        error = inner
