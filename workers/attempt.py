"""One attempt at an episode: continue what a former attempt recorded, play the rest, judge it.

    Takeover ─ recorded steps ─▶ EpisodeLoop ─ journal ─▶ UnjudgedEpisode ─▶ Judge ─▶ Trajectory
       └─ an episode that a former attempt has played to its end ──────────────▲

consumes  a claimed episode, the journal of its former attempts
produces  the trajectory; rows of the journal
waits for the environment, policies, the journal's commits and the judge
"""

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import structs

from agentrl.core.errors import ItemError
from agentrl.core.journal import UnjudgedEpisode
from agentrl.core.telemetry import metrics, tracing
from agentrl.core.trajectory import Trajectory
from agentrl.db.transitions.episodes import ClaimedEpisode
from agentrl.envs.contract import Item, TaskSource, recovery_of
from agentrl.envs.process_rewards import with_process_rewards
from agentrl.workers.attempt_errors import is_handed_over
from agentrl.workers.episode import EpisodeLoop, ReplayDiverged
from agentrl.workers.episode_context import EpisodeContext, EpisodeLimits, EpisodeWorkerConfig
from agentrl.workers.journal import AttemptJournal, NotContinuable, Takeover
from agentrl.workers.judging.judge import EpisodeToJudge, Judge, with_judgement
from agentrl.workers.policies.pool import PolicyPool, Sampler
from agentrl.workers.turn import close_environment


@dataclass(frozen=True, slots=True)
class AttemptRunner:
    """Runs the attempts of a worker process, each on the thread that calls `run`.

    `sources`: of each task; `items`: of each task, by their ids. `judges`: of the tasks that have
    one. `takeover`: None if nothing is journaled.
    """

    config: EpisodeWorkerConfig
    run_id: str
    sources: Mapping[str, TaskSource]
    items: Mapping[str, Mapping[str, Item]]
    pool: PolicyPool
    context: EpisodeContext
    judges: Mapping[str, Judge]
    takeover: Takeover | None

    def run(self, claimed: ClaimedEpisode) -> Trajectory:
        """Return the trajectory of an attempt. Raises what ended it without one."""
        episode = self._continue(claimed)
        judge = self.judges.get(claimed.task)
        return self._judge(claimed, episode, judge) if judge else episode.trajectory

    def _continue(self, claimed: ClaimedEpisode) -> UnjudgedEpisode:
        """Play an episode; continue a former attempt as far as it is recorded."""
        if self.takeover is None:
            return self._play(claimed)
        journal = self.takeover.open(claimed)
        try:
            episode = journal.unjudged or self._play(claimed, journal)
        except NotContinuable as error:
            journal = self.takeover.start_anew(claimed, str(error))
            episode = self._play(claimed, journal)
        except ReplayDiverged as error:
            journal = self.takeover.start_anew(claimed, "diverged", str(error))
            episode = self._play(claimed, journal)
        if journal.continuation:
            metrics.TAKEOVERS.labels(task=claimed.task, status=journal.continuation).inc()
        if journal.unjudged is None:
            return episode
        attempt = {"attempt": claimed.attempt, "fence": claimed.fence}
        started_at = claimed.started_at or self.context.clock()
        trajectory = structs.replace(episode.trajectory, **attempt, started_at=started_at)
        return structs.replace(episode, trajectory=trajectory)

    def _play(
        self, claimed: ClaimedEpisode, journal: AttemptJournal | None = None
    ) -> UnjudgedEpisode:
        """Play an episode to its end with an environment of its own."""
        item, source = self._item(claimed), self.sources[claimed.task]
        steps = journal if self.config.worker.journal == "steps" else None
        task = self.config.tasks[claimed.task]
        limits = EpisodeLimits.of(self.config.worker, task, source.max_turns, claimed.horizon)
        environment = with_process_rewards(source.make(item), task.process_rewards)
        try:
            if steps is not None:
                steps.attach(environment, recovery_of(source))
            sampler = self._sampler(claimed)
            with tracing.span("start"):
                loop = EpisodeLoop(claimed, self.run_id, environment, sampler, self.context)
            episode = UnjudgedEpisode(trajectory=loop.run(limits, steps))
            if journal is not None and claimed.task in self.judges:
                messages = [{"role": m.role, "content": m.content} for m in loop.messages()]
                episode = structs.replace(episode, messages=tuple(messages))
                journal.append(episode)
            return episode
        except Exception as error:
            if steps is not None and is_handed_over(error, self.context.stop):
                steps.leave(environment)
            raise
        finally:
            close_environment(environment)

    def _sampler(self, claimed: ClaimedEpisode) -> Sampler:
        seed = f"{self.config.seed}/{claimed.episode_id}/{claimed.attempt}"
        weigh = self.pool.weigh(claimed.task)
        return Sampler(self.pool, self.config.pool.sampling, seed, weigh)

    def _judge(self, claimed: ClaimedEpisode, episode: UnjudgedEpisode, judge: Judge) -> Trajectory:
        """Return the trajectory with the judge's reward; wait while the judge is away."""
        item, section = self._item(claimed), self.config.tasks[claimed.task].judge
        with self.context.waiting.attempt(claimed) as wait_for, tracing.span("judge"):
            wait_for(None)
            judgement = judge.judge(EpisodeToJudge.of(item.content, episode, section))
        return with_judgement(episode.trajectory, judgement, section, self.context.clock())

    def _item(self, claimed: ClaimedEpisode) -> Item:
        items = self.items.get(claimed.task)
        if items is None:
            raise ItemError(f"task {claimed.task} is not in the configuration")
        item = items.get(claimed.item_id)
        if item is None:
            raise ItemError(f"task {claimed.task} has no item {claimed.item_id}")
        return item
