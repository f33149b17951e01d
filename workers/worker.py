"""A worker process: claims episodes, runs them, publishes their bodies, then updates their rows.

consumes  RunEpisode (Celery threads call `run`)
produces  EpisodeFinished, with a confirm; then the row running → finished
beats     one UPDATE for all its episodes, on the database's clock
ends      with SIGTERM: running episodes are given back at their next step, all after GRACE_S
"""

import os
import socket
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from msgspec import structs
from sqlalchemy.orm import Session

from agentrl.broker.api import Publisher
from agentrl.broker.messages import EpisodeFinished, RunEpisode
from agentrl.broker.topology import TRAJECTORIES
from agentrl.core.config.sections import Dispatch, Model, Task
from agentrl.core.config.sections import Worker as WorkerSection
from agentrl.core.errors import AgentRLError, ItemError, StoreUnavailable, in_words
from agentrl.core.journal import UnjudgedEpisode
from agentrl.core.logging import get_logger
from agentrl.core.retry import FOREVER
from agentrl.core.telemetry import metrics, tracing
from agentrl.core.threads import vital_thread
from agentrl.core.trajectory import Trajectory, decode_as_received
from agentrl.db.models import Worker
from agentrl.db.registry.external_policies import live_judge
from agentrl.db.store import Store
from agentrl.db.transitions import episodes, runs
from agentrl.db.transitions.episodes import ClaimedEpisode, EpisodeResult
from agentrl.envs.contract import Item, TaskSource, recovery_of
from agentrl.envs.process_rewards import with_process_rewards
from agentrl.workers.attempt_errors import is_no_fault_of_the_attempt, reason_of
from agentrl.workers.attempt_telemetry import observe_attempt
from agentrl.workers.episode import (
    EpisodeLimits,
    EpisodeLoop,
    EpisodeStopped,
    ReplayDiverged,
)
from agentrl.workers.episode_context import Clock, make_context
from agentrl.workers.journal import (
    AttemptJournal,
    ClaimLapsed,
    GroupCommit,
    NotContinuable,
    Takeover,
)
from agentrl.workers.judging.judge import EpisodeToJudge, Judge, with_judgement
from agentrl.workers.judging.scorers import JudgePolicies, make_judges
from agentrl.workers.policies.client import PolicyClient
from agentrl.workers.policies.pool import PolicyPool, Sampler, is_live
from agentrl.workers.policies.statistics import PoolConfig
from agentrl.workers.turn import close_environment
from agentrl.workers.waiting import WaitingAttempts

LAST_WORD_S = 1.0  # how long the store is waited for then

log = get_logger()


@dataclass(frozen=True, slots=True)
class EpisodeWorkerConfig:
    """What a worker takes of a configuration.

    `seed`: the run's. `policy_token_env`: the variable with the token of policy servers.
    `judge_models`: the model of each policy that judges.
    """

    worker: WorkerSection
    dispatch: Dispatch
    pool: PoolConfig
    model: Model
    tasks: Mapping[str, Task]
    seed: int
    policy_token_env: str
    judge_models: Mapping[str, str] = field(default_factory=dict)


class EpisodeWorker:
    """Runs episodes on Celery's threads until `stop`."""

    def __init__(
        self,
        config: EpisodeWorkerConfig,
        run_id: str,
        store: Store,
        publisher: Publisher,
        sources: Mapping[str, TaskSource],
    ) -> None:
        self.stop = threading.Event()
        self._closed = threading.Event()
        self._config = config
        self._run_id = run_id
        self._store = store
        self._publisher = publisher
        self._sources = sources
        self._items: dict[str, Mapping[str, Item]] = {
            task: {item.item_id: item for item in source.items(config.tasks[task].split)}
            for task, source in sources.items()
        }
        self._worker_id = f"worker-{uuid.uuid4().hex[:12]}"
        self._clock = Clock()
        self._lease_store = store.one_thread()
        self._driving: set[tuple[str, int]] = set()  # (episode_id, fence)
        self._driving_lock = threading.Lock()
        self._client = PolicyClient(
            token_env=config.policy_token_env, connections=config.worker.concurrency
        )
        self._pool = PolicyPool.of_run(store, run_id, config.pool)
        self.pool_changed = self._pool.wanted
        self._waiting = WaitingAttempts()
        context = make_context(
            config.model, config.pool.sampling, self._client, self._clock, self.stop
        )
        self._context = replace(context, waiting=self._waiting)
        judges = JudgePolicies(
            config.judge_models,
            lambda name: store.ask(lambda session: live_judge(session, run_id, name)),
            self._client,
            config.worker.completion_timeout_s,
        )
        self._judges = make_judges(config.tasks, judges, self.stop)
        self._keeps_steps = config.worker.journal == "steps"
        self._commits = GroupCommit(store) if self._keeps_steps or self._judges else None
        self._takeover: Takeover | None = None
        if self._commits is not None:
            append = self._commits.store
            self._takeover = Takeover(store, run_id, append, steps=self._keeps_steps)
        self._beat = vital_thread("lease", self._keep_lease)

    def start(self) -> None:
        """Register the worker and start the heartbeat."""
        worker = Worker(
            worker_id=self._worker_id,
            run_id=self._run_id,
            host=socket.gethostname(),
            pid=os.getpid(),
        )
        lease_s = self._config.worker.lease_s

        def register(session: Session) -> None:
            runs.register_worker(session, worker, lease_s=lease_s)

        self._store.transact(register)
        self._clock.set(self._store.clock())
        self._beat.start()
        if self._commits is not None:
            self._commits.start()

    def close(self) -> None:
        """Release the lease. Running attempts are given back by their own threads before.

        If the database is unavailable, the lease expires by itself.
        """
        self.stop.set()
        self._closed.set()
        if self._beat.is_alive():
            self._beat.join(self._config.worker.beat_s + 1)
        try:
            self._store.transact(lambda session: runs.end_worker(session, self._worker_id))
        except StoreUnavailable as error:
            log.warning("Lease not released; it expires by itself", error=str(error))
        if self._commits is not None:
            self._commits.close()
        self._lease_store.close()
        self._pool.close()
        self._client.close()

    def give_back(self) -> int:
        """Give back all running attempts and the lease in one transaction; return their number."""

        def release(session: Session) -> int:
            released = episodes.release_all(session, self._worker_id)
            runs.end_worker(session, self._worker_id)
            return released

        return self._store.transact(release, patience_s=LAST_WORD_S)

    def run(self, command: RunEpisode) -> None:
        """Run one attempt, from its claim to its final row."""
        if self.stop.is_set() or command.run_id != self._run_id:
            return
        key = command.episode_id, command.fence
        with self._driving_lock:
            if key in self._driving:  # delivered twice
                return
            self._driving.add(key)
        try:
            claimed = self._claim(command)
            if claimed is not None:
                observe_attempt(self._run_id, claimed, lambda: self._drive(claimed))
        finally:
            with self._driving_lock:
                self._driving.discard(key)

    def _claim(self, command: RunEpisode) -> ClaimedEpisode | None:
        """Claim the attempt. A claim whose answer was lost also counts as ours."""
        named = command.episode_id, command.fence, self._worker_id
        tries = 0

        def work(session: Session) -> ClaimedEpisode | None:
            nonlocal tries
            tries += 1
            taken = episodes.is_claimed_by(session, *named) if tries > 1 else None
            deadline_s = self._config.worker.attempt_deadline_s
            return taken or episodes.claim(session, *named, deadline_s=deadline_s)

        return self._store.transact(work)

    def _drive(self, claimed: ClaimedEpisode) -> str:
        """Run an attempt and update its row; return the outcome."""
        try:
            return self._finish(claimed, self._attempt(claimed))
        except Exception as error:  # the episode is one of the three places that catch
            return self._handle_failure(claimed, error)

    def _attempt(self, claimed: ClaimedEpisode) -> Trajectory:
        """Run an attempt, and have its judge score it."""
        played = self._continue(claimed)
        judge = self._judges.get(claimed.task)
        return self._judge(claimed, played, judge) if judge else played.trajectory

    def _continue(self, claimed: ClaimedEpisode) -> UnjudgedEpisode:
        """Play an episode; continue a former attempt as far as it is recorded."""
        if self._takeover is None:
            return self._play(claimed)
        journal = self._takeover.open(claimed)
        try:
            played = journal.unjudged or self._play(claimed, journal)
        except NotContinuable as error:
            journal = self._takeover.start_anew(claimed, str(error))
            played = self._play(claimed, journal)
        except ReplayDiverged as error:
            journal = self._takeover.start_anew(claimed, "diverged", str(error))
            played = self._play(claimed, journal)
        if journal.continuation:
            metrics.TAKEOVERS.labels(task=claimed.task, status=journal.continuation).inc()
        if journal.unjudged is None:
            return played
        own = {"attempt": claimed.attempt, "fence": claimed.fence}
        started_at = claimed.started_at or self._clock.now()
        trajectory = structs.replace(played.trajectory, **own, started_at=started_at)
        return structs.replace(played, trajectory=trajectory)

    def _judge(self, claimed: ClaimedEpisode, played: UnjudgedEpisode, judge: Judge) -> Trajectory:
        """Return the trajectory with the judge's reward; wait while the judge is away."""
        item = self._item(claimed)
        with self._waiting.attempt(claimed) as wait_for, tracing.span("judge"):
            wait_for(None)
            judgement = judge.judge(EpisodeToJudge.of(item.content, played))
        section = self._config.tasks[claimed.task].judge
        return with_judgement(played.trajectory, judgement, section, self._clock.now())

    def _item(self, claimed: ClaimedEpisode) -> Item:
        item = self._items[claimed.task].get(claimed.item_id)
        if item is None:
            raise ItemError(f"task {claimed.task} has no item {claimed.item_id}")
        return item

    def _play(
        self, claimed: ClaimedEpisode, journal: AttemptJournal | None = None
    ) -> UnjudgedEpisode:
        source, item = self._sources[claimed.task], self._item(claimed)
        steps = journal if self._keeps_steps else None
        task = self._config.tasks[claimed.task]
        limits = EpisodeLimits.of(self._config.worker, task, source.max_turns, claimed.horizon)
        environment = with_process_rewards(source.make(item), task.process_rewards)
        try:
            if steps is not None:
                steps.attach(environment, recovery_of(source))
            seed = f"{self._config.seed}/{claimed.episode_id}/{claimed.attempt}"
            weigh = self._pool.weigh(claimed.task)
            sampler = Sampler(self._pool, self._config.pool.sampling, seed, weigh)
            with tracing.span("start"):
                loop = EpisodeLoop(claimed, self._run_id, environment, sampler, self._context)
            played = UnjudgedEpisode(trajectory=loop.run(limits, steps))
            if journal is not None and claimed.task in self._judges:
                said = [{"role": each.role, "content": each.content} for each in loop.messages()]
                played = structs.replace(played, messages=tuple(said))
                journal.append_unjudged(played)
            return played
        except Exception as error:
            if steps is not None and self._is_handed_over(error):
                steps.leave(environment)
            raise
        finally:
            close_environment(environment)

    def _finish(self, claimed: ClaimedEpisode, trajectory: Trajectory) -> str:
        """Publish the body with a confirm, then update the row. Return the outcome."""
        trajectory = decode_as_received(trajectory)
        with tracing.span("publish"):
            self._publish(claimed, trajectory)
        result = EpisodeResult(
            status=trajectory.status,
            reward=trajectory.reward,
            score=trajectory.score,
            turns=trajectory.turns,
            tokens=len(trajectory),
            loss_tokens=int(trajectory.mask().sum()),
            body_sha256=trajectory.sha256,
        )
        moved = self._store.transact(
            lambda session: episodes.finish(
                session, claimed, result, body_timeout_s=self._config.dispatch.body_timeout_s
            ),
            patience_s=FOREVER,  # its body is published: nobody need play it again
        )
        if not moved:
            log.warning("Claim expired before the attempt ended")
            return "lapsed"
        metrics.SAMPLED.labels(task=claimed.task).inc(result.loss_tokens)
        return result.status

    def _publish(self, claimed: ClaimedEpisode, trajectory: Trajectory) -> None:
        """Publish the body; wait as long as the broker is unavailable.

        The deadline of the attempt does not apply, because the episode is over. Raises Stopped,
        MessageRefused.
        """
        is_logged = False

        def waiting(waited_s: float) -> None:
            nonlocal is_logged
            if self.stop.is_set():
                raise EpisodeStopped("the worker is stopping, its broker does not take the body")
            wait_for(None)
            if not is_logged:
                log.warning("Finished episode waits for the broker", waited_s=round(waited_s, 1))
            is_logged = True

        message = EpisodeFinished(trajectory=trajectory)
        with self._waiting.attempt(claimed) as wait_for:
            self._publisher.publish(TRAJECTORIES, self._run_id, message, waiting=waiting)

    def _handle_failure(self, claimed: ClaimedEpisode, error: Exception) -> str:
        """Give the episode back, or count a failed attempt; return the outcome."""
        if isinstance(error, StoreUnavailable):  # only once told to stop: else it waits
            log.warning("Attempt left until its lease expires", error=str(error))
            return "left"
        if isinstance(error, ClaimLapsed):
            log.warning("Claim expired before the attempt ended")
            return "lapsed"
        if self._is_given_back(error):
            self._store.transact(lambda session: episodes.release(session, claimed))
            told = log.info if isinstance(error, EpisodeStopped) else log.warning
            told("Episode given back", error=str(error))
            return "given_back"
        reason, status = reason_of(error)
        known = isinstance(error, AgentRLError)
        log.warning("Attempt failed", reason=reason, error=in_words(error), exc_info=not known)
        limit = self._config.dispatch.max_attempts
        self._store.transact(
            lambda session: episodes.retry(
                session, claimed, reason, max_attempts=limit, detail=status
            )
        )
        return reason

    def _is_handed_over(self, error: Exception) -> bool:
        """Return whether the next attempt may go on where this one was."""
        return isinstance(error, StoreUnavailable | ClaimLapsed) or self._is_given_back(error)

    def _is_given_back(self, error: Exception) -> bool:
        return self.stop.is_set() or is_no_fault_of_the_attempt(error)

    def _keep_lease(self) -> None:
        """Send heartbeats until closed; retry while the database is unavailable."""
        while not self._closed.wait(self._config.worker.beat_s):
            try:
                self._lease_store.transact(self._extend)
            except StoreUnavailable as error:
                log.warning("Lease not renewed", error=str(error))

    def _extend(self, session: Session) -> None:
        beat = runs.beat_worker(session, self._worker_id, lease_s=self._config.worker.lease_s)
        if beat is not None:  # before the commit, whose duration is no part of the offset
            self._clock.set(beat)
        live = self._pool.live()
        waiting = self._waiting.away(lambda policy: is_live(policy, live))
        deadline_s = self._config.worker.attempt_deadline_s
        episodes.postpone(session, self._worker_id, waiting, deadline_s=deadline_s)
