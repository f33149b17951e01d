"""The processes of a run: each opens what it needs and hands over to its loop.

    role        loop
    dispatcher  workers/dispatcher.py   Dispatcher.serve
    worker      workers/worker.py       EpisodeWorker.run, called by Celery's threads
    recorder    workers/recorder.py     record
    trainer     trainer/loop.py         train
    policy      serving/policy.py       serve_policy
    envs        envs/server.py          serve

Every role runs until its run is over or SIGTERM, and can be killed at any moment.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from broker import weights
from broker.topology import recorder_queue, trainer_queue
from core.config import Config
from core.errors import ConfigError
from core.types import RUN_OVER
from db import registry, runs
from envs import registry as tasks
from envs.contract import TaskSource
from ops.runs import Opened, opened, shelf

if TYPE_CHECKING:
    from trainer.learner import Learner
    from trainer.presets import Settings

DRAIN_S = 3.0  # how long a recorder that stops may still store
LAST_DRAIN_S = 55.0  # the same once the run is over, when nobody would do it later


def sources(config: Config) -> dict[str, TaskSource]:
    """The task sources of the mixture: in this process, or behind the env server."""
    if config.envs.url:
        from envs.client import RemoteSource

        return {
            name: RemoteSource(config.envs, name, task.options)
            for name, task in config.tasks.items()
        }
    return {name: tasks.source(name, task.options) for name, task in config.tasks.items()}


def dispatcher(config: Config, stop: threading.Event) -> None:
    from workers.app import celery_app, sender
    from workers.dispatcher import Dispatcher
    from workers.stream import ItemStream

    with opened(config) as run:
        streams = {
            name: ItemStream(source.items(config.tasks[name].split), config.run.seed)
            for name, source in sources(config).items()
        }
        loop = Dispatcher(config, run.run_id, run.store, streams)
        loop.serve(sender(celery_app(config, run.run_id)), stop)


def worker(config: Config, stop: threading.Event) -> None:
    from broker.messages import PoolChanged
    from broker.wake import Waker
    from workers.app import celery_app, serve
    from workers.worker import EpisodeWorker, leave_in_time

    with opened(config) as run:
        publisher = run.broker.publisher()
        episodes = EpisodeWorker(config, run.run_id, run.store, publisher, sources(config))
        waker = Waker(run.broker, run.run_id, (PoolChanged,), episodes.pool_changed)
        episodes.start()
        watch = threading.Thread(target=leave_in_time, args=(episodes, stop), daemon=True)
        watch.start()
        try:
            app = celery_app(config, run.run_id)
            serve(app, episodes.run, stop, config.worker.concurrency)
        finally:
            stop.set()
            episodes.close()
            waker.close()
            publisher.close()


def recorder(config: Config, stop: threading.Event) -> None:
    from workers.recorder import record

    with opened(config) as run:
        consumer = run.broker.consumer(recorder_queue(run.run_id))
        record(run.store, consumer, run.run_id, stop)
        late = threading.Event()
        state = run.store.ask(lambda session: runs.run_state(session, run.run_id), patience_s=1.0)
        timer = threading.Timer(LAST_DRAIN_S if state in RUN_OVER else DRAIN_S, late.set)
        timer.daemon = True
        timer.start()
        record(run.store, consumer, run.run_id, late, drain=True)
        consumer.close()


def trainer(config: Config, stop: threading.Event) -> None:
    from trainer.inbox import Bounds, Inbox
    from trainer.ledger import Ledger
    from trainer.loop import train
    from trainer.presets import settings

    with opened(config) as run:
        filled = settings(config.trainer)
        learner = _learner(config, run, filled)
        publisher = run.broker.publisher()
        consumer = run.broker.consumer(trainer_queue(run.run_id))
        fewest = config.trainer.min_groups or config.dispatch.groups_per_update
        bounds = Bounds(
            min_groups=fewest,
            max_groups=config.trainer.max_groups or 2 * fewest,
            max_staleness=config.dispatch.max_staleness,
            max_lag=config.dispatch.max_lag,
            abnormal_reward=filled.abnormal_reward,
            max_attempts=config.dispatch.max_attempts,
        )
        inbox = Inbox(run.store, consumer, run.run_id, bounds)
        place = replace(shelf(config, run.run_id), stop=stop)
        ledger = Ledger(config, run.run_id, run.store, publisher, place)
        try:
            train(inbox, learner, ledger, filled, stop)
        finally:
            consumer.close()
            publisher.close()


def _learner(config: Config, run: Opened, filled: "Settings") -> "Learner":
    """The engine of the configuration, holding the run's first checkpoint."""
    from trainer.learner import Hardware
    from trainer.learner_torch import TorchLearner

    with run.store.read() as session:
        first = registry.live_checkpoints(session, run.run_id)[0]
    hardware = Hardware(config.model.device, config.model.dtype, config.trainer.threads)
    return TorchLearner(weights.fetch(first.path, config.cache()), filled, hardware)


def policy(config: Config, stop: threading.Event, name: str = "") -> None:
    from serving.policy import Followed, serve_policy

    servers = {server.name: server for server in config.policy_servers()}
    if name and name not in servers:
        raise ConfigError(f"no [[policy]] is named {name}; known: {', '.join(servers)}")
    server = servers[name] if name else next(iter(servers.values()))
    with opened(config) as run:
        serve_policy(config, server, Followed(run.run_id, run.store, run.broker), stop)


def envs(config: Config, stop: threading.Event) -> None:
    from envs.server import serve

    serve(config, stop)


ROLES: Mapping[str, Callable[[Config, threading.Event], None]] = {
    "dispatcher": dispatcher,
    "worker": worker,
    "recorder": recorder,
    "trainer": trainer,
    "policy": policy,
    "envs": envs,
}
