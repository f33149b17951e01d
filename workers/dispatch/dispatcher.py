"""The dispatcher: admits groups, sends their episodes, re-issues lost ones.

    consumes  rows: open groups, queued, running and finished episodes, the run's state
    produces  groups and episodes; RunEpisode through Celery
    waits for `dispatch.tick_s`
    ends      with its run; `exhausted` when every item is retired

workers/dispatch/admission.py chooses the next groups. Everything is counted from rows, so a restart
loses nothing. A row lease ensures that only one dispatcher works.
"""

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from sqlalchemy.orm import Session

from agentrl.broker.messages import RunEpisode
from agentrl.core.config.sections.episodes import Dispatch
from agentrl.core.config.sections.tasks import Task
from agentrl.core.errors import BrokerError, ConfigError
from agentrl.core.logging import get_logger
from agentrl.core.retry import Backoff, Retry
from agentrl.core.telemetry import metrics, tracing
from agentrl.core.types import CURRENT, RUN_OVER, GroupState, Reason, RunState, Status
from agentrl.db.models.runs import Run
from agentrl.db.registry.checkpoints import live_policies
from agentrl.db.registry.policy_servers import close_abandoned_servings
from agentrl.db.store import Store
from agentrl.db.transitions import dispatcher_lease, due_episodes, episodes, groups, refusals, runs
from agentrl.db.transitions.trajectories import journal
from agentrl.workers.dispatch.admission import Admission
from agentrl.workers.dispatch.item_stream import ItemStream
from agentrl.workers.policies.pool import newest_per_server

AWAY_S = 1.0  # most time between two ticks while the broker is away
BACKOFF = Backoff(longest_s=AWAY_S, stopping_s=0.0)
AWAIT_S = 30.0  # how long admission waits for the newest checkpoint to be served
EXPIRES = 2.0  # claim timeouts after which a command expires; its row was sent again before
TIDY_S = 60.0  # between two looks for rows that no other process removes
# How long failed groups, except one, keep their slots: about as long as others are played, so that
# an outage in which each attempt fails at once uses up few items, and its end is noticed soon.
FAILED_SLOT_S = 60.0
ADMITTED = 512  # episodes at one tick, so that its transaction stays short
Send = Callable[[RunEpisode], None]

log = get_logger()

STATUS_OF = {Reason.LOST: Status.LOST, Reason.TIMEOUT: Status.TIMEOUT}


@dataclass(frozen=True, slots=True)
class DispatcherConfig:
    """What the dispatcher takes of a configuration. `min_groups`: fewest of a batch."""

    dispatch: Dispatch
    tasks: Mapping[str, Task]
    min_groups: int


class Dispatcher:
    """The only dispatcher of a run. `items`: the item stream of each task."""

    def __init__(
        self,
        config: DispatcherConfig,
        run_id: str,
        store: Store,
        items: Mapping[str, ItemStream],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises ConfigError if a batch can never be filled, or for a wrong curriculum."""
        self._clock = clock
        self._tidied_at = -TIDY_S
        self._sending_s = 0.0  # since the lease was renewed; no standstill for attempts
        self._config = config.dispatch
        self._run_id = run_id
        self._store = store
        self._admission = Admission(config.dispatch, config.tasks, run_id, items)
        self._owner = uuid.uuid4().hex
        self._bound = (self._config.max_staleness + 1) * self._config.groups_per_update
        self._awaited: tuple[int, float] | None = None  # a version to be served, since when
        self._fewest = config.min_groups
        if self._fewest > self._bound:
            raise ConfigError(
                f"trainer.min_groups: {self._fewest} exceeds the most groups open at once",
                hint=f"set it to at most (max_staleness + 1) * groups_per_update = {self._bound}",
            )

    def serve(self, send: Send, stop: threading.Event) -> None:
        """Tick until the run is over or `stop` is set."""
        retry = Retry("tasks broker", BrokerError, stop=stop, backoff=BACKOFF)
        while not stop.is_set():
            try:
                state = retry.call(partial(self.tick, send))
            except BrokerError:  # unclaimed rows are sent again in time
                if not stop.is_set():
                    raise
                break
            if state in RUN_OVER:
                log.info("Run is over", state=state)
                break
            stop.wait(self._config.tick_s)
        self._store.transact(
            lambda session: dispatcher_lease.release(session, self._run_id, self._owner)
        )

    def tick(self, send: Send) -> RunState:
        """Run one round and return the run's state."""
        began = time.perf_counter()
        due = self._store.transact(self._decide)
        self._sending_s = 0.0
        self._send(due, send)
        if self._clock() >= self._tidied_at + TIDY_S:
            self._tidied_at = self._clock()
            self._store.transact(self._tidy)
        metrics.TICK.observe(time.perf_counter() - began)
        return self._store.ask(lambda session: runs.run_state(session, self._run_id))

    def _tidy(self, session: Session) -> None:
        """Delete old refusals, registrations and steps."""
        refusals.prune(session, self._run_id)
        runs.prune_registrations(session, self._run_id)
        journal.prune(session, self._run_id)

    def _send(self, due: Sequence[tuple[str, int]], send: Send) -> None:
        """Send the commands. A slow broker does not keep the lease from being renewed meanwhile.

        Otherwise all the time would look like a standstill, and leases of killed processes be
        extended by it.
        """
        for episode_id, fence in due:
            if self._sending_s > AWAY_S:
                self._store.transact(self._hold_lease)
                self._sending_s = 0.0
            sent, began = time.time(), self._clock()
            try:
                send(RunEpisode(run_id=self._run_id, episode_id=episode_id, fence=fence))
            finally:
                self._sending_s += self._clock() - began
            mark = tracing.attempt_context(self._run_id, episode_id, fence)
            tracing.record_span("send", mark, sent, time.time())
            metrics.COMMANDS.inc()

    def _decide(self, session: Session) -> list[tuple[str, int]]:
        """Recover and admit in one transaction; return what must be sent after the commit."""
        held = self._hold_lease(session)
        run = session.get_one(Run, self._run_id, populate_existing=True)
        if not held or run.state in RUN_OVER:
            return []
        self._recover(session)
        if run.state == RunState.PAUSED:
            return []
        timeout_s = self._config.claim_timeout_s
        again = runs.has_live_worker(session, self._run_id)  # else the queue still has it
        due = due_episodes.due_to_send(
            session, self._run_id, claim_timeout_s=timeout_s, again=again
        )
        new = self._admit(session, run)
        if new is None:
            runs.move_run(session, self._run_id, RunState.EXHAUSTED, "every item is retired")
            return []
        return due + new

    def _hold_lease(self, session: Session) -> bool:
        """Take or extend the lease; False while another dispatcher holds it."""
        busy_s = self._sending_s + max(self._config.tick_s, AWAY_S)
        return dispatcher_lease.acquire(
            session, self._run_id, self._owner, lease_s=self._config.lease_s, busy_s=busy_s
        )

    def _recover(self, session: Session) -> None:
        """Close what killed servers left open; re-issue attempts and episodes that were lost.

        Attempts have lost their worker or their time, episodes their body.
        """
        close_abandoned_servings(session, self._run_id)
        limit = self._config.max_attempts
        for claimed, reason in due_episodes.expired_attempts(session, self._run_id):
            status = STATUS_OF[reason]
            if episodes.retry(session, claimed, reason, max_attempts=limit, detail=status):
                metrics.REISSUES.labels(reason=reason).inc()
                log.warning("Attempt re-issued", episode_id=claimed.episode_id, reason=reason)
        for claimed in due_episodes.bodies_overdue(session, self._run_id):
            if episodes.lose_body(session, claimed, max_attempts=limit):
                metrics.REISSUES.labels(reason=Reason.BODY_LOST).inc()
                log.warning(
                    "Trajectory of a finished episode is missing", episode_id=claimed.episode_id
                )

    def _admit(self, session: Session, run: Run) -> list[tuple[str, int]] | None:
        """Fill the free slots, about ADMITTED episodes at a time; return the episodes to send.

        None: no item is left, and the open groups make no batch.
        """
        taken = groups.open_groups(session, self._run_id)
        failed = groups.count_failed(session, self._run_id, within_s=FAILED_SLOT_S)
        free = self._bound - sum(taken.values()) - max(0, failed - 1)
        if free <= 0 or self._awaits_checkpoint(session, run):
            return []
        most = max(1, ADMITTED // self._config.group_size)
        new = self._admission.next_groups(session, run, min(free, most))
        for group in new:
            metrics.GROUPS_ADMITTED.labels(task=group.task).inc()
        ready = taken.get(GroupState.READY, 0)
        if not new and GroupState.OPEN not in taken and ready < self._fewest:
            return None
        return groups.admit_groups(session, run, new, claim_timeout_s=self._config.claim_timeout_s)

    def _awaits_checkpoint(self, session: Session, run: Run) -> bool:
        """Return whether new episodes would be too stale, until servers load the newest checkpoint.

        A server that cannot load it delays admission for at most AWAIT_S.
        """
        live = [] if self._config.max_staleness else live_policies(session, self._run_id)
        serving = newest_per_server([each for each in live if each.track == CURRENT])
        if all(each.version == run.version for each in serving):
            self._awaited = None
            return False
        if self._awaited is None or self._awaited[0] != run.version:
            self._awaited = run.version, self._clock()
        return self._clock() - self._awaited[1] < AWAIT_S
