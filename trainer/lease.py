"""The trainer's lease: other processes know that a trainer runs, even during a long update."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from agentrl.core.errors import StoreUnavailable
from agentrl.core.logging import get_logger
from agentrl.core.processes.threads import vital_thread
from agentrl.db.store import Store
from agentrl.db.transitions import runs

BEAT_S = 5.0  # between two extensions
LEASE_S = 20.0
LAST_S = 1.0  # for the database to hear that the trainer has ended

log = get_logger()


@contextmanager
def trainer_lease(
    store: Store, run_id: str, epoch: Callable[[], int], beat_s: float = BEAT_S
) -> Iterator[None]:
    """Extend the lease on its own thread and connection. `epoch`: 0 until one has started."""
    ended = threading.Event()
    with closing(store.one_thread()) as own:

        def beat() -> None:
            while not ended.wait(beat_s):
                _extend(own, run_id, epoch())

        thread = vital_thread("trainer-lease", beat)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(LAST_S)
            _drop(own, run_id, epoch())


def _extend(store: Store, run_id: str, epoch: int) -> None:
    try:
        store.transact(
            lambda session: runs.extend_trainer_lease(session, run_id, epoch, lease_s=LEASE_S)
        )
    except StoreUnavailable as error:  # it is told to stop: the lease runs out by itself
        log.warning("Trainer lease not renewed", error=str(error))


def _drop(store: Store, run_id: str, epoch: int) -> None:
    try:
        store.transact(
            lambda session: runs.release_trainer_lease(session, run_id, epoch), patience_s=LAST_S
        )
    except StoreUnavailable as error:
        log.warning("Trainer lease not released", error=str(error))
