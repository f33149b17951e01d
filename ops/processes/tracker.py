"""The tracker process: one thread per tracker runs ops/trackers/exporter.py.

Each thread opens the database itself and only reads it. The process uses no broker.
"""

import os
import sys
import threading
import time

from agentrl.core.config.config import Config
from agentrl.core.errors import ConfigError
from agentrl.core.logging import get_logger
from agentrl.ops.trackers.exporter import TrackerExporter
from agentrl.ops.trackers.factory import make

LEAVE_S = 3.5  # for the last rows and `finish` once told to stop

log = get_logger()


def run(config: Config, stop: threading.Event) -> None:
    """Export until the run is over and exported, or `stop`. Raises ConfigError."""
    if not config.trackers.use:
        raise ConfigError("trackers.use is empty", hint='set it, for example to ["tensorboard"]')
    followers = [TrackerExporter(config, make(name, config), name) for name in config.trackers.use]
    threads = [threading.Thread(target=f.follow, args=(stop,), daemon=True) for f in followers]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) and not stop.wait(0.2):
        pass
    deadline = time.monotonic() + LEAVE_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in threads):  # a tracker that hangs is not waited for
        log.warning("Tracker still busy at exit")
        sys.stderr.flush()
        os._exit(0)
