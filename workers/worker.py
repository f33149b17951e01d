"""A worker process: claims episodes, runs them, publishes their bodies, then updates their rows.

    RunEpisode ─▶ WorkerLease.claim ─▶ AttemptRunner.run ─ trajectory ─▶ Settlement.finish
                                              └─ error ──────────────────▶ Settlement.fail

consumes  RunEpisode (Celery threads call `run`)
produces  EpisodeFinished, with a confirm; then the row running → finished
waits for nothing itself: the lease beats, an attempt waits for its policies (`attempt.py`)
ends      with SIGTERM: running episodes are given back at their next step, all after GRACE_S
"""

import threading
from collections.abc import Mapping
from dataclasses import replace

from agentrl.broker.api import Publisher
from agentrl.broker.messages import RunEpisode
from agentrl.db.registry.external_policies import live_server
from agentrl.db.store import Store
from agentrl.db.transitions.episodes import ClaimedEpisode
from agentrl.envs.contract import TaskSource
from agentrl.envs.item_choice import index_items
from agentrl.workers.attempt import AttemptRunner
from agentrl.workers.attempt_telemetry import note_result, observe_attempt
from agentrl.workers.episode_context import Clock, EpisodeWorkerConfig, make_context
from agentrl.workers.journal import GroupCommit, Takeover
from agentrl.workers.judging.judge import Judge
from agentrl.workers.judging.scorers import JudgePolicies, make_judges
from agentrl.workers.lease import WorkerLease
from agentrl.workers.policies.client import PolicyClient
from agentrl.workers.policies.pool import PolicyPool, is_live
from agentrl.workers.settlement import Settlement
from agentrl.workers.waiting import Attempt, WaitingAttempts


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
        items = {
            task: index_items(source.items(config.tasks[task].split))
            for task, source in sources.items()
        }
        self.stop = threading.Event()
        self._run_id, self._instance = run_id, config.instance
        self._running: set[Attempt] = set()
        self._running_lock = threading.Lock()
        self._waiting = WaitingAttempts()
        self._client = PolicyClient(
            token_env=config.policy_token_env, connections=config.worker.concurrency
        )
        self._pool = PolicyPool.of_run(store, run_id, config.pool)
        self.pool_changed = self._pool.refresh_wanted
        clock = Clock()
        self.lease = WorkerLease(store, run_id, config.worker, clock, self._waiting_attempts)
        context = make_context(config.model, config.pool.sampling, self._client, clock, self.stop)
        judges = self._make_judges(config, store)
        journals_steps = config.worker.journal == "steps"
        self._commits = GroupCommit(store) if journals_steps or judges else None
        takeover = None
        if self._commits is not None:
            takeover = Takeover(store, run_id, self._commits.store, steps=journals_steps)
        self._attempts = AttemptRunner(
            config=config,
            run_id=run_id,
            sources=sources,
            items=items,
            pool=self._pool,
            context=replace(context, waiting=self._waiting),
            judges=judges,
            takeover=takeover,
        )
        self._settlement = Settlement(store, publisher, config.dispatch, self.stop, self._waiting)

    def start(self) -> None:
        """Register the worker and start the heartbeat."""
        self.lease.begin(self._instance)
        if self._commits is not None:
            self._commits.start()

    def close(self) -> None:
        """Release the lease. Running attempts are given back by their own threads before."""
        self.stop.set()
        self.lease.release()
        if self._commits is not None:
            self._commits.close()
        self._pool.close()
        self._client.close()

    def run(self, command: RunEpisode) -> None:
        """Run one attempt, from its claim to its final row."""
        if self.stop.is_set() or command.run_id != self._run_id:
            return
        attempt = command.episode_id, command.fence
        with self._running_lock:
            if attempt in self._running:  # delivered twice
                return
            self._running.add(attempt)
        try:
            claimed = self.lease.claim(*attempt)
            if claimed is not None:
                observe_attempt(self._run_id, claimed, lambda: self._run_attempt(claimed))
        finally:
            with self._running_lock:
                self._running.discard(attempt)

    def _run_attempt(self, claimed: ClaimedEpisode) -> str:
        """Run an attempt and settle it; return the outcome."""
        try:
            trajectory = self._attempts.run(claimed)
            note_result(trajectory)
            return self._settlement.finish(claimed, trajectory)
        except Exception as error:  # the episode is one of the three places that catch
            return self._settlement.fail(claimed, error)

    def _waiting_attempts(self) -> set[Attempt]:
        """Return the attempts that wait for a service that is unavailable."""
        live = self._pool.live()
        return self._waiting.away(lambda policy: is_live(policy, live))

    def _make_judges(self, config: EpisodeWorkerConfig, store: Store) -> Mapping[str, Judge]:
        policies = JudgePolicies(
            config.judge_models,
            lambda name: store.ask(lambda session: live_server(session, self._run_id, name)),
            self._client,
            config.worker.completion_timeout_s,
        )
        return make_judges(config.tasks, policies, self.stop)
