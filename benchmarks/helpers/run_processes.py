"""Starts the processes of a benchmark's run, stops them, and reports what each used."""

import multiprocessing
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from queue import Empty

from agentrl import broker
from agentrl.core import logging
from agentrl.core.config.config import Config
from agentrl.db.store import Store, open_store
from agentrl.workers.queue import celery_app as celery

ENDED_S = 60.0  # for a process to end once it is told

Used = tuple[str, float, float]  # role, processor seconds, peak MiB


@dataclass(frozen=True)
class Place:
    """What each process of a run is told."""

    config: Config
    run_id: str
    pause_s: float
    stop: Event
    ended: "Queue[Used]"
    before: float = 0.0  # processor seconds of this process's imports

    def report(self, role: str) -> None:
        """What this process used, as its last word."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        self.ended.put((role, time.process_time() - self.before, peak))
        self.ended.close()
        self.ended.join_thread()


@dataclass(frozen=True)
class Played:
    """The processes of a run, and what each used once they have ended."""

    pids: Sequence[int]
    used: list[Used] = field(default_factory=list)

    def cpu_s(self, role: str) -> float:
        """Processor seconds of all processes of a role."""
        return sum(cpu_s for name, cpu_s, _ in self.used if name == role)


Role = Callable[[Place, Store, broker.api.Broker], None]


def told(place: Place, *, kill: bool = False) -> threading.Event:
    """An event of this process that follows the run's; `kill`: Celery ends by its signal."""
    stop = threading.Event()

    def follow() -> None:
        place.stop.wait()
        stop.set()
        if kill:
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, daemon=True).start()
    return stop


def process(role: str, loop: "Role", place: Place) -> None:
    """One process, from its connections to what it used."""
    logging.configure(role, level="ERROR")
    config, place = place.config, replace(place, before=time.process_time())
    with (
        closing(open_store(config.store_url(), threads=16)) as store,
        closing(broker.connect(config.broker.url)) as link,
    ):
        loop(place, store, link)
    place.report(role)


@contextmanager
def playing(
    place: Place, link: broker.api.Broker, roles: Mapping[str, Role], names: Sequence[str]
) -> Iterator[Played]:
    """The run's processes, one for each name; at the end what each used, and no queue is left.

    Raises SystemExit where one did not end by itself: it is killed.
    """
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=process, args=(name, roles[name], place)) for name in names]
    for child in children:
        child.start()
    played = Played([child.pid or 0 for child in children])
    try:
        yield played
    finally:
        place.stop.set()
        with suppress(Empty):
            for _ in children:
                played.used.append(place.ended.get(timeout=ENDED_S))
        for child in children:
            child.join(ENDED_S if len(played.used) == len(children) else 0)
            child.kill()
            child.join()
        celery.purge_queue(celery.celery_app(place.config.tasks_url(), place.run_id), place.run_id)
        link.delete_run(place.run_id)
    if len(played.used) < len(children):
        raise SystemExit(f"{len(children) - len(played.used)} processes did not end")
