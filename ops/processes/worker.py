"""The worker process: a lease, a policy pool, and Celery's threads, which call `EpisodeWorker.run`
of workers/worker.py.
"""

import os
import threading
from contextlib import ExitStack, closing
from dataclasses import replace

from agentrl.broker.events import EventListener
from agentrl.broker.messages import PoolChanged
from agentrl.broker.run_publisher import RunPublisher
from agentrl.core.config.config import Config
from agentrl.core.processes.process import Instance
from agentrl.db.registry.external_policies import track_of
from agentrl.ops.runs.begin import open_run
from agentrl.ops.tasks.task_sources import task_sources
from agentrl.workers.episode_context import EpisodeWorkerConfig
from agentrl.workers.policies.statistics import PoolConfig
from agentrl.workers.queue.celery_app import celery_app, run_celery
from agentrl.workers.worker import EpisodeWorker
from agentrl.workers.worker_exit import leave_in_time


def run(config: Config, stop: threading.Event) -> None:
    """Run episodes until SIGTERM."""
    with open_run(config, stop) as here, ExitStack() as stack:
        plain = stack.enter_context(closing(here.broker.publisher()))
        publisher = RunPublisher(here.broker, plain, here.is_over)
        own = replace(worker_config(config), instance=Instance.of(os.environ))
        episodes = EpisodeWorker(own, here.run_id, here.store, publisher, task_sources(config))
        waker = EventListener(here.broker, here.run_id, (PoolChanged,), episodes.pool_changed)
        stack.callback(waker.close)
        stack.callback(episodes.close)
        stack.callback(stop.set)
        episodes.start()
        watch = threading.Thread(target=leave_in_time, args=(episodes, stop), daemon=True)
        watch.start()
        app = celery_app(config.tasks_url(), here.run_id)
        run_celery(app, episodes.run, stop, config.worker.concurrency)


def worker_config(config: Config) -> EpisodeWorkerConfig:
    """Return the worker's part of the configuration. Raises ConfigError for different tokens."""
    return EpisodeWorkerConfig(
        worker=config.worker,
        dispatch=config.dispatch,
        pool=pool_config(config),
        model=config.model,
        tasks=config.tasks,
        seed=config.run.seed,
        policy_token_env=config.policy_token_env(),
        judge_models={
            name: config.policy_server(name).external.model for name in config.judge_policies()
        },
    )


def pool_config(config: Config) -> PoolConfig:
    """Return the policy pool's part of the configuration."""
    silent = frozenset(map(track_of, config.silent_policies()))
    return PoolConfig(config.sampling, list(config.tasks), config.dispatch.group_size, silent)
