"""End a worker process in time, whatever its episodes wait for."""

import os
import threading
from collections.abc import Callable

from agentrl.core.errors import StoreError
from agentrl.core.logging import get_logger
from agentrl.core.processes.threads import call_bounded
from agentrl.core.telemetry import tracing
from agentrl.db.engine import TIMEOUTS
from agentrl.workers.lease import RELEASE_PATIENCE_S
from agentrl.workers.worker import EpisodeWorker

GRACE_S = TIMEOUTS.stopping_s + 0.5  # between SIGTERM and leaving whatever still runs
FLUSH_S = 0.3  # and a collector of traces

log = get_logger()


def leave_in_time(
    worker: EpisodeWorker,
    stop: threading.Event,
    leave: Callable[[int], object] = os._exit,
    *,
    grace_s: float = GRACE_S,
) -> None:
    """Exit the process after `stop`, whatever its episodes wait for. Runs on its own thread."""
    stop.wait()
    worker.stop.set()
    threading.Event().wait(grace_s)
    try:
        released = call_bounded(worker.lease.give_back, RELEASE_PATIENCE_S)
        log.warning("Exit without waiting for running work", given_back=released)
    except (StoreError, TimeoutError) as error:
        log.warning("Attempts left until their lease expires", error=str(error))
    tracing.flush(FLUSH_S)
    leave(0)
