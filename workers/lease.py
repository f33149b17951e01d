"""The lease of a worker: the episodes it claims are its own as long as it is extended in time.

consumes  the clock of the database; which attempts wait for an unavailable service
produces  the worker's row, claims, one UPDATE per beat for all its episodes
waits for the next beat; for the database, while it is away
ends      when released, or by itself `lease_s` after its last beat
"""

import os
import socket
import threading
from collections.abc import Callable

from sqlalchemy.orm import Session

from agentrl.core.config.sections.episodes import Worker as WorkerSection
from agentrl.core.errors import StoreUnavailable
from agentrl.core.logging import get_logger
from agentrl.core.processes.process import Instance
from agentrl.core.processes.threads import vital_thread
from agentrl.db.models.processes import Worker
from agentrl.db.store import Store
from agentrl.db.transitions import episodes, runs
from agentrl.db.transitions.episodes import ClaimedEpisode
from agentrl.workers.episode_context import Clock
from agentrl.workers.waiting import Attempt

RELEASE_PATIENCE_S = 1.0  # how long the store is waited for at the end of a process

log = get_logger()


class WorkerLease:
    """The lease of one worker process. A thread extends it on a connection of its own."""

    def __init__(
        self,
        store: Store,
        run_id: str,
        section: WorkerSection,
        clock: Clock,
        waiting: Callable[[], set[Attempt]],
    ) -> None:
        """`clock`: set at every beat. `waiting`: the attempts whose deadline a beat extends."""
        self.worker_id = ""
        self._store = store
        self._run_id = run_id
        self._section = section
        self._clock = clock
        self._waiting = waiting
        self._closed = threading.Event()
        self._beat_store = store.one_thread()
        self._thread = vital_thread("lease", self._beat_until_closed)

    def begin(self, instance: Instance) -> None:
        """Register the worker and start to extend its lease.

        The lease of the dead worker that it replaces ends, so others continue its episodes at once.
        """
        self.worker_id = _worker_id(instance.name)

        def register(session: Session) -> None:
            self._register(session)
            if instance.former:
                runs.end_worker(session, _worker_id(instance.former))

        self._store.transact(register)
        self._clock.set(self._store.clock())
        self._thread.start()

    def claim(self, episode_id: str, fence: int) -> ClaimedEpisode | None:
        """Claim an attempt; None if it is another's. A claim whose answer was lost is ours."""
        attempt = episode_id, fence, self.worker_id
        deadline_s = self._section.attempt_deadline_s
        return self._store.transact(
            lambda session: episodes.claim(session, *attempt, deadline_s=deadline_s),
            done=lambda session: episodes.is_claimed_by(session, *attempt),
        )

    def give_back(self) -> int:
        """Give back all running attempts and the lease in one transaction; return their number."""
        self._closed.set()

        def release(session: Session) -> int:
            released = episodes.release_all(session, self.worker_id)
            runs.end_worker(session, self.worker_id)
            return released

        return self._store.transact(release, patience_s=RELEASE_PATIENCE_S)

    def release(self) -> None:
        """End the lease. If the database is unavailable, it expires by itself."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(self._section.beat_s + 1)
        try:
            self._store.transact(lambda session: runs.end_worker(session, self.worker_id))
        except StoreUnavailable as error:
            log.warning("Lease not released; it expires by itself", error=str(error))
        self._beat_store.close()

    def _beat_until_closed(self) -> None:
        while not self._closed.wait(self._section.beat_s):
            try:
                is_new = self._beat_store.transact(self._beat)
            except StoreUnavailable as error:
                log.warning("Lease not renewed", error=str(error))
                continue
            if is_new:
                log.warning("Worker registered again because the database lost its row")

    def _beat(self, session: Session) -> bool:
        """Extend the lease; return whether the worker had to be registered again.

        A database that lost its newest commits may have lost the worker's row. Claims that it still
        has are valid, so the worker goes on. Raises StoreError if the run is lost, too.
        """
        is_new = False
        now = runs.beat_worker(session, self.worker_id, lease_s=self._section.lease_s)
        if now is not None:  # before the commit, whose duration is no part of the offset
            self._clock.set(now)
        elif not self._closed.is_set():
            runs.require_run(session, self._run_id)
            is_new = self._register(session)
        deadline_s = self._section.attempt_deadline_s
        episodes.postpone(session, self.worker_id, self._waiting(), deadline_s=deadline_s)
        return is_new

    def _register(self, session: Session) -> bool:
        worker = Worker(
            worker_id=self.worker_id,
            run_id=self._run_id,
            host=socket.gethostname(),
            pid=os.getpid(),
        )
        return runs.register_worker(session, worker, lease_s=self._section.lease_s)


def _worker_id(instance: str) -> str:
    return f"worker-{instance}"
