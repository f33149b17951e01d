"""The Celery application: one thin task, its queue and its sender. It carries only RunEpisode.

    dispatcher ─send─▶ worker.episodes.<run> ─▶ a thread of a worker ─▶ EpisodeWorker.run(command)

Deliveries are acknowledged early: leases in the database recover the episodes of a dead worker.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from celery import Celery, bootsteps
from celery.signals import worker_shutting_down
from kombu.entity import Queue
from kombu.exceptions import OperationalError

from agentrl.broker.messages import RunEpisode
from agentrl.broker.queue_names import episodes_queue
from agentrl.core.errors import BrokerUnavailable

TASK = "agentrl.run_episode"
EMBEDDED = "agentrl.workers.queue.celery_files:Transport"
# Seconds, for each episode at once, for which a thread waits for Python's lock before it asks for
# it. With Python's 5 ms a thousand threads that could all go on spend their time on asking; with
# much more than that for a few, the lease's thread waits behind those that compute (docs/adr/0019).
SWITCH_S = 1e-4
PATIENCE = {"max_retries": 1, "interval_start": 0.1, "interval_step": 0.3, "interval_max": 1.0}
CONNECT_S = 5.0  # to open a connection
SEND_S = 5.0  # for one command to be taken, and as long again to be confirmed
AMQP = {"confirm_publish": True, "read_timeout": 2 * SEND_S, "write_timeout": 2 * SEND_S}
HEARTBEAT_S = 30.0  # a worker's connection over which nothing came for twice as long is opened anew


def celery_app(url: str, run_id: str) -> Celery:
    """Create the Celery application of a run, not yet connected. `url`: of the tasks' broker."""
    embedded = url.startswith("filesystem://")
    name, arguments = episodes_queue(run_id), {} if embedded else {"x-queue-type": "quorum"}
    queue = Queue(name, queue_arguments=arguments)  # type: ignore[no-untyped-call]
    app = Celery("agentrl", broker="filesystem://" if embedded else url, set_as_current=False)
    app.conf.update(
        accept_content=["json"],
        broker_channel_error_retry=True,  # else an error of a channel ends the worker's consumer
        broker_connection_max_retries=None,  # a broker that is away is waited for
        broker_connection_retry_on_startup=True,
        broker_connection_timeout=CONNECT_S,
        broker_heartbeat=HEARTBEAT_S,
        broker_transport=EMBEDDED if embedded else None,
        broker_transport_options=_folders(url) if embedded else AMQP,
        task_acks_late=False,
        task_create_missing_queues=True,
        task_default_queue=name,
        task_ignore_result=True,
        task_queues=[queue],
        task_serializer="json",
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        worker_prefetch_multiplier=1,
        worker_redirect_stdouts=False,
        worker_send_task_events=False,
    )
    return app


class CommandSender:
    """Sends the dispatcher's commands over its own connection. For one thread."""

    def __init__(self, app: Celery, *, expires_s: float | None = None) -> None:
        """`expires_s`: time after which the broker drops an unclaimed command."""
        self._app = app
        self._expires_s = expires_s
        self._connection: Any = None
        self._producer: Any = None

    def __call__(self, command: RunEpisode) -> None:
        """Send a command. Raises BrokerUnavailable within seconds; it is sent again later."""
        producer = self._open_producer()
        try:
            self._app.send_task(
                TASK,
                kwargs=msgspec.to_builtins(command),
                producer=producer,
                retry_policy=PATIENCE,
                timeout=SEND_S,
                confirm_timeout=SEND_S,
                expiration=self._expires_s,
            )
        except _errors_of(self._connection) as error:
            self.close()
            raise _unavailable(error) from error

    def _open_producer(self) -> Any:
        if self._producer is None:
            self._connection = self._app.connection_for_write()
            self._producer = self._app.amqp.Producer(self._connection, auto_declare=False)
        return self._producer

    def close(self) -> None:
        """Close without waiting for the broker, which may not answer."""
        if self._connection is not None:
            self._connection.collect()
        self._connection = self._producer = None


def run_celery(
    app: Celery, run: Callable[[RunEpisode], None], stop: threading.Event, concurrency: int
) -> None:
    """Consume until SIGTERM, which sets `stop` at once; running episodes must end then.

    So does SIGHUP, unless it is ignored (nohup). `stop` may be set before Celery has installed its
    signal handlers. Raises RuntimeError if Celery gives up by itself; the supervisor restarts the
    process.
    """
    hangup = signal.getsignal(signal.SIGHUP)

    @app.task(name=TASK)  # type: ignore[untyped-decorator]
    def run_episode(**fields: Any) -> None:
        run(msgspec.convert(fields, RunEpisode))

    def stop_episodes(**_signal: Any) -> None:
        stop.set()

    class SignalStep(bootsteps.StartStopStep):  # type: ignore[misc]
        """Runs once Celery has installed its handlers, whose SIGHUP starts the program again."""

        def start(self, _worker: object) -> None:
            stops = signal.getsignal(signal.SIGTERM)
            signal.signal(signal.SIGHUP, hangup if hangup == signal.SIG_IGN else stops)
            if stop.is_set():
                os.kill(os.getpid(), signal.SIGTERM)

    worker_shutting_down.connect(stop_episodes, weak=False)
    app.steps["worker"].add(SignalStep)
    worker = app.Worker(
        pool="threads",
        concurrency=concurrency,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        loglevel="WARNING",
        quiet=True,
    )
    if stop.is_set():
        return
    before = sys.getswitchinterval()
    sys.setswitchinterval(max(before, SWITCH_S * concurrency))
    try:
        worker.start()
    finally:
        sys.setswitchinterval(before)
    if not stop.is_set():
        raise RuntimeError("Celery's consumer ended by itself")


def purge_queue(app: Celery, run_id: str) -> None:
    """Delete the run's queue with its messages. Raises BrokerUnavailable."""
    with app.connection_for_write() as connection:
        try:
            connection.default_channel.queue_delete(episodes_queue(run_id))
        except _errors_of(connection) as error:
            connection.collect()  # without waiting for the broker
            raise _unavailable(error) from error


def _errors_of(connection: Any) -> tuple[type[Exception], ...]:
    """Return all errors of a broker. Kombu converts only those after which it would try again."""
    return (*connection.connection_errors, *connection.channel_errors, OperationalError, OSError)


def _unavailable(error: Exception) -> BrokerUnavailable:
    return BrokerUnavailable(
        f"Celery broker: {error}", hint="check that it runs and has free disk space"
    )


def _folders(url: str) -> dict[str, Any]:
    """Return the folders of the filesystem transport; create missing ones."""
    root = Path(url.removeprefix("filesystem://"))
    for name in ("messages", "control"):
        (root / name).mkdir(parents=True, exist_ok=True)
    return {
        "data_folder_in": str(root / "messages"),
        "data_folder_out": str(root / "messages"),
        "control_folder": str(root / "control"),
        "polling_interval": 0.05,
    }
