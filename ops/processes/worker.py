"""A worker's process: a lease, a pool of policies, and Celery's threads, which call
`EpisodeWorker.run` of workers/worker.py.
"""

import threading
from contextlib import ExitStack, closing

from agentrl.broker.messages import PoolChanged
from agentrl.broker.wake import Waker
from agentrl.core.config import Config
from agentrl.envs.sources import sources
from agentrl.ops.runs.begin import opened
from agentrl.workers.app import celery_app, serve
from agentrl.workers.worker import EpisodeWorker, leave_in_time


def run(config: Config, stop: threading.Event) -> None:
    """Play episodes until SIGTERM."""
    with opened(config, stop) as here, ExitStack() as stack:
        publisher = stack.enter_context(closing(here.broker.publisher()))
        episodes = EpisodeWorker(config, here.run_id, here.store, publisher, sources(config))
        waker = Waker(here.broker, here.run_id, (PoolChanged,), episodes.pool_changed)
        stack.callback(waker.close)
        stack.callback(episodes.close)
        stack.callback(stop.set)
        episodes.start()
        watch = threading.Thread(target=leave_in_time, args=(episodes, stop), daemon=True)
        watch.start()
        serve(celery_app(config, here.run_id), episodes.run, stop, config.worker.concurrency)
