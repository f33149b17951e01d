"""Simulates generation and training side by side, on a clock that counts the cost of both.

    admit while open < (bound + 1) · groups ─▶ strands ─wave─▶ groups ─spread? fresh?─▶ ready
      ▲                                          ▲ acting track                          │
      └── groups are closed ◀─ commit ◀─ busy for Costs.training ◀─ update of `groups` ◀─┘

Waves advance the engine's clock. The trainer starts an update when it is idle and enough groups are
ready; its checkpoint appears when the engine's clock has passed the end of the update. Tokens and
weights are real; only the time is simulated.
"""

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrl.core.trajectory import Trajectory
from agentrl.db.registry.tracks import select_checkpoint
from agentrl.experiments.simulation.lockstep_episode import LockstepEpisode, Question
from agentrl.experiments.simulation.simulator import Job
from agentrl.experiments.simulation.statistics import success_share
from agentrl.experiments.simulation.training import KEPT, Rounds, Trainee
from agentrl.experiments.staleness.costs import Costs
from agentrl.experiments.staleness.findings import Moment
from agentrl.trainer.batch import TrainableGroup, assemble_batch, has_spread
from agentrl.trainer.engines.learner import Metrics
from agentrl.trainer.group_selection import InboxBounds, is_too_old


@dataclass(frozen=True, slots=True)
class Ready:
    """A group that is ready for training, and since when."""

    group: TrainableGroup
    at: float


@dataclass(frozen=True, slots=True)
class Update:
    """An update in progress, committed at `ends`."""

    groups: Sequence[TrainableGroup]
    metrics: Metrics
    ends: float


class Pipeline(Rounds):
    """One training. `now`: the engine's clock. The counts are those of a Course."""

    def __init__(self, trainee: Trainee, folder: Path, costs: Costs) -> None:
        """The bound is `dispatch.max_staleness`; the last track of the arm acts."""
        super().__init__(trainee, folder, keep=False)
        plan = trainee.config.dispatch
        self.now = self.engine = self.trainer = 0.0
        self.filtered = self.stale = self.loads = 0
        self._costs = costs
        self._most = (plan.max_staleness + 1) * plan.groups_per_update
        self._bounds = InboxBounds(
            min_groups=plan.groups_per_update,
            max_groups=plan.groups_per_update,
            max_staleness=plan.max_staleness,
            max_lag=plan.max_lag,
            max_attempts=plan.max_attempts,
            abnormal_reward=self._settings.abnormal_reward,
        )
        self._playing: dict[str, list[Trajectory]] = {}
        self._episodes: list[LockstepEpisode[tuple[Job, Trajectory]]] = []
        self._ready: list[Ready] = []
        self._update: Update | None = None
        self._free_at = 0.0  # when the trainer ended its last update

    def moments(self) -> Generator[Moment, None, None]:
        """Yield updates as they are committed, without end."""
        try:
            while True:
                yield from self._train()
                self._admit()
                self._collect()
                if self._episodes:
                    self._wave()
                elif self._update is not None:
                    self.now = max(self.now, self._update.ends)
        finally:
            for episode in self._episodes:
                episode.stop()

    def _admit(self) -> None:
        """Open groups up to the bound; training groups are open until their update is committed."""
        training = len(self._update.groups) if self._update else 0
        for _ in range(self._most - training - len(self._ready) - len(self._playing)):
            for job in self.admission.group(self.simulator.version):
                self._playing[job.group_id] = []
                work = self.simulator.work(job, self._trainee.arm.sampling, self._weighing.draws)
                self._episodes.append(LockstepEpisode(work))

    def _wave(self) -> None:
        """Answer the next turn of every open episode."""
        answers = self.simulator.answer(self._asked())
        took = self._costs.wave(self.simulator.wave)
        self.now += took
        self.engine += took
        for episode, completion in zip(self._episodes, answers, strict=True):
            episode.answer(completion)
        self._collect()

    def _asked(self) -> list[Question]:
        return [each.question for each in self._episodes if each.question is not None]

    def _collect(self) -> None:
        """Collect finished episodes, and close complete groups."""
        ended = [episode for episode in self._episodes if episode.question is None]
        self._episodes = [episode for episode in self._episodes if episode.question is not None]
        for episode in ended:
            job, trajectory = episode.result()
            self.tokens += int(trajectory.mask().sum())
            self.episodes += 1
            members = self._playing[job.group_id]
            members.append(trajectory)
            if len(members) == self._trainee.config.dispatch.group_size:
                del self._playing[job.group_id]
                ordered = tuple(sorted(members, key=lambda each: each.member))
                self._close(TrainableGroup(job.group_id, job.item.task, ordered))

    def _close(self, group: TrainableGroup) -> None:
        if has_spread(group, self._bounds.abnormal_reward):
            self._ready.append(Ready(group, self.now))
        else:
            self.filtered += 1

    def _train(self) -> Iterator[Moment]:
        """Commit finished updates and begin possible ones, until there are none."""
        while True:
            if self._update is None:
                self._begin()
            if self._update is None or self._update.ends > self.now:
                return
            yield self._commit(self._update)

    def _begin(self) -> None:
        """Begin the next update, as of when the trainer was idle and enough groups were ready."""
        fresh = [
            r for r in self._ready if not is_too_old(r.group, self.simulator.version, self._bounds)
        ]
        self.stale += len(self._ready) - len(fresh)
        count = self._bounds.min_groups
        chosen, self._ready = fresh[:count], fresh[count:]
        if len(chosen) < count:
            self._ready = chosen
            return
        groups = [each.group for each in chosen]
        batch = assemble_batch(groups, self._settings)
        took = self._costs.training(batch)
        self.trainer += took
        begins = max(self._free_at, chosen[-1].at)
        self._update = Update(groups, self._learner.update(batch), begins + took)

    def _commit(self, update: Update) -> Moment:
        """Commit the next version; add the engine's loading time if its track reloads."""
        track = self._trainee.arm.tracks[-1]
        version, before = self.simulator.version, select_checkpoint(track, self.simulator.lineage)
        if not update.metrics.skipped:
            self.simulator.publish(
                self._learner.copy_weights(), {q.policy.checkpoint_id for q in self._asked()}
            )
        if select_checkpoint(track, self.simulator.lineage) != before:
            self.loads += 1
            self.now += self._costs.load
            self.engine += self._costs.load
        self._free_at, self._update = update.ends, None
        members = [member for group in update.groups for member in group.members]
        lags = lags_of(members, version)
        metrics = update.metrics.values
        return Moment(
            version=self.simulator.version,
            at=round(update.ends, 6),
            tokens=sum(lags.values()),
            lag=sum(lag * tokens for lag, tokens in lags.items()) / max(1, sum(lags.values())),
            oldest=max(lags),
            success=success_of(members),
            metrics={name: round(metrics[name], 6) for name in sorted(KEPT & metrics.keys())},
        )


def lags_of(members: Sequence[Trajectory], version: int) -> dict[int, int]:
    """Count sampled tokens by the age of their policy before `version`, in updates."""
    found = Counter[int]()
    for member in members:
        for step in member.steps:
            found[version - member.policies[step.policy_index].version] += step.end - step.start
    return found


def success_of(members: Sequence[Trajectory]) -> dict[str, float]:
    """Return the share of successful episodes by task."""
    tasks = sorted({member.task for member in members})
    return {task: success_share([m for m in members if m.task == task]) for task in tasks}
