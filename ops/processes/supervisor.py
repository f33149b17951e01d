"""The supervisor process: starts the configured processes and polls them with `watch` of
ops/supervisor/watch.py.
"""

import sys
import threading
from functools import partial
from pathlib import Path

from agentrl.core import config_loading, logging
from agentrl.core.config.config import Config
from agentrl.core.errors import BrokerUnavailable
from agentrl.core.telemetry import exposition
from agentrl.core.types import RUN_OVER
from agentrl.db.store import open_store
from agentrl.ops.runs.begin import begin, clear_queues
from agentrl.ops.supervisor.children import children
from agentrl.ops.supervisor.log_troubles import LogWatcher
from agentrl.ops.supervisor.screen import ProgressPrinter, how_it_ended, newest
from agentrl.ops.supervisor.supervisor import Settings, Supervisor
from agentrl.ops.supervisor.watch import WatchOutput, run_progress, serves, watch
from agentrl.ops.tables import lasting_console, print_line

MIB = 1024**2


def run(config: Config, stop: threading.Event, path: Path) -> None:
    """Keep the configured processes alive until the run is over or `stop`."""
    run_id = begin(config)
    logging.bind_process(run_id=run_id)
    store = open_store(config.store_url())
    say = partial(print_line, lasting_console(sys.stderr))
    settings = Settings(
        progress_of=partial(run_progress, store, run_id),
        serves=partial(serves, store, run_id, store.clock()),
        log_bytes=config.logs.max_mib * MIB,
    )
    supervisor = Supervisor(config.home(), config.run.name, children(config, path), say, settings)
    try:
        with exposition.serve_metrics(config.metrics, config.run.name, "supervisor"):
            logs_seen = LogWatcher(config.home() / "logs")
            supervisor.start()
            say(f"run {run_id}: {len(supervisor.pids())} processes, logs in {config.home()}/logs")
            resume = config_loading.command("run resume", path)
            output = WatchOutput(say, ProgressPrinter(say, store, run_id, resume), logs_seen)
            last = watch(supervisor, store, run_id, stop, output)
            supervisor.stop()
            last = newest(store, run_id, last)
            end = how_it_ended(store, run_id, last)
    finally:
        supervisor.stop()
        store.close()
    again = "" if last.state in RUN_OVER else f"; resume with: {config_loading.command('up', path)}"
    say(f"run {config.run.name}: {end}{again}")
    if last.state not in RUN_OVER:
        return
    try:
        if kept := clear_queues(config, run_id, stop):
            say(f"{kept} messages are left in the queues of the run")
    except BrokerUnavailable as error:  # told to stop meanwhile
        say(f"the queues of the run are left: {error}")
