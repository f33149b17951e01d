"""Episodes through the whole path, with policies and environments that answer at once.

    python benchmarks/pipeline.py --store POSTGRES --broker AMQP [--workers 1 2] [--episodes 2000]
        [--concurrency 64] [--pause 0] [--journal off steps] [--rounds 1]

dispatcher → Celery → workers → RabbitMQ → trainer inbox and recorder → Postgres, each a process of
its own, as in a run; the scripted policy server answers over HTTP, an episode takes five turns, and
the inbox's groups are closed at once. One run for each number of workers, timed from the first
claim to the last episode's stored body. Figures: episodes and steps a second, and of one second of
processor time of the workers and of all processes; `at_once`: most episodes running at one look;
`peak_mib`: a worker's memory; `retried`: attempts beyond the first, none where no lease was missed.
`--pause`: seconds that an environment takes for a turn, so that many episodes stand at once.
`--journal`: values of `worker.journal`, one run each in turn, `--rounds` times. `--store` may be a
SQLite file.
"""

import argparse
import json
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

from helpers.instant_run import TURNS, InstantSource, begin
from helpers.run_processes import Place, Role, playing, told
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from agentrl import broker
from agentrl.broker.queue_names import recorder_queue, trainer_queue
from agentrl.core.config.config import Config
from agentrl.core.config.sections.episodes import Dispatch, Sampling
from agentrl.core.config.sections.episodes import Worker as WorkerConfig
from agentrl.core.config.sections.policies import Model, PolicyServer
from agentrl.core.config.sections.run import Broker as BrokerConfig
from agentrl.core.config.sections.run import Run as RunConfig
from agentrl.core.config.sections.run import Store as StoreConfig
from agentrl.core.config.sections.tasks import Task
from agentrl.core.types import EpisodeState, GroupState, Reason
from agentrl.db.admin import migrate
from agentrl.db.models.episodes import Episode, StoredTrajectory
from agentrl.db.store import Store, open_store
from agentrl.db.transitions import groups
from agentrl.ops.configuration.serving import serving_config
from agentrl.ops.processes.dispatcher import dispatcher_config
from agentrl.ops.processes.worker import worker_config
from agentrl.serving.policy_process import FollowedRun, serve_policy
from agentrl.trainer.group_selection import InboxBounds
from agentrl.trainer.inbox import Inbox
from agentrl.workers.dispatch.dispatcher import Dispatcher
from agentrl.workers.dispatch.item_stream import ItemStream
from agentrl.workers.queue import celery_app as celery
from agentrl.workers.recorder import record_bodies
from agentrl.workers.worker import EpisodeWorker
from agentrl.workers.worker_exit import leave_in_time

Journal = Literal["off", "steps"]

SIZE, BATCH = 8, 8
MODEL = str(Path(__file__).resolve().parent.parent / "models" / "tiny")
LOOK_S = 0.25
STALLED_S = 120.0  # without another episode


def dispatcher(place: Place, store: Store, _link: broker.api.Broker) -> None:
    items = InstantSource(0.0).items("train")
    config, streams = dispatcher_config(place.config), {"instant": ItemStream(items, 0)}
    app = celery.celery_app(place.config.tasks_url(), place.run_id)
    Dispatcher(config, place.run_id, store, streams).serve(celery.CommandSender(app), told(place))


def worker(place: Place, store: Store, link: broker.api.Broker) -> None:
    publisher, stop = link.publisher(), told(place, kill=True)
    source: Any = InstantSource(place.pause_s)
    episodes = EpisodeWorker(
        worker_config(place.config), place.run_id, store, publisher, {"instant": source}
    )
    episodes.start()
    leaving(place, episodes, stop)
    app = celery.celery_app(place.config.tasks_url(), place.run_id)
    celery.run_celery(app, episodes.run, stop, place.config.worker.concurrency)
    episodes.close()
    publisher.close()


def leaving(place: Place, episodes: EpisodeWorker, stop: threading.Event) -> None:
    """Episodes that still wait at the end are given back, as by a worker of a run."""

    def leave(code: int) -> None:
        place.report("worker")
        os._exit(code)

    threading.Thread(target=leave_in_time, args=(episodes, stop, leave), daemon=True).start()


def recorder(place: Place, store: Store, link: broker.api.Broker) -> None:
    consumer = link.consumer(recorder_queue(place.run_id))
    record_bodies(store, consumer, place.run_id, told(place))
    consumer.close()


def trainer(place: Place, store: Store, link: broker.api.Broker) -> None:
    """Takes groups from the inbox and closes them: no weights are learned."""
    consumer, stop = link.consumer(trainer_queue(place.run_id)), told(place)
    inbox = Inbox(store, consumer, place.run_id, InboxBounds(1, 64, 4, 64, None, 3))
    while taken := inbox.next_groups(0, 0, stop, lambda: False):
        ids = sorted(group.group_id for group in taken.trained)

        def close(session: Session, ids: list[str] = ids) -> None:
            groups.close_groups(session, ids, GroupState.STALE, Reason.TOO_STALE)

        store.transact(close)
        inbox.forget(taken.trained)
    consumer.close()


def policy(place: Place, store: Store, link: broker.api.Broker) -> None:
    followed = FollowedRun(place.run_id, store, link)
    serve_policy(serving_config(place.config), place.config.policy[0], followed, told(place))


ROLES: Mapping[str, Role] = {
    "dispatcher": dispatcher,
    "worker": worker,
    "recorder": recorder,
    "trainer": trainer,
    "policy": policy,
}


def configured(given: argparse.Namespace, home: str, journal: Journal) -> Config:
    """As many groups open at once as keep every place of every worker busy twice."""
    groups_per_update = max(BATCH, 2 * max(given.workers) * given.concurrency // SIZE // 5)
    worker = WorkerConfig(concurrency=given.concurrency, journal=journal)
    policy = [PolicyServer(name="scripted", engine="scripted")]
    return instant_config(given, home, groups_per_update, worker, policy)


def instant_config(
    given: argparse.Namespace,
    home: str,
    groups_per_update: int,
    worker: WorkerConfig,
    policy: list[PolicyServer],
) -> Config:
    """A run of the instant task on the given store and broker."""
    return Config(
        run=RunConfig(home=home),
        store=StoreConfig(given.store),
        broker=BrokerConfig(given.broker, given.broker),
        tasks={"instant": Task()},
        model=Model(path=MODEL),
        sampling=Sampling(strategy="current", max_step_tokens=16),
        dispatch=Dispatch(groups_per_update=groups_per_update, group_size=SIZE),
        worker=worker,
        policy=policy,
    )


def counts(session: Session, run_id: str) -> tuple[int, int, int]:
    """Episodes whose body is stored; that run; attempts beyond the first."""
    stored = select(func.count()).where(StoredTrajectory.run_id == run_id)
    running = select(func.count()).where(
        Episode.run_id == run_id, Episode.state == EpisodeState.RUNNING
    )
    again = select(func.count()).where(Episode.run_id == run_id, Episode.fence > 1)
    one, two, three = (session.scalar(each) or 0 for each in (stored, running, again))
    return one, two, three


def run(
    given: argparse.Namespace, workers: int, home: Path, journal: Journal = "off"
) -> Mapping[str, float]:
    """Figures of one run with so many workers."""
    context = multiprocessing.get_context("spawn")
    config = configured(given, str(home), journal)
    with (
        closing(open_store(given.store)) as store,
        closing(broker.connect(given.broker)) as link,
    ):
        run_id = begin(store, home)
        link.declare_run(run_id)
        place = Place(config, run_id, given.pause, context.Event(), context.Queue())
        names = ["policy", "recorder", "trainer", *["worker"] * workers, "dispatcher"]
        with playing(place, link, ROLES, names) as played:
            seconds, done, most, again = watch(store, run_id, given.episodes)
    worker_s = played.cpu_s("worker")
    all_s = sum(played.cpu_s(role) for role in ROLES)
    return {
        "workers": workers,
        "episodes_s": done / seconds,
        "steps_s": TURNS * done / seconds,
        "steps_worker_cpu_s": TURNS * done / worker_s,
        "steps_all_cpu_s": TURNS * done / all_s,
        "at_once": most,
        "peak_mib": max(peak for role, _, peak in played.used if role == "worker"),
        "retried": again,
    } | {f"cpu_s_{role}": played.cpu_s(role) for role in ROLES}


def watch(store: Store, run_id: str, episodes: int) -> tuple[float, int, int, int]:
    """Seconds from the first claim to that many stored bodies; how many, most at once, retried."""
    began, most, last, moved = 0.0, 0, -1, time.monotonic()
    while True:
        done, running, again = store.ask(lambda session: counts(session, run_id))
        most = max(most, running)
        if not began and (running or done):
            began = time.monotonic()
        if done >= episodes:
            return time.monotonic() - began, done, most, again
        if done != last:
            last, moved = done, time.monotonic()
        if time.monotonic() - moved > STALLED_S:
            raise SystemExit(f"no episode for {STALLED_S} s: {done} done, {running} run")
        time.sleep(LOOK_S)


def main() -> None:
    """One run after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", required=True)
    parser.add_argument("--broker", required=True)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--journal", nargs="+", choices=get_args(Journal), default=["off"])
    parser.add_argument("--rounds", type=int, default=1)
    given = parser.parse_args()
    with closing(open_store(given.store)) as store:
        migrate.upgrade(store)
    with tempfile.TemporaryDirectory() as home:
        for _, workers, journal in product(range(given.rounds), given.workers, given.journal):
            figures = run(given, workers, Path(home), journal)
            rounded = {name: round(value, 1) for name, value in figures.items()}
            print(json.dumps({"journal": journal, **rounded}), flush=True)


if __name__ == "__main__":
    main()
