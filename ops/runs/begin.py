"""Begins a run: its row, its first checkpoint, its queues. Can be repeated safely."""

import fcntl
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from agentrl import broker
from agentrl.broker.api import Broker, make_retry
from agentrl.broker.queue_names import trainer_queue
from agentrl.checkpoints import checkpoint_store
from agentrl.checkpoints.checkpoint_store import CheckpointStore, TransferLimits, WeightsAway
from agentrl.core import config_loading, disk_errors
from agentrl.core.config.config import Config
from agentrl.core.errors import CheckpointError, ConfigError, StoreError
from agentrl.core.logging import bind_process, get_logger
from agentrl.core.retry import FOREVER
from agentrl.core.types import RUN_OVER, RunState
from agentrl.db.admin import migrate
from agentrl.db.admin.readonly import refuse_absent
from agentrl.db.models.runs import Run
from agentrl.db.store import Store, now, open_store
from agentrl.db.transitions import lifecycle, runs
from agentrl.ops.configuration import configs
from agentrl.ops.models import hub
from agentrl.ops.runs import relocation
from agentrl.ops.runs.first_checkpoint import publish_first_checkpoint
from agentrl.workers.queue.celery_app import celery_app, purge_queue

LOOK_S = 0.05  # between two tries to be the one who begins the run

log = get_logger()


class RunOver(StoreError):
    """The run is over, so there is nothing left to do."""

    def __init__(self, run: Run, continuation: str) -> None:
        super().__init__(
            f"run {run.name} is over ({run.state}: {run.reason})",
            hint=f"set another run.name, or {continuation}",
        )
        self.run_id = run.run_id


@dataclass(frozen=True, slots=True)
class OpenRun:
    """The connections that every process of a run holds."""

    run_id: str
    store: Store
    broker: Broker

    def is_over(self) -> bool:
        return self.store.ask(lambda session: runs.run_state(session, self.run_id)) in RUN_OVER


@contextmanager
def open_run(config: Config, stop: threading.Event | None = None) -> Iterator[OpenRun]:
    """Open store and broker of an existing run. Raises StoreError, BrokerError.

    A SQLite file that does not exist is an error; none is created.

    `stop`: set it to end waiting for an unavailable service, here and during later use.
    """
    refuse_absent(config.store_url())
    with closing(open_store(config.store_url(), threads=16, stop=stop)) as store:
        migrate.require_current(store)
        run_id = store.ask(lambda session: runs.require_run(session, config.run.name).run_id)
        bind_process(run_id=run_id)
        least = config.broker.compress_above
        with closing(broker.connect(config.broker_url(), compress_above=least, stop=stop)) as link:
            yield OpenRun(run_id, store, link)


def begin(config: Config, *, paused: str = "", stop: threading.Event | None = None) -> str:
    """Create the run with schema, first checkpoint and queues, or find it; return its id.

    `paused`: why a new run begins paused; empty: it is not paused. `stop`: wait for an unavailable
    service or disk until it is set; None: raise instead.

    Raises ConfigError, ItemError, BrokerError, StoreError before anything is written, RunOver, and
    WeightsAway if the checkpoint store or disk is unavailable.
    """
    config = hub.resolve_model(config)
    configs.check(config)
    for url in (config.store_url, config.broker_url):
        url()  # a variable that is not set is told of before the folder is made
    checkpoints_retry = checkpoint_store.make_patience(stop)
    if config.run.checkpoints:
        checkpoints_retry.call(partial(checkpoint_store.check, config.run.checkpoints))
    make_home(config)
    with closing(broker.connect(config.broker_url(), stop=stop)) as link:
        with closing(open_store(config.store_url(), stop=stop)) as store:
            migrate.ensure(store)
            run_id = _find_or_make_run(store, config, paused)
            checkpoints_retry.call(partial(_settle, store, config, run_id, stop))
        link.declare_run(run_id)
    return run_id


def make_home(config: Config) -> Path:
    """Create the folder of the run if missing. Raises ConfigError."""
    home = config.home()
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"run.home: {home} cannot be created: {error.strerror}",
            hint="set run.home to a folder that you may write to",
        ) from error
    return home


def _settle(store: Store, config: Config, run_id: str, stop: threading.Event | None) -> None:
    """Ensure the first checkpoint, and update the rows if the run's folder was moved.

    Raises CheckpointError.
    """
    home = config.home()
    try:
        with _lock_home(home, stop):
            place = open_checkpoint_store(config, run_id, stop)
            publish_first_checkpoint(store, place, config.model, run_id)
            if former := relocation.settle(store, run_id, home):
                log.warning("The run was moved", former=former, home=str(home))
    except OSError as error:
        kind = WeightsAway if disk_errors.is_transient(error.errno) else CheckpointError
        raise kind(
            f"run.home: {home}: {error.strerror or error}",
            hint="check that its disk is mounted, has free space and is writable",
        ) from error


@contextmanager
def _lock_home(home: Path, stop: threading.Event | None) -> Iterator[None]:
    """Lock the run's folder for one process; the lock ends with the process."""
    stop_event = stop or threading.Event()
    with (home / "begin.lock").open("w") as file:
        while not _lock(file):
            if stop_event.wait(LOOK_S):
                raise WeightsAway(f"another process is starting the run in {home}")
        yield


def _lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def require_queues(config: Config, run_id: str, stop: threading.Event | None = None) -> bool:
    """Return whether the run's queues exist; those of a finished run may have been deleted."""
    with closing(broker.connect(config.broker_url(), stop=stop)) as link:
        return link.queues_exist(run_id)


def clear_queues(config: Config, run_id: str, stop: threading.Event | None = None) -> int:
    """Delete the queues of a finished run, unless they still hold messages.

    Returns the number of these messages: dead letters, or bodies that no recorder stored. `stop`:
    set it to end waiting for an unavailable broker; without it, nothing waits. Raises
    BrokerUnavailable.
    """
    retry = make_retry(stop)
    kept = retry.call(partial(_delete_empty_queues, config, run_id, stop))
    retry.call(lambda: purge_queue(celery_app(config.tasks_url(), run_id), run_id))
    return kept


def _delete_empty_queues(config: Config, run_id: str, stop: threading.Event | None) -> int:
    """Delete the run's own queues if they hold nothing; a part of them may be gone already."""
    with closing(broker.connect(config.broker_url(), stop=stop)) as link:
        kept = 0
        if link.queues_exist(run_id):
            trained = trainer_queue(run_id)  # the recorder has its own copy of every body
            kept = sum(count for queue, count in link.depths(run_id).items() if queue != trained)
        if not kept:
            link.delete_run(run_id)
    return kept


def checkpoints_home(config: Config, run_id: str) -> Path:
    """Return the folder of a run's checkpoints; only of its snapshots if checkpoints have a URL."""
    return config.home() / "checkpoints" / run_id


def open_checkpoint_store(
    config: Config, run_id: str, stop: threading.Event | None = None
) -> CheckpointStore:
    """Return the checkpoint store of a run.

    `stop`: set it to end waiting for an unavailable object store.
    """
    limits = TransferLimits() if stop is None else TransferLimits(upload_s=FOREVER)
    home = checkpoints_home(config, run_id)
    return CheckpointStore(home, config.cache(), config.run.checkpoints, stop, limits)


def _find_or_make_run(store: Store, config: Config, paused: str) -> str:
    """Find or create the run of that name; two processes at the same time get the same row."""

    def find_or_make(session: Session) -> str:
        run = runs.find_run(session, config.run.name)
        if run is None:
            run = _new_run(config, paused)
            session.add(run)
        elif run.state in RUN_OVER:
            raise RunOver(run, lifecycle.describe_continuation(session, run.run_id))
        text = config_loading.dumps(relocation.with_home(config, config.home()))
        changed[:] = config_loading.describe_changes(run.config, text) if run.config else ()
        run.config = text
        return run.run_id

    changed: list[str] = []
    try:
        run_id = store.transact(find_or_make)
    except IntegrityError:
        return store.ask(lambda session: runs.require_run(session, config.run.name).run_id)
    if changed:
        log.info("Configuration changed since the last start", changes=", ".join(changed))
    return run_id


def _new_run(config: Config, paused: str) -> Run:
    return Run(
        run_id=f"{config.run.name}-{uuid.uuid4().hex[:6]}",
        name=config.run.name,
        config="",
        seed=config.run.seed,
        state=RunState.PAUSED if paused else RunState.RUNNING,
        reason=paused,
        created_at=now(),
    )
