"""Gauges of the whole run for Prometheus: read once by the dispatcher, on a separate thread.

consumes  rows of what is open, depths of the run's queues
produces  gauges
waits for `metrics.look_s`
ends      with its dispatcher
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from agentrl.broker.api import Broker
from agentrl.core.errors import AgentRLError
from agentrl.core.logging import get_logger
from agentrl.core.telemetry import metrics
from agentrl.core.telemetry.metrics import Gauge
from agentrl.db.queries import run_gauges
from agentrl.db.queries.run_gauges import RunGauges
from agentrl.db.store import Store

log = get_logger()

OF_ROWS = (
    metrics.VERSION,
    metrics.LONGEST_WAIT,
    metrics.OPEN_GROUPS,
    metrics.OPEN_EPISODES,
    metrics.LEASES,
    metrics.STALENESS,
    metrics.SUCCESS,
    metrics.ALARMS,
)


@contextmanager
def export_run_metrics(store: Store, broker: Broker, run_id: str, look_s: float) -> Iterator[None]:
    """Update the gauges inside this context; unreadable values are not exported."""
    ended = threading.Event()

    def watch() -> None:
        while True:
            update_gauges(store, broker, run_id)
            if ended.wait(look_s):
                return

    thread = threading.Thread(target=watch, name="levels", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()


def update_gauges(store: Store, broker: Broker, run_id: str) -> None:
    """Set every gauge once."""
    _update_series(
        lambda: _rows(store.ask(lambda s: run_gauges.run_gauges(s, run_id), patience_s=0.0)),
        OF_ROWS,
    )
    _update_series(lambda: _queues(broker.depths(run_id), run_id), (metrics.QUEUED_MESSAGES,))


def _update_series(tell: Callable[[], None], gauges: tuple[Gauge, ...]) -> None:
    try:
        tell()
    except AgentRLError as error:
        for gauge in gauges:
            gauge.clear()
        log.info("Run gauges not read", error=str(error))


def _rows(found: RunGauges) -> None:
    metrics.VERSION.set(found.version)
    metrics.LONGEST_WAIT.set(found.wait_s)
    _set(metrics.OPEN_GROUPS, "state", found.groups)
    _set(metrics.OPEN_EPISODES, "state", found.episodes)
    _set(metrics.STALENESS, "kind", found.staleness)
    _set(metrics.SUCCESS, "task", found.success)
    _set(metrics.ALARMS, "name", found.alarms)
    metrics.LEASES.clear()
    for (kind, state), number in found.leases.items():
        metrics.LEASES.set(number, kind=kind, state=state)


def _queues(depths: Mapping[str, int], run_id: str) -> None:
    """Return queue names without the run, which is a label."""
    _set(
        metrics.QUEUED_MESSAGES,
        "queue",
        {queue.replace(f".{run_id}", ""): number for queue, number in depths.items()},
    )


def _set(gauge: Gauge, label: str, values: Mapping[str, float]) -> None:
    gauge.clear()
    for name, value in values.items():
        gauge.set(value, **{label: name})
