"""The recorder process: stores the queue of bodies by `record_bodies` of workers/recorder.py."""

import threading

from agentrl.broker.queue_names import recorder_queue
from agentrl.core.config.config import Config
from agentrl.core.types import RUN_OVER
from agentrl.db.transitions import runs
from agentrl.ops.runs.begin import open_run
from agentrl.workers.recorder import record_bodies

DRAIN_S = 3.0  # how long a recorder that stops may still store
LAST_DRAIN_S = 55.0  # the same once the run is over: no later recorder would store the rest


def run(config: Config, stop: threading.Event) -> None:
    """Store bodies until SIGTERM, then the rest of the queue."""
    with open_run(config, stop) as here:
        if not here.is_over():  # a broker that lost its data has no queues
            here.broker.declare_run(here.run_id)
        consumer = here.broker.consumer(recorder_queue(here.run_id))
        record_bodies(here.store, consumer, here.run_id, stop)
        late = threading.Event()
        state = here.store.ask(lambda session: runs.run_state(session, here.run_id), patience_s=1.0)
        timer = threading.Timer(LAST_DRAIN_S if state in RUN_OVER else DRAIN_S, late.set)
        timer.daemon = True
        timer.start()
        record_bodies(here.store, consumer, here.run_id, late, drain=True)
        consumer.close()
