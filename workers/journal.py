"""The journal of a worker: each sampled step is stored before its action takes effect.

    EpisodeLoop ─ turn ─▶ AttemptJournal ─▶ GroupCommit ─ one transaction for all attempts ─▶ rows
    EpisodeLoop ◀─ recorded steps ─ AttemptJournal ◀─ Takeover ◀─ rows of a former attempt

docs/adr/0025 has the rules: what is durable when, and what is repeated after a death.
"""

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agentrl.core.errors import AgentRLError, MessageError, StoreError, StoreUnavailable
from agentrl.core.journal import Record, SampledStep, UnjudgedEpisode, decode_record, encode_record
from agentrl.core.logging import get_logger
from agentrl.core.processes.threads import vital_thread
from agentrl.core.telemetry import metrics
from agentrl.core.types import ABORT
from agentrl.db.store import Store
from agentrl.db.transitions.episodes import ClaimedEpisode
from agentrl.db.transitions.trajectories import journal
from agentrl.db.transitions.trajectories.journal import FormerStep, NewStep
from agentrl.envs.contract import Environment, Recovery, is_attachable

COMMIT_S = 0.1  # least time between the beginnings of two transactions
LOOK_S = 1.0  # between two looks whether the journal still lives

Attempt = tuple[str, int]  # episode_id, fence
StoreStep = Callable[[NewStep], None]

log = get_logger()


class ClaimLapsed(AgentRLError):
    """The attempt no longer owns its episode: another one continues it, or it has ended."""


@dataclass(slots=True, eq=False)
class _Batch:
    """Steps of one transaction, and what became of it once `done` is set."""

    steps: list[NewStep] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)
    refused: set[Attempt] = field(default_factory=set)
    error: StoreError | None = None


class GroupCommit:
    """Stores the steps of all attempts of a process in common transactions.

    A step that comes after a pause is stored at once, those of the next COMMIT_S together.
    """

    def __init__(self, store: Store, *, commit_s: float = COMMIT_S) -> None:
        """`store`: gets a connection of its own."""
        self._store = store.one_thread(autocommit=True)
        self._commit_s = commit_s
        self._lock = threading.Lock()
        self._batch = _Batch()
        self._filled = threading.Event()
        self._closed = threading.Event()
        self._thread = vital_thread("journal", self._commit_batches)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Store what is left and end."""
        self._closed.set()
        self._filled.set()
        if self._thread.is_alive():
            self._thread.join()
        self._store.close()

    def store(self, step: NewStep) -> None:
        """Return once the step is stored; wait while the database is away.

        Raises ClaimLapsed, and StoreUnavailable if the process is told to stop meanwhile.
        """
        with self._lock:
            batch = self._batch
            batch.steps.append(step)
        self._filled.set()
        while not batch.done.wait(LOOK_S):
            if not self._thread.is_alive():
                raise StoreUnavailable("the journal is closed")
        if batch.error is not None:
            raise batch.error
        require_owned(step, batch.refused)

    def _commit_batches(self) -> None:
        began = -math.inf
        while True:
            self._filled.wait()
            self._closed.wait(max(0.0, began + self._commit_s - time.monotonic()))
            began = time.monotonic()
            with self._lock:
                batch, self._batch = self._batch, _Batch()
                self._filled.clear()
            if batch.steps:
                self._commit(batch)
            elif self._closed.is_set():
                return
            if self._closed.is_set():
                self._filled.set()

    def _commit(self, batch: _Batch) -> None:
        try:
            batch.refused = self._store.transact(
                lambda session: journal.append_steps(session, batch.steps)
            )
        except StoreError as error:
            batch.error = error
        except BaseException as error:
            batch.error = StoreUnavailable(f"the journal failed: {error}")
            raise
        finally:
            batch.done.set()


def require_owned(step: NewStep, refused: set[Attempt]) -> None:
    """Raise ClaimLapsed if the step is of a refused attempt."""
    if (step.episode_id, step.fence) in refused:
        raise ClaimLapsed("another attempt has taken the episode over, or it has ended")


class AttemptJournal:
    """The steps of one attempt: first those recorded by former attempts, then its own.

    `unjudged`: the episode, if a former attempt has played it to its end. None else.
    """

    def __init__(
        self,
        store: StoreStep,
        run_id: str,
        claimed: ClaimedEpisode,
        recorded: Sequence[SampledStep] = (),
        fences: tuple[int | None, int | None] = (None, None),
    ) -> None:
        """`fences`: of the attempts that stored the first and the last recorded step."""
        self.unjudged: UnjudgedEpisode | None = None
        self._store = store
        self._run_id = run_id
        self._claimed = claimed
        self._recorded = recorded
        first, self._parent_fence = fences
        self._session = f"{run_id}/{claimed.episode_id}/{first or claimed.fence}"
        self._number = 0  # of the next step
        self.continuation = ""  # what became of the records: attached, replayed or unjudged

    def continue_at_judge(self, episode: UnjudgedEpisode) -> None:
        """Go on with an episode that a former attempt has played to its end."""
        log.info("Episode continues at its judge")
        self.unjudged, self.continuation = episode, "unjudged"

    def attach(self, environment: Environment, recovery: Recovery) -> None:
        """Go on with the session of the former attempt where it lives, else have it replayed.

        Raises NotContinuable if it lives no more and cannot be replayed, or if it is ahead of what
        was recorded: the former attempt acted while this one was claimed.
        """
        applied = 0
        if is_attachable(environment):
            applied = environment.attach(self._session, self._claimed.fence)
        ended = [step.step.finish_reason != ABORT for step in self._recorded]
        if applied > sum(ended):
            raise NotContinuable("ahead")
        if recovery == "restart_only" and self._recorded and applied < sum(ended[:-1]):
            raise NotContinuable(recovery)
        if self._recorded:
            self.continuation = "attached" if applied else "replayed"

    def leave(self, environment: Environment) -> None:
        """Leave the session to the next attempt, if it can outlive this process."""
        if is_attachable(environment):
            environment.leave()

    @property
    def remaining(self) -> int:
        """Return how many recorded steps are not repeated yet."""
        return max(0, len(self._recorded) - self._number)

    def next_recorded(self) -> SampledStep | None:
        """Return the next recorded step, once; None: the next one must be sampled."""
        if not self.remaining:
            return None
        self._number += 1
        return self._recorded[self._number - 1]

    def append(self, record: Record) -> None:
        """Store a sampled step, or an episode that only waits for its judge; return when it is.

        Raises ClaimLapsed, StoreUnavailable.
        """
        claimed = self._claimed
        row = NewStep(
            episode_id=claimed.episode_id,
            fence=claimed.fence,
            number=self._number,
            parent_fence=self._parent_fence,
            attempt=claimed.attempt,
            run_id=self._run_id,
            body=encode_record(record),
            started_at=claimed.started_at,
        )
        began = time.perf_counter()
        self._store(row)
        metrics.JOURNAL.observe(time.perf_counter() - began)
        self._number += 1
        self._parent_fence = claimed.fence


class Takeover:
    """Opens the journal of each attempt, with what a former attempt recorded."""

    def __init__(self, store: Store, run_id: str, append: StoreStep, *, steps: bool = True) -> None:
        """`steps`: whether attempts continue from recorded steps, not only unjudged episodes."""
        self._steps = steps
        self._store = store
        self._run_id = run_id
        self._append = append

    def open(self, claimed: ClaimedEpisode) -> AttemptJournal:
        if claimed.fence == 1:
            return AttemptJournal(self._append, self._run_id, claimed)
        former = self._store.ask(
            lambda session: journal.former_steps(session, claimed.episode_id, claimed.fence)
        )
        if former == []:
            return AttemptJournal(self._append, self._run_id, claimed)
        try:
            return self._continue(claimed, former)
        except NotContinuable as error:
            return self.start_anew(claimed, str(error))
        except MessageError as error:
            return self.start_anew(claimed, "unreadable", str(error))

    def _continue(
        self, claimed: ClaimedEpisode, former: Sequence[FormerStep] | None
    ) -> AttemptJournal:
        """Return the journal with what was found. Raises NotContinuable, MessageError."""
        records = [decode_record(each.body) for each in former or ()]
        if records and isinstance(records[-1], UnjudgedEpisode):
            journal = AttemptJournal(self._append, self._run_id, claimed)
            journal.continue_at_judge(records[-1])
            return journal
        if not self._steps:
            return AttemptJournal(self._append, self._run_id, claimed)
        former = _require_continuable(former, claimed)
        steps = [record for record in records if isinstance(record, SampledStep)]
        if len(steps) != len(records):
            raise MessageError("an episode that ended is followed by another step")
        log.info("Episode continues from its recorded steps", steps=len(steps))
        fences = former[0].fence, former[-1].fence
        return AttemptJournal(self._append, self._run_id, claimed, steps, fences)

    def start_anew(self, claimed: ClaimedEpisode, status: str, detail: str = "") -> AttemptJournal:
        """Delete what former attempts recorded; return an empty journal. `status`: why."""
        log.warning("Episode starts anew despite its recorded steps", reason=status, detail=detail)
        metrics.TAKEOVERS.labels(task=claimed.task, status=status).inc()
        attempt = claimed.episode_id, claimed.fence, claimed.started_at
        self._store.transact(lambda session: journal.forget_former(session, *attempt, why=status))
        return AttemptJournal(self._append, self._run_id, claimed)


class NotContinuable(Exception):
    """Why an attempt starts anew, as one word."""


def _require_continuable(
    former: Sequence[FormerStep] | None, claimed: ClaimedEpisode
) -> Sequence[FormerStep]:
    """Raise NotContinuable unless the attempt may repeat the steps.

    If an attempt was lost before it added a step to those it found, the last action may be what
    ends its worker, so the next attempt does not repeat it.
    """
    if former is None:
        raise NotContinuable("incomplete")
    if claimed.attempt - former[-1].attempt > 1:
        raise NotContinuable("no_progress")
    return former
