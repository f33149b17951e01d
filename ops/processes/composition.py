"""The processes of a run: each opens what it needs and hands over to its loop.

    role        loop
    dispatcher  workers/dispatch/dispatcher.py   Dispatcher.serve
    worker      workers/worker.py       EpisodeWorker.run, called by Celery's threads
    recorder    workers/recorder.py     record
    trainer     trainer/loop.py         train
    policy      serving/policy.py       serve_policy
    envs        envs/server/server.py          serve
    evaluator   ops/evaluation/evaluator.py        follow

Every role runs until its run is over or SIGTERM, and can be killed at any moment.
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing

from agentrl.broker.topology import recorder_queue
from agentrl.core.config import Config
from agentrl.core.types import RUN_OVER
from agentrl.db.transitions import runs
from agentrl.envs.sources import sources
from agentrl.ops.runs.begin import opened

DRAIN_S = 3.0  # how long a recorder that stops may still store
LAST_DRAIN_S = 55.0  # the same once the run is over, when nobody would do it later


def dispatcher(config: Config, stop: threading.Event) -> None:
    from agentrl.workers.app import Sender, celery_app
    from agentrl.workers.dispatch.dispatcher import EXPIRES, Dispatcher
    from agentrl.workers.dispatch.item_stream import ItemStream
    from agentrl.workers.dispatch.run_metrics import told

    with opened(config, stop) as run:
        streams = {
            name: ItemStream(source.items(config.tasks[name].split), config.run.seed)
            for name, source in sources(config).items()
        }
        loop = Dispatcher(config, run.run_id, run.store, streams)
        with ExitStack() as stack:
            if config.metrics.port:
                look_s = config.metrics.look_s
                stack.enter_context(told(run.store, run.broker, run.run_id, look_s))
            expires_s = EXPIRES * config.dispatch.claim_timeout_s
            app = celery_app(config, run.run_id)
            loop.serve(stack.enter_context(closing(Sender(app, expires_s=expires_s))), stop)


def worker(config: Config, stop: threading.Event) -> None:
    from agentrl.broker.messages import PoolChanged
    from agentrl.broker.wake import Waker
    from agentrl.workers.app import celery_app, serve
    from agentrl.workers.worker import EpisodeWorker, leave_in_time

    with opened(config, stop) as run, ExitStack() as stack:
        publisher = stack.enter_context(closing(run.broker.publisher()))
        episodes = EpisodeWorker(config, run.run_id, run.store, publisher, sources(config))
        waker = Waker(run.broker, run.run_id, (PoolChanged,), episodes.pool_changed)
        stack.callback(waker.close)
        stack.callback(episodes.close)
        stack.callback(stop.set)
        episodes.start()
        watch = threading.Thread(target=leave_in_time, args=(episodes, stop), daemon=True)
        watch.start()
        serve(celery_app(config, run.run_id), episodes.run, stop, config.worker.concurrency)


def recorder(config: Config, stop: threading.Event) -> None:
    from agentrl.workers.recorder import record

    with opened(config, stop) as run:
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
    from agentrl.ops.processes.trainer import learn

    learn(config, stop)


def policy(config: Config, stop: threading.Event, name: str = "") -> None:
    from agentrl.serving.policy import Followed, serve_policy

    server = config.policy_server(name)
    with opened(config, stop) as run:
        serve_policy(config, server, Followed(run.run_id, run.store, run.broker), stop)


def evaluator(config: Config, stop: threading.Event) -> None:
    from agentrl.ops.evaluation.evaluator import evaluate_run, stand_back

    stand_back(config.eval.nice)
    evaluate_run(config, stop)


def envs(config: Config, stop: threading.Event) -> None:
    from agentrl.envs.server.server import serve

    serve(config, stop)


ROLES: Mapping[str, Callable[[Config, threading.Event], None]] = {
    "dispatcher": dispatcher,
    "worker": worker,
    "recorder": recorder,
    "trainer": trainer,
    "policy": policy,
    "envs": envs,
    "evaluator": evaluator,
}
